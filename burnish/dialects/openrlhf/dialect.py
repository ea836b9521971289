"""OpenRLHF: `python -m openrlhf.cli.train_ppo_ray --pretrain ...`, also behind ray job submit or deepspeed."""

from __future__ import annotations

import os
from typing import Any

from burnish.dialects.invocation import Invocation
from burnish.dialects.openrlhf import ppo, sft
from burnish.dialects.report import Translation
from burnish.errors import UserError

PACKAGE = "openrlhf.cli."
PROGRAMS = {"train_ppo_ray": ppo.translate, "train_ppo": ppo.translate, "train_sft": sft.translate}
_PREFERENCES = "preference training is not part of Burnish"
_REWARD_MODELS = "training reward models is not part of Burnish"
ELSEWHERE = {
    "train_dpo": _PREFERENCES,
    "train_kto": _PREFERENCES,
    "train_rm": _REWARD_MODELS,
    "train_prm": _REWARD_MODELS,
    "train_kd": "distillation is not part of Burnish",
    "batch_inference": "its flags are not read: `burnish generate` answers a file of prompts, from keys of its own",
    "serve_rm": "a reward server is started by OpenRLHF: give its address as --remote_rm_url",
    "interactive_chat": "a chat is not part of Burnish",
    "lora_combiner": "its flags are not read: `burnish export` merges adapters",
}


class OpenRLHF:
    """The Dialect of OpenRLHF. It has no config files."""

    def knows_command(self, invocation: Invocation) -> bool:
        return program_of(invocation.entry) is not None

    def knows_config(self, config: dict[str, Any]) -> bool:
        return False

    def read_command(self, invocation: Invocation, folder: str = ".") -> Translation:
        program = program_of(invocation.entry)
        if program not in PROGRAMS:
            problem = ELSEWHERE.get(program or "", "no such program of OpenRLHF is known here")
            raise UserError(problem, key=invocation.entry, allowed=[f"{PACKAGE}{name}" for name in PROGRAMS])
        return PROGRAMS[program](invocation)

    def read_config(self, config: dict[str, Any], folder: str = ".", overrides: tuple[str, ...] = ()) -> Translation:
        raise UserError("OpenRLHF reads no config files: give its command line")


def program_of(entry: str) -> str | None:
    """openrlhf.cli.train_ppo_ray, or the file of that name in OpenRLHF's source."""
    if entry.startswith(PACKAGE):
        return entry.removeprefix(PACKAGE)
    folders, file = os.path.split(entry.replace("\\", "/"))
    if file.endswith(".py") and folders.endswith("openrlhf/cli"):
        return file.removesuffix(".py")
    return None
