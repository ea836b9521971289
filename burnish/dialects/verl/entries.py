"""The programs of verl: which job each is, and which config file it starts from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from burnish.config.jobs import JOBS


@dataclass(frozen=True)
class Program:
    """One entry point. `refused` says why its loop cannot be had here."""

    job: str
    config_name: str = ""  # the file of verl's tree that it starts from; "" for Burnish's own commands
    ahead: str = ""  # async_training.mode, where it trains beside an engine with devices of its own
    refused: str = ""


_DAPO = Program("train", "dapo_trainer")
_ONE_STEP = Program("train", "one_step_off_ppo_trainer", ahead="one_step_off")
_FULLY_ASYNC = Program("train", "fully_async_ppo_trainer", ahead="queue")
_GENERATE = Program("generate", "generation")
_SFT = Program("sft", "sft_trainer_engine")

PROGRAMS: dict[str, Program] = {
    "verl.trainer.main_ppo": Program("train", "ppo_trainer"),
    "verl.trainer.main_ppo_sync": Program("train", "ppo_trainer"),
    "verl.trainer.fsdp_sft_trainer": Program("sft", "sft_trainer"),
    "verl.trainer.sft_trainer": _SFT,
    "verl.trainer.sft_trainer_ray": _SFT,
    "verl.trainer.main_generation": _GENERATE,
    "verl.trainer.main_generation_server": _GENERATE,
    "verl.trainer.main_eval": Program("eval", "evaluation"),
    "verl.experimental.one_step_off_policy.main_ppo": _ONE_STEP,
    "verl.experimental.fully_async_policy.fully_async_main": _FULLY_ASYNC,
    "recipe.dapo.main_dapo": _DAPO,
    "recipe.dapo.src.main_dapo": _DAPO,
    "recipe.one_step_off_policy.main_ppo": _ONE_STEP,
    "recipe.fully_async_policy.fully_async_main": _FULLY_ASYNC,
    "recipe.r1.main_eval": Program("eval", "evaluation"),
}
# What recipes that are not above call their copies of these programs.
_COPIES = {"main_eval": PROGRAMS["verl.trainer.main_eval"], "main_generation": _GENERATE}
OWN = "burnish"


def find_program(entry: str, argv: Iterable[str] = ()) -> Program | None:
    """The program of an entry (`verl.trainer.main_ppo`, `/x/verl/trainer/main_ppo.py`), if it is one of verl's."""
    if entry == OWN:
        job = next((word for word in argv if not word.startswith("-")), "")
        return Program(job) if job in JOBS else None
    name = module_of(entry)
    if name in PROGRAMS:
        return PROGRAMS[name]
    last = name.rpartition(".")[2]
    if name == last:  # the file alone, from within its folder
        return next((program for known, program in PROGRAMS.items() if known.endswith(f".{name}")), None)
    if name.startswith("recipe.") and last.startswith("main"):
        return _recipe(name, last)
    return None


def module_of(entry: str) -> str:
    """`/x/verl/verl/trainer/main_ppo.py` is `verl.trainer.main_ppo`."""
    if not entry.endswith(".py"):
        return entry
    parts = list(PurePath(entry).with_suffix("").parts)
    roots = [index for index, part in enumerate(parts) if part in ("verl", "recipe")]
    return ".".join(parts[roots[-1] :] if roots else parts[-1:])


def _recipe(name: str, last: str) -> Program:
    """A recipe that is not in the table: its keys are read, but a training loop of its own is refused."""
    if last in _COPIES:
        return _COPIES[last]
    why = (
        f"{name} is a loop of its own, which is not here; with verl's own loop the same keys mean what stands below."
        " Type: python3 -m verl.trainer.main_ppo ..."
    )
    return Program("train", "ppo_trainer", refused=why)
