"""Tools that come with Burnish. Each module has a function `build` that makes tools from an entry of a YAML file."""
