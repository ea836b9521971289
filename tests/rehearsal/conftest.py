"""A valid verl command to rehearse, and a file of real rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.dialects.translate import translate_command
from burnish.rehearsal.rehearse import rehearse
from burnish.rehearsal.report import Rehearsal

VALID = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "/elsewhere/gsm8k/train.parquet",
    "data.val_files": "null",
    "data.train_batch_size": 64,
    "data.max_prompt_length": 512,
    "data.max_response_length": 1024,
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B-Instruct",
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 16,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "trainer.n_gpus_per_node": 8,
    "trainer.logger": "[console,wandb]",
}


@pytest.fixture
def command() -> Callable[..., list[str]]:
    """The valid command, with these keys changed."""

    def make(**changes: object) -> list[str]:
        keys = {**VALID, **{key.replace("__", "."): value for key, value in changes.items()}}
        return ["python3", "-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in keys.items())]

    return make


@pytest.fixture
def rehearsed(command: Callable[..., list[str]]) -> Callable[..., Rehearsal]:
    def make(steps: int = 1, folder: Path | None = None, **changes: object) -> Rehearsal:
        # Without trust, a user's file would be imported in another process, which takes longer (tests/security).
        return rehearse(translate_command(command(**changes)), steps=steps, folder=folder, trust=True)

    return make


@pytest.fixture
def gsm8k(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of rows in verl's schema."""

    def make(count: int = 80, **columns: object) -> Path:
        path = tmp_path / "train.jsonl"
        rows = [
            {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
                "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
                "extra_info": {"index": number},
                **columns,
            }
            for number in range(count)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return make
