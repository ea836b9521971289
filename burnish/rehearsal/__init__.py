"""The rehearsal: the very command for a step on this machine, with stand-ins for what is not here."""
