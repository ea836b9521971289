"""Translation of verl, OpenRLHF and MindSpeed RL launch commands and configs into Burnish keys."""
