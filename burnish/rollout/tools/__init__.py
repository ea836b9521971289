"""Tools that a model may call: protocol, loading, limits, and the built-in ones."""
