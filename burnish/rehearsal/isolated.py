"""Run a rehearsal that imports Python files of the user in an isolated process: no network, no secrets, few files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.rehearsal.plan import RUN, Finding, Plan
from burnish.reward.sandbox.python_call import CallFailed, Progress, call_isolated, can_isolate
from burnish.untrusted import is_private_path, is_project_folder, load_yaml, read_text
from burnish.user_code import is_user_path

SECONDS = 3600.0
# Keys of other files that name classes to import.
_CODE_KEYS = ("external_lib", "tool_config_path", "interaction_config_path", "agent_loop_config_path")
# The whole process is isolated; processes in it cannot be isolated once more.
_INSIDE = {"sandbox.allow_weak": True, "reward.isolate": False, "reward.network": True}


def names_code(plan: Plan) -> list[str]:
    """`key=value` of every setting that makes the run import Python files."""
    return [
        f"{plan.user_name(key)}={value}"
        for key, value in plan.settings.items()
        if (value and key.endswith(_CODE_KEYS)) or any(map(_is_code, _texts(value)))
    ]


def _is_code(text: str) -> bool:
    return is_user_path(text) or text.startswith("pkg://") or text.endswith(".py")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


def run_isolated(plan: Plan) -> None:
    """Run the plan's job; every error becomes a finding."""
    if not can_isolate():
        problem = f"not run: this machine cannot isolate the code of others ({', '.join(names_code(plan))})"
        plan.add_finding(RUN, UserError(problem, hint="burnish rehearse --trust, if you trust that code"))
        return
    settings = dict(plan.settings) | {key: value for key, value in _INSIDE.items() if plan.has(key)}
    arguments = {
        "job": plan.job,
        "settings": settings,
        "folder": str(plan.folder),
        "user_names": plan.user_names,
        "live": plan.live,
        "synthetic_rows": plan.synthetic_rows,
    }
    try:
        answer = call_isolated(
            "burnish.rehearsal.isolated:run_plan",
            arguments,
            readable=visible_paths(plan),
            writable=[plan.folder],
            network=plan.live,
            seconds=SECONDS,
            progress=plan.progress,
        )
    except CallFailed as error:
        plan.add_finding(RUN, error.problem)
        return
    for where, text, breaks in answer:
        plan.findings.append(Finding(str(where), str(text), bool(breaks)))


def run_plan(
    job: str,
    settings: dict[str, Any],
    folder: str,
    user_names: dict[str, str],
    live: bool,
    synthetic_rows: bool,
    progress: Progress,
) -> list[tuple[str, str, bool]]:
    """What the isolated process calls; returns the findings."""
    from burnish.config import load
    from burnish.rehearsal.run import run_job

    cfg = load(values=settings, job=job, check=False).cfg
    plan = Plan(job, cfg, settings, Path(folder), user_names, live, synthetic_rows=synthetic_rows, progress=progress)
    run_job(plan)
    return [(finding.where, finding.text, finding.breaks) for finding in plan.findings]


def visible_paths(plan: Plan) -> list[Path]:
    """The current folder, the folders of the user's Python files, and every other path that the settings name."""
    paths = [Path.cwd()]
    for text in {text for value in plan.settings.values() for text in _texts(value)}:
        paths += _visible(text, Path())
    for path in [path for path in paths if path.suffix in (".yaml", ".yml") and path.is_file()]:
        for text in _texts(_yaml_content(path)):  # tools and agents of others' files are named there
            paths += _visible(text, path.parent)
    return [path for path in dict.fromkeys(paths) if not path.is_dir() or is_project_folder(path.resolve())]


def _visible(text: str, folder: Path) -> list[Path]:
    """The path that a setting names, and the folder of a Python file; nothing where it names none."""
    name = (text.rpartition(":")[0] if is_user_path(text) else text).removeprefix("file://")
    if not name or "\n" in name or len(name) > 4096:
        return []
    path = folder / Path(name).expanduser()
    if not os.path.exists(path) or is_private_path(path):
        return []
    return [path.absolute(), *([path.absolute().parent] if path.suffix == ".py" else [])]


def _yaml_content(path: Path) -> Any:
    try:
        return load_yaml(read_text(path))
    except (UserError, OSError):  # reported where the file is used
        return None
