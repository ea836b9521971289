"""OpenRLHF: command lines of v0.9.2, earlier and later flag names, and the dotted names since v0.10.2."""
