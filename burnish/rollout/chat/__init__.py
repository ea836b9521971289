"""Chat templates, the tokens between turns, and the text formats of tool calls."""
