"""verl: its programs, its Hydra overrides and YAML configs. Burnish's own commands use the same keys."""
