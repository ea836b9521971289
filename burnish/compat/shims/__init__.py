"""Stand-ins for what users' own files import from verl and OpenRLHF. Only users' files see them: see imports.py."""
