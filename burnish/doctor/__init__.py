"""Predicts the memory and the mistakes of a run before a model is loaded."""
