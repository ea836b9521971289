"""burnish.training: what the command does, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.config import Loaded, load
from burnish.config.tree import to_plain
from burnish.distributed import torchrun
from burnish.log.logger import RunInfo
from burnish.loop.build import build
from burnish.loop.fit import Result, fit
from burnish.loop.memory import out_of_memory_explained
from burnish.loop.restart import restarting
from burnish.loop.run import Run
from burnish.loop.state import resume


def train(
    overrides: Sequence[str] = (),
    *,
    reward: Callable[..., Any] | None = None,
    dataset: Sequence[Mapping[str, Any]] | None = None,
    val_dataset: Sequence[Mapping[str, Any]] | None = None,
    config_path: str | None = None,
    config_name: str | None = None,
) -> Result:
    """Train a policy as the config says.

    `reward` takes the place of custom_reward_function; `dataset` and `val_dataset`, rows in verl's schema, take
    that of data.train_files and data.val_files.
    """
    rows = {"data.train_files": dataset, "data.val_files": val_dataset}
    given = [key for key, value in rows.items() if value is not None]
    loaded = load(overrides, config_path=config_path, config_name=config_name, given=given)
    return train_loaded(loaded, reward, dataset, val_dataset)


def train_loaded(
    loaded: Loaded,
    reward: Callable[..., Any] | None = None,
    dataset: Sequence[Mapping[str, Any]] | None = None,
    val_dataset: Sequence[Mapping[str, Any]] | None = None,
) -> Result:
    """The same from a config that has been read. Where torchrun started several processes, the first runs the loop."""
    torchrun.serve_if_not_main()
    return restarting(loaded, lambda asked: build(asked.cfg, reward, dataset, val_dataset), go)


def go(run: Run, loaded: Loaded) -> Result:
    """From what there is to resume, to the end."""
    resume(run)
    start(run, loaded)
    with out_of_memory_explained(run):
        return fit(run)


def start(run: Run, loaded: Loaded) -> None:
    """Open the loggers, describe the run in its folder, and say what a person should know before it begins."""
    trainer = run.cfg.trainer
    run.folder.describe(loaded.yaml(), device=run.policy.device)
    info = RunInfo(
        trainer.project_name, trainer.experiment_name, run.folder.path, to_plain(loaded.cfg), run.total_steps
    )
    run.loggers.start(info, resume_step=run.step or None)
    for notice in [*loaded.notices, *run.notices, *run.scorer.notices, *promises(run)]:
        run.loggers.note(notice)


def promises(run: Run) -> list[str]:
    """What this run can and cannot guarantee."""
    engine = run.engine.capabilities
    said = []
    if run.sampling.restricted:
        what = ", ".join(run.sampling.biases)
        said.append(f"probability ratios are biased: log-probs are over all tokens, but sampling is bent by {what}")
    if engine.addressed == "token" and engine.invariant:
        said.append("responses depend on the seed, the prompt and the weights alone (invariant engine)")
    elif engine.addressed != "none":
        said.append(
            "the noise of a response depends on the seed and the prompt; its last bits also on what it is batched with"
        )
    else:
        said.append("the engine takes no seed: the same run again gives other responses (docs/engines.md)")
    return [*said, *engine.remarks]
