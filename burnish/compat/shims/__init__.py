"""What users' files import from verl and OpenRLHF; burnish/compat/stand_ins has the same under their module names."""
