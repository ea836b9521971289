"""What a key means, in English or Chinese: pure functions behind `burnish explain` and docs/keys.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from burnish.config.aliases import aliases_of, find_alias
from burnish.config.fields import SAME
from burnish.config.names import TABLES
from burnish.config.settings import unknown_key
from burnish.config.status import status_of
from burnish.config.tree import Leaf, tree
from burnish.config.values import is_interpolation
from burnish.config.zh import chinese

LANGUAGES = ("en", "zh")


@dataclass(frozen=True)
class Explained:
    """Everything there is to say about a key."""

    key: str
    job: str
    type: str
    default: Any
    follows: str | None  # the key or text its default is taken from
    allowed: dict[str, str] | None  # name -> one line ("" where it has none)
    bounds: str | None
    status: str  # acts, pending, inert
    why: str
    pending_values: dict[str, str]  # values that come later
    doc: str
    verl_default: Any  # "same" where it does not differ
    aliases: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: without what is the same in verl."""
        rows = asdict(self)
        if self.verl_default is SAME:
            del rows["verl_default"]
        return rows


def describe(key: str, lang: str = "en", job: str = "train") -> Explained:
    """Explain one key. Another spelling, and a unique last part of a key, are understood."""
    known = tree(job)
    found = known.find(key)
    if found is None:
        alias = find_alias(key, job)
        found = known.find(alias[1][0]) if alias is not None else None
    if found is None:
        ends = [leaf for leaf in known.leaves.values() if leaf.key.endswith(f".{key}")]
        found = (ends[0], "") if len(ends) == 1 else None
    if found is None:
        raise unknown_key(key, known)
    return _explain(found[0], lang, job)


def describe_section(section: str, lang: str = "en", job: str = "train") -> list[Explained]:
    """Explain every key inside a section."""
    known = tree(job)
    if section not in known.sections:
        raise unknown_key(section, known)
    return [_explain(leaf, lang, job) for leaf in known.inside(section)]


def describe_all(lang: str = "en", job: str = "train") -> list[Explained]:
    return [_explain(leaf, lang, job) for leaf in tree(job).leaves.values()]


def search(words: str, lang: str = "en", job: str = "train") -> list[Explained]:
    """Keys whose name or doc has all the words."""
    wanted = words.lower().split()
    rows = describe_all(lang, job)
    return [row for row in rows if all(word in f"{row.key} {row.doc}".lower() for word in wanted)]


def _explain(leaf: Leaf, lang: str, job: str) -> Explained:
    status = status_of(leaf.key, job=job)
    follows = leaf.default if is_interpolation(leaf.default) else None
    return Explained(
        key=leaf.key,
        job=job,
        type=leaf.type_name,
        default=leaf.default if follows is None else None,
        follows=follows,
        allowed=_allowed(leaf, lang),
        bounds=leaf.facts.bounds(),
        status=status.kind,
        why=getattr(status.why, lang),
        pending_values=_pending_values(leaf, lang, job, status.kind),
        doc=leaf.doc if lang == "en" else chinese(leaf.owner, leaf.name),
        verl_default=leaf.facts.verl,
        aliases=aliases_of(leaf.key, job),
    )


def _allowed(leaf: Leaf, lang: str) -> dict[str, str] | None:
    """The allowed names; those of a table with their line."""
    if leaf.facts.allowed is None:
        return None
    names = [str(name) for name in leaf.facts.allowed]
    table = next((table for table in TABLES.values() if list(table) == names), {})
    lines = {name: getattr(table[name], lang) if name in table else "" for name in names}
    return {**lines, "path/to/file.py:name": ""} if leaf.facts.user_paths else lines


def _pending_values(leaf: Leaf, lang: str, job: str, kind: str) -> dict[str, str]:
    if leaf.facts.allowed is None or kind == "pending":
        return {}
    statuses = {str(value): status_of(leaf.key, value, job) for value in leaf.facts.allowed}
    return {value: getattr(status.why, lang) for value, status in statuses.items() if status.kind == "pending"}
