"""Whether a key acts, is pending (not supported yet), refused (impossible) or inert (no effect).

Tables: job_status.py and idle.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from burnish.config.idle import IDLE
from burnish.config.job_status import INERT_OF, PENDING_OF, REFUSED_OF
from burnish.config.names import Line
from burnish.config.pending import Pending
from burnish.config.refused import Refused
from burnish.config.settings import Setting
from burnish.config.tree import tree
from burnish.config.values import is_interpolation, written_as
from burnish.errors import NotSupportedYet, UserError

Unsupported = Pending | Refused

NO_REASON = Line("", "")


@dataclass(frozen=True)
class Status:
    """acts, pending, refused or inert, with the reason in English and Chinese."""

    kind: str
    why: Line = NO_REASON
    instead: str = ""  # what to type, where it is refused

    def text(self) -> str:
        """The reason in English, with what to type."""
        return f"{self.why.en}. Type: {self.instead}" if self.instead else self.why.en


def status_of(key: str, value: Any = None, job: str = "train") -> Status:
    """The status of a key, or of one value of it, in runs in general."""
    row = _unsupported_row(key, value, job)
    if row is not None:
        return _status(row)
    for pattern, reason in INERT_OF[job].items():
        if _matches(pattern, key):
            return Status("inert", reason)
    return Status("acts")


def status_in(cfg: Any, key: str, value: Any, job: str = "train") -> Status:
    """The status of a value in this run. A default is always supported."""
    row = _unsupported_row_in_run(cfg, key, value, job)
    if row is not None and not _is_inert(row, cfg):
        return Status("acts") if _is_default(key, value, cfg, job) else _status(row)
    reason = _inert_reason(key, value, cfg, job)
    return Status("acts") if reason is None else Status("inert", reason)


def idle_reasons(key: str, job: str = "train") -> list[Line]:
    """The reasons for which an acting key has no effect in some runs, each once."""
    rows = [row for row in IDLE.get(job, ()) if any(_matches(pattern, key) for pattern in row.patterns)]
    return list(dict.fromkeys(row.reason for row in rows))


def pending_keys(job: str = "train") -> list[tuple[str, str]]:
    """Every pending key, or key=value, with the missing feature."""
    keys = [(key, status_of(key, job=job)) for key in tree(job).leaves]
    rows = [(key, status.why.en) for key, status in keys if status.kind == "pending"]
    return rows + [
        (f"{key}={row.pattern.partition('=')[2]}", _why(row).en)
        for row in PENDING_OF[job]
        if "=" in row.pattern
        for key in tree(job).leaves
        if _matches(row.pattern.partition("=")[0], key) and status_of(key, job=job).kind != "pending"
    ]


def check_supported(cfg: Any, settings: Mapping[str, Setting], job: str = "train") -> list[UserError]:
    """An error for every pending or refused key that is not at its default and would have an effect."""
    errors: list[UserError] = []
    for key, setting in settings.items():
        row, written = _unsupported_row_in_run(cfg, key, setting.value, job), setting.written or key
        if row is None or _is_default(key, setting.value, cfg, job) or _is_inert(row, cfg):
            continue
        if isinstance(row, Refused):
            errors.append(UserError(row.why.en, key=written, value=setting.value, hint=row.instead))
        else:
            problem = f"not supported yet ({row.feature.en}); `burnish explain --pending` lists all such keys"
            hint = f"leave it out, or {key}={written_as(_default_of(key, cfg, job))}"
            errors.append(NotSupportedYet(problem, key=written, value=setting.value, hint=hint))
    return errors


def inert_notices(cfg: Any, settings: Mapping[str, Setting], job: str = "train") -> list[str]:
    """A line for every key that is set but has no effect in this run."""
    notices = []
    for key, setting in settings.items():
        if _is_default(key, setting.value, cfg, job):
            continue
        reason = _inert_reason(key, setting.value, cfg, job)
        if reason is not None:
            notices.append(f"{setting.written or key}={written_as(setting.value)} has no effect here: {reason.en}.")
    return notices


def _inert_reason(key: str, value: Any, cfg: Any, job: str) -> Line | None:
    """Why this value has no effect in this run; None if it has one."""
    row, status = _unsupported_row_in_run(cfg, key, value, job), status_of(key, value, job)
    if row is not None:
        return row.reason if _is_inert(row, cfg) else None
    if status.kind == "inert":
        return status.why
    rows = (row for row in IDLE.get(job, ()) if any(_matches(pattern, key) for pattern in row.patterns))
    return next((row.reason for row in rows if row.condition(cfg)), None)


def _unsupported_row_in_run(cfg: Any, key: str, value: Any, job: str) -> Unsupported | None:
    """The row of a value, unless this run supports it."""
    row = _unsupported_row(key, value, job)
    return None if isinstance(row, Pending) and row.supported_if is not None and row.supported_if(cfg) else row


def _unsupported_row(key: str, value: Any, job: str = "train") -> Unsupported | None:
    """Rows of single values come first, then inert keys, then rows of whole keys."""
    rows = (*PENDING_OF[job], *REFUSED_OF[job])
    assignment = f"{key}={written_as(value)}"
    for row in rows:
        if "=" in row.pattern and value is not None and _matches(row.pattern, assignment):
            return row
    if any(_matches(pattern, key) for pattern in INERT_OF[job]):
        return None
    for row in rows:
        if "=" not in row.pattern and (_matches(row.pattern, key) or _matches(f"{row.pattern}.*", key)):
            return row
    return None


def _status(row: Unsupported) -> Status:
    if isinstance(row, Refused):
        return Status("refused", _with_reason(row, row.why), row.instead)
    return Status("pending", _why(row))


def _why(row: Pending) -> Line:
    en, zh = f"not supported yet ({row.feature.en})", f"尚不支持（{row.feature.zh}）"
    if row.supported is not None:
        en, zh = f"{en}, except with {row.supported.en}", f"{zh}，例外：{row.supported.zh}"
    return _with_reason(row, Line(en, zh))


def _with_reason(row: Unsupported, why: Line) -> Line:
    if row.reason is None:
        return why
    return Line(f"{why.en}; otherwise no effect: {row.reason.en}", f"{why.zh}；否则无效：{row.reason.zh}")


def _is_inert(row: Unsupported, cfg: Any) -> bool:
    return row.inert_if is not None and row.inert_if(cfg)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.IGNORECASE)


def _matches(pattern: str, key: str) -> bool:
    return _pattern(pattern).fullmatch(key) is not None


def _is_default(key: str, value: Any, cfg: Any, job: str) -> bool:
    return value == _default_of(key, cfg, job)


def _default_of(key: str, cfg: Any, job: str) -> Any:
    """The default of a key in this config: where it follows another key, that key's value."""
    leaf, rest = tree(job).get(key)
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
