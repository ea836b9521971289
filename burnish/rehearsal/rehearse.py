"""Rehearse a translated command."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from burnish.config import Loaded, load
from burnish.config.status import check_pending
from burnish.dialects.report import INERT, REFUSED, Item, Translation, source_names
from burnish.errors import UserError, UserErrors
from burnish.rehearsal.plan import ARITHMETIC, DATA, READING, Finding, Plan, in_user_names
from burnish.rehearsal.report import ALWAYS, ENGINE, LENGTHS, Rehearsal


def rehearse(
    translation: Translation, *, steps: int = 1, live: bool = False, folder: str | Path | None = None
) -> Rehearsal:
    """Run the job of a translated command on stand-ins. `folder` keeps models, rows and the run; default: temporary."""
    if folder is not None:
        return _rehearse(translation, steps, live, Path(folder))
    with tempfile.TemporaryDirectory(prefix="burnish-rehearsal-") as temporary:
        return _rehearse(translation, steps, live, Path(temporary))


def _rehearse(translation: Translation, steps: int, live: bool, folder: Path) -> Rehearsal:
    start = time.monotonic()
    report = Rehearsal(translation.dialect, translation.job, steps)
    report.refused = [_described(item) for item in translation.items if item.status == REFUSED]
    report.inert = [_described(item) for item in translation.items if item.status == INERT and item.explicit]
    user_names = source_names(translation.items)
    try:
        loaded, errors = load_settings(translation.settings, translation.job)
    except UserError as error:
        report.findings = [Finding(READING, in_user_names(each.text(), user_names)) for each in all_errors(error)]
    else:
        settings = {key: setting.value for key, setting in loaded.settings.items()}
        plan = Plan(translation.job, loaded.cfg, settings, folder, user_names, live)
        for error in errors:
            plan.add_finding(ARITHMETIC, error)
        _rehearse_plan(plan, steps)
        report.ran = True
        report.findings = plan.findings
        report.stand_ins, report.scaled, report.folded = plan.stand_ins, plan.scaled, plan.folded
        report.dropped, report.not_tested = plan.dropped, plan.not_tested
    report.seconds = time.monotonic() - start
    return report


def _described(item: Item) -> str:
    """A setting as the user typed it, and its explanation."""
    separator = " " if item.theirs.startswith("-") else "="
    typed = item.theirs if item.value is None else f"{item.theirs}{separator}{item.value}"
    return f"{typed}: {item.why.removeprefix(f'{item.theirs}: ')}"


def _rehearse_plan(plan: Plan, steps: int) -> None:
    from burnish.rehearsal.run import run_job  # loads torch

    try:
        _prepare(plan, steps)
    except UserError as error:
        plan.add_finding(READING, error)
    else:
        run_job(plan)


def _prepare(plan: Plan, steps: int) -> None:
    """Check the row count, then replace models, rows and rewards, and scale the config down to this machine."""
    from burnish.rehearsal.folding import fold, missing_features
    from burnish.rehearsal.models import replace_models
    from burnish.rehearsal.rows import replace_rows
    from burnish.rehearsal.scale import scale
    from burnish.rehearsal.scoring import replace_reward

    check_row_count(plan)
    plan.not_tested += ALWAYS[plan.job]
    model = replace_models(plan)
    replace_rows(plan)
    replace_reward(plan)
    scale(plan, steps, real_tokenizer=model is not None and model.real_tokenizer)
    fold(plan)
    if any("engine" in line for line in plan.folded):
        plan.not_tested.append(ENGINE)
    if model is not None and not model.real_tokenizer:
        plan.not_tested.append(LENGTHS)
    if model is not None and model.family.missing:
        plan.not_tested.append(f"{model.family.missing} of the model")
    plan.not_tested += [f"{name}: its keys were dropped" for name in missing_features(plan)]


def load_settings(settings: dict[str, Any], job: str) -> tuple[Loaded, list[UserError]]:
    """The user's config, and the rules that it breaks. Keys that are not supported yet are not errors here."""
    try:
        return load(values=settings, job=job), []
    except UserError as error:
        loaded = load(values=settings, job=job, check=False)
        pending = {each.text() for each in check_pending(loaded.cfg, loaded.settings, job)}
        return loaded, [each for each in all_errors(error) if each.text() not in pending]


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
