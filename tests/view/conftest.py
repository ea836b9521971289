"""A run folder as a run leaves it: written by the code that runs use, without a model."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
import torch

from burnish.batch import Batch, Ragged
from burnish.demo.tiny import make_tokenizer
from burnish.log.folder import dump_rollouts
from burnish.log.timeline import Timeline
from burnish.log.tokens import TokenWriter

NUM_STEPS = 4


def make_batch(seed: int = 0, num_rows: int = 4, length: int = 6) -> Batch:
    """A batch after a step, with ragged responses; the second token of each is the environment's."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([length + row % 3 for row in range(num_rows)])
    total, start = int(lengths.sum()), time.time()
    mask = torch.ones(total)
    mask[lengths.cumsum(0) - lengths + 1] = 0

    def column() -> Ragged:
        return Ragged(torch.randn(total, generator=generator), lengths)

    return Batch(
        prompt_ids=Ragged.of([[5, 6, 7] for _ in range(num_rows)], torch.int64),
        responses=Ragged(torch.randint(3, 12, (total,), generator=generator), lengths),
        response_mask=Ragged(mask, lengths),
        rollout_log_probs=column(),
        old_log_probs=column(),
        entropys=column(),
        advantages=column(),
        token_level_scores=column(),
        weight_version=Ragged(torch.where(mask > 0, 3, -1), lengths),
        generation_time=[(start + row, start + row + 0.5) for row in range(num_rows)],
        segments=[
            [(0, start + row, 0.1), (1, start + row + 0.1, 0.2), (2, start + row + 0.3, 0.2)][: row + 1]
            for row in range(num_rows)
        ],
    )


def record(step: int, row: int, **more: object) -> dict[str, object]:
    """A record as in rollouts/{step}.jsonl."""
    turns = [
        {"role": "assistant", "text": "let me see", "reward": None, "tool_calls": [{"name": "add"}], "latency": 0.0},
        {"role": "tool", "text": "7", "reward": 0.5, "tool_calls": [], "latency": 0.25},
    ]
    return {
        "input": f"what is {row}+{step}?",
        "output": f"the answer is {row + step}",
        "gts": str(row + step),
        "score": float(row % 2),
        "uid": f"group-{row // 2}",
        "sample": row % 2,
        "finish_reason": "stop" if row % 3 else "length",
        "data_source": "sums",
        "turns": turns,
        "acc": row % 2 == 1,
    } | more


@pytest.fixture
def run_folder(tmp_path):
    """tmp_path/run: four steps of four trajectories, finished."""
    folder = tmp_path / "run"
    folder.mkdir()
    writer = TokenWriter(folder / "tokens", 3, make_tokenizer("0123456789+"))
    timeline = Timeline(folder / "timeline.jsonl")
    lines = []
    for step in range(1, NUM_STEPS + 1):
        start = time.time() - 2
        workers = {
            f"trainer rank {rank} of 2": [("gen", start, 1.5), ("update_actor", start + 1.5, 0.4)] for rank in (0, 1)
        }
        timeline.add(step, [("gen", start, 1.5), ("step", start, 2.0)], NUM_STEPS, workers)
        batch = make_batch(step)
        dump_rollouts(folder / "rollouts", step, [record(step, row) for row in range(len(batch))])
        writer.record(step, batch)
        metrics = {"critic/score/mean": step / 4, "timing_s/step": 2.0, "timing_s/gen": 1.5, "actor/grad_norm": 1.0}
        lines.append(json.dumps({"step": step, "data": metrics}) + "\n")
    writer.close()
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "notes.txt").write_text("a note\n")
    (folder / "command.txt").write_text("burnish train\n")
    (folder / "environment.json").write_text('{"burnish": "0.2.0"}\n')
    (folder / "config.yaml").write_text("trainer:\n  seed: 7\n  total_training_steps: 4\n")
    (folder / "finished.json").write_text('{"step": 4, "total_steps": 4}\n')
    (folder / "global_step_4").mkdir()
    (folder / "global_step_4" / "manifest.json").write_text("{}")
    (folder / "latest_checkpointed_iteration.txt").write_text("4")
    return folder


@pytest.fixture
def tools():
    return SimpleNamespace(make_batch=make_batch, record=record, num_steps=NUM_STEPS)
