"""Numbers out: metrics, clock, loggers and the run folder. Import from the file that holds the noun."""
