"""The marker of tests in this folder: `@attack("network", "port scan of the worker channel during start")`.

The class and the description make the table of docs/security.md (bench/security.py): an attack is contained if all
tests with its description pass. Every test here has the marker (tests/laws/test_tests.py).
"""

from __future__ import annotations

import pytest


def attack(kind: str, description: str) -> pytest.MarkDecorator:
    return pytest.mark.attack(kind, description)
