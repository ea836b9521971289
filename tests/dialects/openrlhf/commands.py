"""OpenRLHF commands and their translations, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.dialects.invocation import Invocation
from burnish.dialects.openrlhf.dialect import OpenRLHF

SHARED = Path(__file__).parents[4] / "shared"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
# A valid run on one GPU.
GOOD = "--pretrain m --prompt_data d.jsonl --remote_rm_url r.py --actor_num_gpus_per_node 1 --ref_num_gpus_per_node 1"


def shared(*names):
    path = SHARED.joinpath(*names)
    if not path.exists():
        pytest.skip("shared folder is not here")
    return path


def translate(*flags, program="train_ppo_ray", processes=None):
    """Translate flags, each a text that is split at spaces or a list of words."""
    words = [word for part in flags for word in (part.split() if isinstance(part, str) else part)]
    return OpenRLHF().translate_command(Invocation(f"openrlhf.cli.{program}", tuple(words), {}, processes or {}))


def good(*flags):
    return translate(GOOD, *flags)


def refused(translation):
    return {item.theirs: item.why for item in translation.items if item.status == "refused"}


def items(translation, theirs):
    return [item for item in translation.items if item.theirs == theirs]


def cases():
    lines = shared("cases", "openrlhf.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
