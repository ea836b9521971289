"""What model.external_lib imports."""
