"""What a run would need and where it would go wrong, found out before a model is loaded."""
