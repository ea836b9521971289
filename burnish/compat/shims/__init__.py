"""Stand-ins for what users' own files import from verl and OpenRLHF. burnish/compat/stand_ins re-exports them under the names of those systems."""
