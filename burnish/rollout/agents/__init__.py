"""Episodes of several turns: with tools, simulated users, environments, and users' own agents."""
