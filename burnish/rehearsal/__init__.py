"""Runs a launch command for one step on this machine, with stand-ins for what is not local."""
