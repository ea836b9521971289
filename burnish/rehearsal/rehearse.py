"""rehearse: from a translated command to a verdict."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from burnish.config import Loaded, load
from burnish.config.status import check_pending
from burnish.dialects.report import INERT, REFUSED, Item, Translation, source_names
from burnish.errors import UserError, UserErrors
from burnish.rehearsal.plan import ARITHMETIC, DATA, READING, Finding, Plan, in_words
from burnish.rehearsal.report import ALWAYS, ENGINE, LENGTHS, Rehearsal


def rehearse(
    translation: Translation, *, steps: int = 1, live: bool = False, folder: str | Path | None = None
) -> Rehearsal:
    """Run the job of a translated command on stand-ins. `folder` keeps what was made; by default it is thrown away."""
    if folder is not None:
        return _rehearse(translation, steps, live, Path(folder))
    with tempfile.TemporaryDirectory(prefix="burnish-rehearsal-") as made:
        return _rehearse(translation, steps, live, Path(made))


def _rehearse(translation: Translation, steps: int, live: bool, folder: Path) -> Rehearsal:
    began = time.monotonic()
    report = Rehearsal(translation.dialect, translation.job, steps)
    report.refused = [_told(item) for item in translation.items if item.status == REFUSED]
    report.inert = [_told(item) for item in translation.items if item.status == INERT and item.explicit]
    words = source_names(translation.items)
    try:
        asked, broken = read_settings(translation.settings, translation.job)
    except UserError as error:
        report.findings = [Finding(READING, in_words(one.text(), words)) for one in each(error)]
    else:
        plan = _plan(translation, asked, words, folder, live)
        for error in broken:
            plan.find(ARITHMETIC, error)
        _rehearse_plan(plan, steps)
        report.ran = True
        report.findings = plan.findings
        report.stand_ins, report.scaled, report.folded = plan.stand_ins, plan.scaled, plan.folded
        report.dropped, report.not_tested = plan.dropped, plan.not_tested
    report.seconds = time.monotonic() - began
    return report


def _told(item: Item) -> str:
    """A setting as the user typed it, and what is to be known about it."""
    apart = " " if item.theirs.startswith("-") else "="
    typed = item.theirs if item.value is None else f"{item.theirs}{apart}{item.value}"
    return f"{typed}: {item.why.removeprefix(f'{item.theirs}: ')}"


def _plan(translation: Translation, asked: Loaded, words: dict[str, str], folder: Path, live: bool) -> Plan:
    settings = {key: setting.value for key, setting in asked.settings.items()}
    return Plan(translation.job, asked.cfg, settings, folder, words, live)


def _rehearse_plan(plan: Plan, steps: int) -> None:
    from burnish.rehearsal.run import run_job  # torch is loaded only for what can be read

    try:
        _prepare(plan, steps)
    except UserError as error:
        plan.find(READING, error)
    else:
        run_job(plan)


def _prepare(plan: Plan, steps: int) -> None:
    """Everything in its place: checks first, then models, rows, rewards, numbers, machines."""
    from burnish.rehearsal.folded import fold, waits
    from burnish.rehearsal.models import place_models
    from burnish.rehearsal.rows import place_rows
    from burnish.rehearsal.scale import scale
    from burnish.rehearsal.scoring import place_reward

    check_enough_rows(plan)
    plan.not_tested += ALWAYS[plan.job]
    model = place_models(plan)
    place_rows(plan)
    place_reward(plan)
    scale(plan, steps, own_tokenizer=model is not None and model.own_tokenizer)
    fold(plan)
    if any("engine" in line for line in plan.folded):
        plan.not_tested.append(ENGINE)
    if model is not None and not model.own_tokenizer:
        plan.not_tested.append(LENGTHS)
    if model is not None and model.family.without:
        plan.not_tested.append(f"{model.family.without} of the model")
    plan.not_tested += [f"{name}: its keys were dropped" for name in waits(plan)]


def read_settings(settings: dict[str, Any], job: str) -> tuple[Loaded, list[UserError]]:
    """The config as it was asked for, and the rules across keys that it breaks; what is only pending is told later."""
    try:
        return load(values=settings, job=job), []
    except UserError as error:
        asked = load(values=settings, job=job, check=False)
        later = {one.text() for one in check_pending(asked.cfg, asked.settings, job)}
        return asked, [one for one in each(error) if one.text() not in later]


def each(error: UserError) -> list[UserError]:
    return error.errors if isinstance(error, UserErrors) else [error]


def check_enough_rows(plan: Plan) -> None:
    """A step needs as many prompts as the files have at least."""
    from burnish.rehearsal.rows import count_rows

    key = "data.train_batch_size"
    if not plan.has(key):
        return
    batch = plan.value(key)
    counts = [count_rows(name, batch) for name in plan.value("data.train_files")]
    if counts and None not in counts and 0 < sum(counts) < batch:
        plan.find(DATA, UserError(f"the files have {sum(counts)} rows, which is no full batch", key=key, value=batch))
