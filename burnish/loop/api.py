"""burnish.train: what the command does, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.config import Loaded, Overrides, load
from burnish.config.tree import to_plain
from burnish.distributed import torchrun
from burnish.log.console import say
from burnish.log.folder import RunFolder
from burnish.log.logger import RunInfo
from burnish.loop.build import build
from burnish.loop.finish import AlreadyFinished, Result
from burnish.loop.fit import fit
from burnish.loop.memory import explaining_out_of_memory
from burnish.loop.restart import restarting
from burnish.loop.run import Run
from burnish.loop.state import resume
from burnish.loop.stop import naming_last_checkpoint


def train(
    overrides: Overrides = (),
    *,
    reward: Callable[..., Any] | None = None,
    dataset: Sequence[Mapping[str, Any]] | None = None,
    val_dataset: Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    environment: Any = None,
    config_path: str | None = None,
    config_name: str | None = None,
) -> Result:
    """Train a policy: `burnish train` from Python.

    Overrides are a mapping (nested, or with dotted keys), a list of strings, or one string. `reward` replaces
    custom_reward_function; `dataset` and `val_dataset`, rows in verl's schema, replace data.train_files and
    data.val_files. `tools` are functions that the model may call, with type hints and a docstring.
    `environment` is a class with reset, step and close: every conversation takes place in one (docs/agents.md).
    """
    rows = {"data.train_files": dataset, "data.val_files": val_dataset}
    given = [key for key, value in rows.items() if value is not None]
    loaded = load(overrides, config_path=config_path, config_name=config_name, given=given)
    return train_loaded(loaded, reward, dataset, val_dataset, tools, environment)


def train_loaded(
    loaded: Loaded,
    reward: Callable[..., Any] | None = None,
    dataset: Sequence[Mapping[str, Any]] | None = None,
    val_dataset: Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    environment: Any = None,
) -> Result:
    """The same from a loaded config. Under torchrun, the first process runs the loop and the others serve it."""
    torchrun.serve_if_not_main()
    folder = RunFolder(loaded.cfg.trainer.default_local_dir)

    def build_run(current: Loaded) -> Run:
        return build(current.cfg, reward, dataset, val_dataset, tools, environment, stop_if_finished=True)

    with folder.locked(), naming_last_checkpoint(folder.path):
        try:
            return restarting(loaded, build_run, go, lambda run: run.recorder)
        except AlreadyFinished as finished:
            say(finished.text)
            return finished.result


def go(run: Run, loaded: Loaded) -> Result:
    """Resume if there is a checkpoint, then train to the end."""
    resume(run)
    start(run, loaded)
    with explaining_out_of_memory(run):
        return fit(run)


def start(run: Run, loaded: Loaded) -> None:
    """Start the loggers, describe the run in its folder, and log the notices."""
    recorder = run.recorder
    trainer = recorder.trainer
    if not trainer.val_only:
        recorder.folder.finished.unlink(missing_ok=True)
    recorder.folder.describe(loaded.yaml(), device=run.learner.policy.device)
    info = RunInfo(
        trainer.project_name, trainer.experiment_name, recorder.folder.path, to_plain(loaded.cfg), run.total_steps
    )
    recorder.loggers.start(info, resume_step=run.step or None)
    reward_notices = run.rollout.scorer.scorer.notices
    for notice in [*loaded.notices, *recorder.notices, *reward_notices, *guarantees(run)]:
        recorder.loggers.note(notice)


def guarantees(run: Run) -> list[str]:
    """What this run can and cannot guarantee about its samples."""
    engine, sampling = run.rollout.engine.capabilities, run.rollout.sampling
    notices = []
    if sampling.restricted:
        biases = ", ".join(sampling.biases)
        notices.append(
            f"probability ratios are biased: log-probs cover the full vocabulary, but {biases} restrict sampling"
        )
    if engine.addressed == "token" and engine.invariant:
        notices.append(
            "deterministic rollout: responses depend only on seed, prompt and weights (rollout.invariant=true)"
        )
    elif engine.addressed != "none":
        notices.append(
            "sampling noise depends only on seed and prompt; the last bits of log-probs also on the batch composition"
        )
    else:
        notices.append("the engine takes no seed: repeating the run gives other responses (docs/engines.md)")
    return [*notices, *engine.remarks]
