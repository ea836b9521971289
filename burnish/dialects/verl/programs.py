"""verl's programs, each with its job and its base config file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from burnish.config.jobs import JOBS


@dataclass(frozen=True)
class Program:
    """One entry point. `refusal` says why Burnish cannot run it."""

    job: str
    config_name: str = ""  # base config in verl's config tree; "" for Burnish's own commands
    async_mode: str = ""  # async_training.mode of programs that generate on separate devices during training
    refusal: str = ""
    torchrun: bool = False  # whether torchrun sets the number of processes; verl ignores that of the config
    settings: dict[str, Any] = field(default_factory=dict)  # defaults that differ from those of the job in verl
    other_keys: str = ""  # a job whose keys its config also has; they have no effect


_DAPO = Program("train", "dapo_trainer")
_ONE_STEP = Program("train", "one_step_off_ppo_trainer", async_mode="one_step_off")
_FULLY_ASYNC = Program("train", "fully_async_ppo_trainer", async_mode="queue")
_GENERATE = Program("generate", "generation")
_SERVE = Program(  # its config is that of training
    "generate",
    "ppo_trainer",
    settings={
        "data.n_samples": 1,
        "rollout.top_k": -1,
        "rollout.top_p": 1.0,
        "rollout.prompt_length": 512,
        "rollout.response_length": 512,
    },
    other_keys="train",
)
_SFT = Program("sft", "sft_trainer_engine", torchrun=True)

PROGRAMS: dict[str, Program] = {
    "verl.trainer.main_ppo": Program("train", "ppo_trainer"),
    "verl.trainer.main_ppo_sync": Program("train", "ppo_trainer"),
    "verl.trainer.fsdp_sft_trainer": Program("sft", "sft_trainer", torchrun=True),
    "verl.trainer.sft_trainer": _SFT,
    "verl.trainer.sft_trainer_ray": Program("sft", "sft_trainer_engine"),
    "verl.trainer.main_generation": _GENERATE,
    "verl.trainer.main_generation_server": _SERVE,
    "verl.trainer.main_eval": Program("eval", "evaluation"),
    "verl.experimental.one_step_off_policy.main_ppo": _ONE_STEP,
    "verl.experimental.fully_async_policy.fully_async_main": _FULLY_ASYNC,
    "examples.split_placement.main_ppo_split": Program("train", "ppo_trainer"),  # other devices, the same results
    "recipe.transfer_queue.main_ppo": Program("train", "ppo_trainer"),
    "recipe.dapo.main_dapo": _DAPO,
    "recipe.dapo.src.main_dapo": _DAPO,
    "recipe.one_step_off_policy.main_ppo": _ONE_STEP,
    "recipe.one_step_off_policy.async_main_ppo": _ONE_STEP,
    "recipe.fully_async_policy.fully_async_main": _FULLY_ASYNC,
    "recipe.r1.main_eval": Program("eval", "evaluation"),
}
# Programs that recipes copy from verl under the same name.
_COPIED = {"main_eval": PROGRAMS["verl.trainer.main_eval"], "main_generation": _GENERATE}
BURNISH = "burnish"


def find_program(entry: str, argv: Iterable[str] = ()) -> Program | None:
    """Look up the program of an entry (`verl.trainer.main_ppo`, `/x/verl/trainer/main_ppo.py`); None if unknown."""
    if entry == BURNISH:
        job = next((word for word in argv if not word.startswith("-")), "")
        return Program(job) if job in JOBS else None
    name = module_of(entry)
    if name in PROGRAMS:
        return PROGRAMS[name]
    last = name.rpartition(".")[2]
    if name == last:  # a file name without its folder
        return next((program for known, program in PROGRAMS.items() if known.endswith(f".{name}")), None)
    if name.startswith("recipe.") and "main" in last.split("_"):
        return _recipe(name, last)
    return None


def module_of(entry: str) -> str:
    """`/x/verl/verl/trainer/main_ppo.py` is `verl.trainer.main_ppo`."""
    if not entry.endswith(".py"):
        return entry
    parts = list(PurePath(entry).with_suffix("").parts)
    roots = [index for index, part in enumerate(parts) if part in ("verl", "recipe", "examples")]
    return ".".join(parts[roots[-1] :] if roots else parts[-1:])


def _recipe(name: str, last: str) -> Program:
    """A recipe not listed above: its keys are translated, but its own training loop is refused."""
    if last in _COPIED:
        return _COPIED[last]
    why = (
        f"{name} has its own training loop, which is not supported; the report below assumes verl's main_ppo."
        " Type: python3 -m verl.trainer.main_ppo ..."
    )
    return Program("train", "ppo_trainer", refusal=why)
