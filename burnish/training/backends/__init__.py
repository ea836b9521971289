"""Backends: how a model is held and run, one file per kind of parallelism."""
