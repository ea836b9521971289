"""Fixtures to run programs in an isolation mode."""

from ..isolation.fixtures import run_code, user_programs  # noqa: F401
