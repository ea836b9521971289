"""A small single-device MindSpeed RL config and its translation, for tests."""

from __future__ import annotations

import copy
from typing import Any

from burnish.dialects.mindspeed.dialect import MindSpeed
from burnish.dialects.report import Item, Translation

BASE: dict[str, dict[str, Any]] = {
    "megatron_training": {
        "stage": "ray_grpo",
        "global_batch_size": 8,
        "train_iters": 10,
        "save_interval": 5,
        "seq_length": 64,
        "data_path": "./data/packed",
        "dataset_additional_keys": ["labels"],
        "tokenizer_name_or_path": "./model",
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    },
    "actor_config": {"micro_batch_size": 2, "lr": 1e-6, "lr_decay_style": "constant", "finetune": True},
    "rl_config": {
        "mini_batch_size": 4,
        "n_samples_per_prompt": 4,
        "max_prompt_length": 64,
        "actor_resource": {"num_npus": 1},
    },
    "generate_config": {
        "infer_tensor_parallel_size": 1,
        "max_model_len": 128,
        "max_num_seqs": 16,
        "sampling_config": {"max_tokens": 64, "temperature": 1.0, "top_k": -1},
    },
}


def config(*changes: str | tuple[str, Any]) -> dict[str, Any]:
    """BASE with some keys changed: ("rl_config.lam", 0.9), or removed: "rl_config.lam"."""
    changed = copy.deepcopy(BASE)
    for change in changes:
        path, value = (change, None) if isinstance(change, str) else change
        *parents, last = path.split(".")
        node: Any = changed
        for name in parents:
            node = node.setdefault(name, {})
        if isinstance(change, str):
            del node[last]
        else:
            node[last] = value
    return changed


def translate(*changes: str | tuple[str, Any], folder: str = ".") -> Translation:
    return MindSpeed().translate_config(config(*changes), folder)


def items(translation: Translation, theirs: str) -> list[Item]:
    return [item for item in translation.items if item.theirs == theirs]


def refusals(translation: Translation) -> dict[str, str]:
    return {item.theirs: item.why for item in translation.items if item.status == "refused"}
