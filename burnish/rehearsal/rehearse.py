"""Rehearse a translated command."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import Any

from burnish.config import Loaded, load
from burnish.config.status import check_supported, status_in
from burnish.config.values import written_as
from burnish.dialects.report import INERT, PENDING, REFUSED, Item, Translation, is_default, setting_text, source_names
from burnish.errors import UserError, UserErrors
from burnish.rehearsal.plan import ARITHMETIC, DATA, READING, Finding, Plan, Progress, in_user_names, value_of
from burnish.rehearsal.report import ALWAYS, ENGINE, LENGTHS, Rehearsal


def rehearse(
    translation: Translation,
    *,
    steps: int = 1,
    live: bool = False,
    folder: str | Path | None = None,
    trust: bool = False,
    progress: Progress = lambda text: None,
) -> Rehearsal:
    """Run the job of a translated command on stand-ins.

    `folder` keeps models, rows and the run; default: temporary. `progress` is called with what happens next. Without
    `trust`, no code of the model's folder runs, and Python files of the user run in an isolated process.
    """
    if folder is not None:
        return _rehearse(translation, steps, live, Path(folder), trust, progress)
    with tempfile.TemporaryDirectory(prefix="burnish-rehearsal-") as temporary:
        return _rehearse(translation, steps, live, Path(temporary), trust, progress)


def _rehearse(
    translation: Translation, steps: int, live: bool, folder: Path, trust: bool, progress: Progress
) -> Rehearsal:
    start = time.monotonic()
    report = Rehearsal(translation.dialect, translation.job, steps)
    report.refused = [_described(item) for item in translation.items if item.status == REFUSED]
    report.unsupported = [_described(item) for item in translation.items if item.status == PENDING]
    report.inert = [_described(item) for item in translation.items if item.status == INERT and item.explicit]
    user_names = source_names(translation.items)
    try:
        loaded, errors = load_settings(translation.settings, translation.job)
    except UserError as error:
        report.findings = [Finding(READING, in_user_names(each.text(), user_names)) for each in all_errors(error)]
    else:
        settings = {key: setting.value for key, setting in loaded.settings.items()}
        plan = Plan(translation.job, loaded.cfg, dict(settings), folder, user_names, live, trust, progress=progress)
        refused = {item.ours for item in translation.items if item.status == REFUSED}
        for error in errors:
            if error.key not in refused:
                plan.add_finding(ARITHMETIC, error)
        _rehearse_plan(plan, steps)
        report.ran = True
        inert = {item.ours for item in translation.items if item.status == INERT}
        report.left_out = left_out(plan, {key: value for key, value in settings.items() if key not in inert})
        report.findings = plan.findings
        report.stand_ins, report.scaled, report.folded = plan.stand_ins, plan.scaled, plan.folded
        report.dropped, report.not_tested = plan.dropped, plan.not_tested
    report.seconds = time.monotonic() - start
    return report


def _described(item: Item) -> str:
    """A setting as the user typed it, and its explanation."""
    return f"{setting_text(item.theirs, item.value)}: {item.why.removeprefix(f'{item.theirs}: ')}"


def _rehearse_plan(plan: Plan, steps: int) -> None:
    plan.progress("loading torch")
    from burnish.rehearsal.isolated import names_code, run_isolated
    from burnish.rehearsal.run import run_job

    try:
        plan.progress("creating stand-ins for models, rows and rewards")
        _prepare(plan, steps)
    except UserError as error:
        plan.add_finding(READING, error)
        return
    is_isolated = not plan.trust and bool(names_code(plan))
    where = "in an isolated process" if is_isolated else "on this machine"
    plan.progress(f"running {steps} step{'s' if steps > 1 else ''} {where}")
    run_isolated(plan) if is_isolated else run_job(plan)


def _prepare(plan: Plan, steps: int) -> None:
    """Check the row count, then replace models, rows, rewards and tools, and scale the config down to this machine."""
    from burnish.rehearsal.conversations import replace_conversations
    from burnish.rehearsal.folding import fold, missing_features
    from burnish.rehearsal.models import replace_models
    from burnish.rehearsal.rows import replace_rows
    from burnish.rehearsal.scale import scale
    from burnish.rehearsal.scoring import replace_reward

    check_row_count(plan)
    plan.not_tested += ALWAYS[plan.job]
    if not plan.trust:
        _drop_trust(plan)
    model = replace_models(plan)
    replace_rows(plan)
    replace_reward(plan)
    replace_conversations(plan)
    scale(plan, steps, real_tokenizer=model is not None and model.real_tokenizer)
    fold(plan)
    if any("engine" in line for line in plan.folded):
        plan.not_tested.append(ENGINE)
    if model is not None and not model.real_tokenizer:
        plan.not_tested.append(LENGTHS)
    if model is not None and model.family.missing:
        plan.not_tested.append(f"{model.family.missing} of the model")
    plan.not_tested += [f"{name}: its keys were dropped" for name in missing_features(plan)]


def _drop_trust(plan: Plan) -> None:
    """A command that is only looked at cannot allow the code of the model's folder."""
    for key in [key for key, value in plan.settings.items() if key.endswith("trust_remote_code") and value]:
        plan.not_tested.append(f"{plan.user_name(key)}=true: the model's own Python code did not run (--trust runs it)")
        plan.put(key, False)


