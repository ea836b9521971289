"""Documentation of keys in English and Chinese, for `burnish explain` and docs/keys.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from burnish.config.aliases import aliases_of, find_alias
from burnish.config.fields import SAME
from burnish.config.names import TABLES
from burnish.config.settings import unknown_key
from burnish.config.status import Status, idle_reasons, status_in, status_of
from burnish.config.tree import Leaf, tree
from burnish.config.values import is_interpolation
from burnish.config.zh import chinese

LANGUAGES = ("en", "zh")
UNSUPPORTED = ("pending", "refused")


@dataclass(frozen=True)
class Explained:
    """Everything known about a key."""

    key: str
    job: str
    type: str
    default: Any
    follows: str | None  # the interpolation that gives its default
    allowed: dict[str, str] | None  # name -> description, may be empty
    bounds: str | None
    status: str  # acts, conditional (acts in some runs), pending, refused, inert; of a given config never conditional
    why: str
    no_effect_if: list[str]  # the runs in which a conditional key has none
    unsupported_values: dict[str, str]  # pending and refused values -> reason
    doc: str
    verl_default: Any  # SAME if it does not differ
    aliases: list[str]

    def as_dict(self) -> dict[str, Any]:
        """JSON fields; verl_default only if it differs."""
        fields = asdict(self)
        if self.verl_default is SAME:
            del fields["verl_default"]
        return fields


def describe(key: str, lang: str = "en", job: str = "train", cfg: Any = None) -> Explained:
    """Explain one key, by its name, an alias, or a unique last part. With `cfg`, its status is that of the run."""
    rows = describe_matching(key, lang, job, cfg)
    if len(rows) != 1:
        raise unknown_key(key, tree(job), explained=True)
    return rows[0]


def describe_matching(key: str, lang: str = "en", job: str = "train", cfg: Any = None) -> list[Explained]:
    """Explain the key of this name or alias, or else every key that ends so."""
    keys = tree(job)
    match = keys.find(key)
    if match is None:
        alias = find_alias(key, job)
        match = keys.find(alias[1][0]) if alias is not None else None
    leaves = [match[0]] if match is not None else []
    if match is None or "." not in key:
        leaves += [leaf for leaf in keys.leaves.values() if leaf.key.endswith(f".{key}") and leaf not in leaves]
    if not leaves:
        raise unknown_key(key, keys, explained=True)
    return [_explain(leaf, lang, job, cfg) for leaf in leaves]


def describe_section(section: str, lang: str = "en", job: str = "train", cfg: Any = None) -> list[Explained]:
    """Explain every key of a section."""
    keys = tree(job)
    if section not in keys.sections:
        raise unknown_key(section, keys, explained=True)
    return [_explain(leaf, lang, job, cfg) for leaf in keys.inside(section)]


def describe_all(lang: str = "en", job: str = "train") -> list[Explained]:
    return [_explain(leaf, lang, job) for leaf in tree(job).leaves.values()]


def search(words: str, lang: str = "en", job: str = "train") -> list[Explained]:
    """Keys whose name or doc contains all the words."""
    terms = words.lower().split()
    rows = describe_all(lang, job)
    return [row for row in rows if all(term in f"{row.key} {row.doc}".lower() for term in terms)]


def _explain(leaf: Leaf, lang: str, job: str, cfg: Any = None) -> Explained:
    status = status_of(leaf.key, job=job) if cfg is None else _status_in_run(leaf, job, cfg)
    reasons = idle_reasons(leaf.key, job) if cfg is None and status.kind == "acts" else []
    follows = leaf.default if is_interpolation(leaf.default) else None
    return Explained(
        key=leaf.key,
        job=job,
        type=leaf.type_name,
        default=leaf.default if follows is None else None,
        follows=follows,
        allowed=_allowed(leaf, lang),
        bounds=leaf.facts.bounds(),
        status="conditional" if reasons else status.kind,
        why=getattr(status.why, lang),
        no_effect_if=[getattr(reason, lang) for reason in reasons],
        unsupported_values=_unsupported_values(leaf, lang, job, status.kind),
        doc=leaf.doc if lang == "en" else chinese(leaf.owner, leaf.name),
        verl_default=leaf.facts.verl,
        aliases=aliases_of(leaf.key, job),
    )


def _status_in_run(leaf: Leaf, job: str, cfg: Any) -> Status:
    """The status of the key's value in this config."""
    value = cfg
    for name in leaf.path.split("."):
        value = getattr(value, name)
    return status_in(cfg, leaf.key, value, job)


def _allowed(leaf: Leaf, lang: str) -> dict[str, str] | None:
    """The allowed names, with their descriptions where `names` has them."""
    if leaf.facts.allowed is None:
        return None
    names = [str(name) for name in leaf.facts.allowed]
    table = next((table for table in TABLES.values() if list(table) == names), {})
    lines = {name: getattr(table[name], lang) if name in table else "" for name in names}
    return {**lines, "path/to/file.py:name": ""} if leaf.facts.user_paths else lines


def _unsupported_values(leaf: Leaf, lang: str, job: str, kind: str) -> dict[str, str]:
    if leaf.facts.allowed is None or kind in UNSUPPORTED:
        return {}
    statuses = {str(value): status_of(leaf.key, value, job) for value in leaf.facts.allowed}
    return {value: getattr(status.why, lang) for value, status in statuses.items() if status.kind in UNSUPPORTED}
