"""Metrics, timing, loggers and the run folder."""
