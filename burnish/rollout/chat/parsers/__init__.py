"""One file per text format of tool calls."""
