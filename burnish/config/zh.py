"""Chinese docs of all fields, keyed by class and field, so that shared sections are written once."""

from __future__ import annotations

from burnish.config import zh_policy, zh_run

DOCS: dict[str, str] = {**zh_policy.DOCS, **zh_run.DOCS}


def chinese(cls: type, name: str) -> str:
    """The Chinese doc of a field, in the class or its first base that has one."""
    for base in cls.__mro__:
        doc = DOCS.get(f"{base.__name__}.{name}")
        if doc is not None:
            return doc
    return ""
