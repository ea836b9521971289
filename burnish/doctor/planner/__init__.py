"""Planner: which layout of a run is fastest on given GPUs (`burnish doctor --plan 64xH100`)."""
