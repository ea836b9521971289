"""A package, so that no package of the same name in site-packages can replace it in worker processes."""
