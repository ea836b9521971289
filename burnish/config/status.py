"""Whether a key acts, is pending or is inert, and what that means for a run. The rows: pending.py and beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from burnish.config.idle import CONDITIONS, IDLE
from burnish.config.job_status import INERT_OF, PENDING_OF
from burnish.config.names import Line
from burnish.config.pending import WAITS, Pending
from burnish.config.settings import Setting
from burnish.config.tree import tree
from burnish.config.values import is_interpolation, written_as
from burnish.errors import UserError

NO_REASON = Line("", "")


@dataclass(frozen=True)
class Status:
    """acts, pending or inert; and why, in English and Chinese."""

    kind: str
    why: Line = NO_REASON


def status_of(key: str, value: Any = None, job: str = "train") -> Status:
    """The status of a key; with a value, of that value."""
    row = _pending_row(key, value, job)
    if row is not None:
        return Status("pending", _why(row))
    for pattern, reason in INERT_OF[job].items():
        if _matches(pattern, key):
            return Status("inert", reason)
    return Status("acts")


def status_in(cfg: Any, key: str, value: Any, job: str = "train") -> Status:
    """The status of a value in this run: a default is never pending, and what cannot matter is inert."""
    row = _row_in(cfg, key, value, job)
    if row is not None and not _cannot_matter(row, cfg):
        return Status("acts") if _is_default(key, value, cfg, job) else Status("pending", _why(row))
    reason = _why_inert(key, value, cfg, job)
    return Status("acts") if reason is None else Status("inert", reason)


def pending_keys(job: str = "train") -> list[tuple[str, str]]:
    """Every pending key, or key=value, with what it waits for."""
    keys = [(key, status_of(key, job=job)) for key in tree(job).leaves]
    rows = [(key, status.why.en) for key, status in keys if status.kind == "pending"]
    return rows + [
        (f"{key}={row.pattern.partition('=')[2]}", _why(row).en)
        for row in PENDING_OF[job]
        if "=" in row.pattern
        for key in tree(job).leaves
        if _matches(row.pattern.partition("=")[0], key) and status_of(key, job=job).kind != "pending"
    ]


def check_pending(cfg: Any, settings: Mapping[str, Setting], job: str = "train") -> list[UserError]:
    """An error for every pending key that was set to something else than its default and could matter."""
    errors = []
    for key, setting in settings.items():
        row = _row_in(cfg, key, setting.value, job)
        if row is None or _is_default(key, setting.value, cfg, job) or _cannot_matter(row, cfg):
            continue
        default = _default_of(key, cfg, job)
        errors.append(
            UserError(
                f"is not there yet: it waits for {row.waits_for} (`burnish explain --pending` lists such keys)",
                key=setting.written or key,
                value=setting.value,
                hint=f"leave it out, or {key}={written_as(default)}",
            )
        )
    return errors


def inert_notices(cfg: Any, settings: Mapping[str, Setting], job: str = "train") -> list[str]:
    """A line for every key that was set but has no effect in this run."""
    notices = []
    for key, setting in settings.items():
        if _is_default(key, setting.value, cfg, job):
            continue
        reason = _why_inert(key, setting.value, cfg, job)
        if reason is not None:
            notices.append(f"{setting.written or key}={written_as(setting.value)} has no effect here: {reason.en}.")
    return notices


def _why_inert(key: str, value: Any, cfg: Any, job: str) -> Line | None:
    """Why this value can have no effect in this run, if so."""
    row, status = _row_in(cfg, key, value, job), status_of(key, value, job)
    if row is not None:
        return row.reason if _cannot_matter(row, cfg) else None
    if status.kind == "inert":
        return status.why
    idle = (one for one in IDLE.get(job, ()) if any(_matches(pattern, key) for pattern in one.patterns))
    return next((one.reason for one in idle if CONDITIONS[one.when](cfg)), None)


def _row_in(cfg: Any, key: str, value: Any, job: str) -> Pending | None:
    """The row of a value, unless this run serves it."""
    row = _pending_row(key, value, job)
    return None if row is not None and row.served_if is not None and CONDITIONS[row.served_if](cfg) else row


def _pending_row(key: str, value: Any, job: str = "train") -> Pending | None:
    """The first row of a value, then an inert key is inert, then the first row of the key."""
    valued = f"{key}={written_as(value)}"
    for row in PENDING_OF[job]:
        if "=" in row.pattern and value is not None and _matches(row.pattern, valued):
            return row
    if any(_matches(pattern, key) for pattern in INERT_OF[job]):
        return None
    for row in PENDING_OF[job]:
        if "=" not in row.pattern and (_matches(row.pattern, key) or _matches(f"{row.pattern}.*", key)):
            return row
    return None


def _why(row: Pending) -> Line:
    en, zh = f"waits for {row.waits_for}", f"等待：{WAITS[row.waits_for]}"
    if row.reason is not None:
        where = {"cpu": ("on CPU", "在 CPU 上"), "one rank": ("in one process", "单进程时")}.get(
            row.inert_if or "", ("", "")
        )
        en, zh = f"{en}; no effect {where[0]}: {row.reason.en}", f"{zh}；{where[1]}无效：{row.reason.zh}"
        en = en.replace("effect :", "effect otherwise:")
    return Line(en, zh)


def _cannot_matter(row: Pending, cfg: Any) -> bool:
    return row.inert_if is not None and CONDITIONS[row.inert_if](cfg)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.IGNORECASE)


def _matches(pattern: str, key: str) -> bool:
    return _pattern(pattern).fullmatch(key) is not None


def _is_default(key: str, value: Any, cfg: Any, job: str) -> bool:
    return value == _default_of(key, cfg, job)


def _default_of(key: str, cfg: Any, job: str) -> Any:
    """The default of a key in this config: where it follows another key, that key's value."""
    leaf, rest = tree(job).find(key)
    default = leaf.default
    for name in rest.split(".") if rest else ():
        default = default.get(name) if isinstance(default, dict) else None
    if not is_interpolation(default):
        return default
    target = default[2:-1]
    if target.startswith("."):
        target = f"{leaf.path.rpartition('.')[0]}{target}"
    if "${" in target:
        return default
    for name in target.split("."):
        cfg = getattr(cfg, name)
    return cfg
