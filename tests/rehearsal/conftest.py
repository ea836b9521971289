"""Commands to rehearse: a short one of verl's that is right, with real rows of a few prompts beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.dialects.translate import translate_command
from burnish.rehearsal.rehearse import rehearse
from burnish.rehearsal.report import Rehearsal

RIGHT = {
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
def words() -> Callable[..., list[str]]:
    """A verl command: the right one, with these keys changed."""

    def make(**changed: object) -> list[str]:
        keys = {**RIGHT, **{key.replace("__", "."): value for key, value in changed.items()}}
        return ["python3", "-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in keys.items())]

    return make


@pytest.fixture
def rehearsed(words: Callable[..., list[str]]) -> Callable[..., Rehearsal]:
    def make(steps: int = 1, folder: Path | None = None, **changed: object) -> Rehearsal:
        return rehearse(translate_command(words(**changed)), steps=steps, folder=folder)

    return make


@pytest.fixture
def gsm8k(tmp_path: Path) -> Callable[..., Path]:
    """Rows of a file, in verl's schema."""

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
