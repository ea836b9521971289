"""How others ask: launch commands and configs of verl, OpenRLHF and MindSpeed RL, read into our keys."""
