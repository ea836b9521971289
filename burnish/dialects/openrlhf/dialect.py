"""OpenRLHF: `python -m openrlhf.cli.train_ppo_ray --pretrain ...`, also started by ray job submit or deepspeed."""

from __future__ import annotations

import os
from typing import Any

from burnish.dialects.invocation import Invocation
from burnish.dialects.openrlhf import ppo, sft
from burnish.dialects.report import Translation
from burnish.errors import NotSupportedYet, UserError

PACKAGE = "openrlhf.cli."
PROGRAMS = {"train_ppo_ray": ppo.translate, "train_ppo": ppo.translate, "train_sft": sft.translate}
_PREFERENCES = "preference training is not supported yet"
_REWARD_MODELS = "training reward models is not supported yet"
UNSUPPORTED_PROGRAMS = {
    "train_dpo": _PREFERENCES,
    "train_kto": _PREFERENCES,
    "train_rm": _REWARD_MODELS,
    "train_prm": _REWARD_MODELS,
    "train_kd": "distillation is not supported yet",
    "batch_inference": "its flags are not translated yet; use `burnish generate` with Burnish keys",
    "serve_rm": "start the reward server with OpenRLHF, and pass its address as --remote_rm_url",
    "interactive_chat": "interactive chat is not supported yet",
    "lora_combiner": "its flags are not translated yet; use `burnish export` to merge adapters",
}


class OpenRLHF:
    """Dialect of OpenRLHF, which has no config files."""

    def knows_command(self, invocation: Invocation) -> bool:
        return program_of(invocation.entry) is not None

    def knows_config(self, config: dict[str, Any]) -> bool:
        return False

    def translate_command(self, invocation: Invocation, folder: str = ".") -> Translation:
        program = program_of(invocation.entry)
        programs = [f"{PACKAGE}{name}" for name in PROGRAMS]
        if program in UNSUPPORTED_PROGRAMS:
            raise NotSupportedYet(UNSUPPORTED_PROGRAMS[program], key=invocation.entry, allowed=programs)
        if program not in PROGRAMS:
            raise UserError("unknown OpenRLHF program", key=invocation.entry, allowed=programs)
        return PROGRAMS[program](invocation)

    def translate_config(
        self, config: dict[str, Any], folder: str = ".", overrides: tuple[str, ...] = ()
    ) -> Translation:
        raise UserError("OpenRLHF has no config files; pass its command line")


def program_of(entry: str) -> str | None:
    """The program name of openrlhf.cli.train_ppo_ray, or of its file in OpenRLHF's source tree."""
    if entry.startswith(PACKAGE):
        return entry.removeprefix(PACKAGE)
    folders, file = os.path.split(entry.replace("\\", "/"))
    if file.endswith(".py") and folders.endswith("openrlhf/cli"):
        return file.removesuffix(".py")
    return None
