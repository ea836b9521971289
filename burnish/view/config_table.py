"""The settings of runs as a table: changed keys first, then keys in which the runs differ, then the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.config.explain import describe
from burnish.config.tree import tree
from burnish.config.values import is_interpolation, written_as
from burnish.errors import UserError
from burnish.view.runs import RunReader

MAX_VALUE = 2000  # characters


def config_table(runs: Sequence[RunReader], lang: str = "en") -> dict[str, Any]:
    """Rows {key, values, default, is_changed, differs, doc} for the keys of these runs' config.yaml."""
    configs = [run.config() for run in runs]
    job = "sft" if configs and "model" in configs[0] and "actor_rollout_ref" not in configs[0] else "train"
    leaves = tree(job).leaves
    rows = []
    for key, leaf in leaves.items():
        values = [_value(config, key) for config in configs]
        if all(value is _MISSING for value in values):
            continue
        texts = ["" if value is _MISSING else _written(value) for value in values]
        default = None if is_interpolation(leaf.default) else _written(leaf.default)
        is_changed = default is not None and any(text != default for text in texts)
        differs = len(set(texts)) > 1
        row = {"key": key, "values": texts, "default": default, "is_changed": is_changed, "differs": differs}
        rows.append(row | {"doc": _doc(key, lang, job) if is_changed or differs else ""})
    # Keys without a default of their own follow others: what they follow comes first.
    rows.sort(key=lambda row: (not row["differs"], not row["is_changed"], row["default"] is None))
    return {"runs": [run.name for run in runs], "rows": rows}


class _Missing:
    """The key is not in the file."""


_MISSING = _Missing()


def _value(config: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(config, dict) or part not in config:
            return _MISSING
        config = config[part]
    return config


def _written(value: Any) -> str:
    try:
        return written_as(value)[:MAX_VALUE]
    except (UserError, TypeError, ValueError):
        return str(value)[:MAX_VALUE]


def _doc(key: str, lang: str, job: str) -> str:
    return describe(key, "zh" if lang == "zh" else "en", job).doc
