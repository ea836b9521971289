"""OpenRLHF's command lines: the flags of v0.9.2, the names before and after it, and what they mean here."""