def left_out(plan: Plan, settings: dict[str, Any]) -> list[str]:
    """The user's settings that the rehearsal ran without and that no other line of the report names."""
    cfg = load(values=plan.settings, job=plan.job, check=False).cfg
    changes = [*plan.stand_ins, *plan.scaled, *plan.folded, *plan.dropped, *plan.not_tested]
    named = set(re.split(r"[=:,() ]+", " ".join(changes)))
    lines = []
    for key in settings:
        before, now = _value_or_none(plan.cfg, key, plan.job), _value_or_none(cfg, key, plan.job)
        if named & {key, plan.user_name(key), str(before)}:
            continue
        status = status_in(cfg, key, now, plan.job)
        if before != now:
            lines.append(f"{plan.user_name(key)}: {written_as(before)} -> {written_as(now)}")
        elif status.kind == INERT and not is_default(key, before, plan.job):
            lines.append(f"{plan.user_name(key)}={written_as(before)}: {status.why.en}")
    return lines


def _value_or_none(cfg: Any, key: str, job: str) -> Any:
    """The value of a key; None where the rehearsal dropped it from a free mapping."""
    try:
        return value_of(cfg, key, job)
    except (KeyError, TypeError):
        return None


def load_settings(settings: dict[str, Any], job: str) -> tuple[Loaded, list[UserError]]:
    """The user's config, and the rules that it breaks. Keys that are not supported are not errors here."""
    try:
        return load(values=settings, job=job), []
    except UserError as error:
        loaded = load(values=settings, job=job, check=False)
        unsupported = {each.text() for each in check_supported(loaded.cfg, loaded.settings, job)}
        return loaded, [each for each in all_errors(error) if each.text() not in unsupported]


def all_errors(error: UserError) -> list[UserError]:
    return error.errors if isinstance(error, UserErrors) else [error]


def check_row_count(plan: Plan) -> None:
    """Find files with fewer rows than a batch has prompts."""
    from burnish.rehearsal.rows import count_rows

    key = "data.train_batch_size"
    if not plan.has(key):
        return
    batch = plan.value(key)
    counts = [count_rows(name, batch) for name in plan.value("data.train_files")]
    known = [count for count in counts if count is not None]
    if len(known) == len(counts) and 0 < sum(known) < batch:
        problem = f"the files have {sum(known)} rows, fewer than one batch"
        plan.add_finding(DATA, UserError(problem, key=key, value=batch))
