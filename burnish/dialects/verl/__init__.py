"""verl's dialect: Hydra overrides of the same tree, with verl's own defaults written out."""
