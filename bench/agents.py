"""Conversations with tools on the built-in engine: 4,096 conversations of 8 turns over 1,024 batch slots.

    python bench/agents.py --peers FOLDER --peer vllm=TOKENS_PER_SECOND    # on a machine with a CUDA device
    python bench/agents.py --peers FOLDER --device cpu --shape tiny --conversations 24 --turns 3 --slots 8 \\
        --prompt 48 --new 12 --observed 9 --tool-s 0.02

FOLDER contains agents_vllm.py: its function `workload` says for every conversation the prompt, and for every turn how
many tokens are sampled (EOS ignored), how long the tool takes (log-normal) and what it returns. Its own run on the same
machine, with the same numbers, gives the figure for `--peer`. Conversations are episodes, as in training: through
sampler, sessions and return times. Reported: sampled (trainable) tokens per second; the critical path, which is the
slowest conversation alone on the engine; batch slots in use while enough conversations are ready; prefilled tokens
against the minimum. Full runs on a GPU write agents.json. Exits with status 1 if a target is missed on a full run.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tables
import torch
from engines import Bench, shape_config

from burnish.log.metrics import engine_metrics
from burnish.loop.collect import EpisodeRunner
from burnish.loop.event_loop import run_coroutine
from burnish.models.model_input import ModelInput
from burnish.rollout.conversation import TrajectoryBuilder
from burnish.rollout.engine import Engine, Sampling
from burnish.rollout.episode import Prompt, Sampler
from burnish.rollout.trajectory import Trajectory

FULL = {"shape": "0.5B", "conversations": 4096, "turns": 8, "slots": 1024, "prompt": 512, "new": 160, "observed": 120}
SPEED_TARGET, PATH_TARGET, OCCUPANCY_TARGET, PREFILL_TARGET = 3.0, 1.25, 0.9, 1.05
COLUMNS = {
    "shape": "{shape}",
    "conversations": "{conversations:,}",
    "trained tokens/s": "{tokens_per_second:,.0f}",
    "seconds": "{seconds:.1f}",
    "critical path s": "{critical_path_seconds:.1f}",
    "slots in use under load": "{decode_occupancy_loaded:.0%}",
    "prefill / minimum": "{prefill_ratio:.3f}",
}

Talk = dict[str, Any]  # {"prompt": ids, "steps": [{"new": tokens, "wait": seconds, "observed": ids}]}


class ToolTalk:
    """Samples turns of given lengths; the tool answers after a given time."""

    uses_session = True
    scores = True

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory:
        builder, steps = TrajectoryBuilder(prompt.input), prompt.row["steps"]
        for number, step in enumerate(steps):
            builder.add_sampled(await sampler.generate(builder.input, max_tokens=step["new"]))
            if number + 1 < len(steps):

                async def act(seconds: float = step["wait"]) -> dict[str, Any]:
                    await asyncio.sleep(seconds)
                    return {}

                await sampler.observe(act, name="tool")
                builder.add_observation(step["observed"], "tool", latency=sampler.waited())
        return builder.build("stop")


def load_workload(folder: Path) -> Any:
    """The function `workload` of the peer's script."""
    spec = importlib.util.spec_from_file_location("agents_vllm", folder / "agents_vllm.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.workload


def within(talks: list[Talk], vocabulary: int) -> list[Talk]:
    """Token ids that a small vocabulary has."""

    def fold(ids: list[int]) -> list[int]:
        return [token if token < vocabulary else 3 + token % (vocabulary - 3) for token in ids]

    return [
        {"prompt": fold(t["prompt"]), "steps": [{**step, "observed": fold(step["observed"])} for step in t["steps"]]}
        for t in talks
    ]


def length_of(talk: Talk) -> int:
    return len(talk["prompt"]) + sum(step["new"] + len(step["observed"]) for step in talk["steps"])


def run_talks(engine: Engine, talks: list[Talk], salt: int) -> dict[str, float]:
    """All conversations at once; seconds, sampled tokens and how busy the engine was."""
    engine.stats()
    prompts = [
        Prompt(
            ModelInput(tuple(talk["prompt"])), Sampling(length_of(talk), ignore_eos=True), (salt << 32) + number,
            row=talk,
        )
        for number, talk in enumerate(talks)
    ]  # fmt: skip

    async def run() -> tuple[float, list[list[Trajectory]], int]:
        runner = EpisodeRunner(engine, ToolTalk())
        started = time.perf_counter()
        rows = await runner.wait(asyncio.gather(*map(runner.run, prompts)))
        return time.perf_counter() - started, rows, runner.queue.prefill.minimum

    seconds, rows, min_prefill = run_coroutine(run())
    sampled = sum(sum(row.mask) for (row,) in rows)
    assert sampled == sum(step["new"] for talk in talks for step in talk["steps"])
    counts = engine.stats()
    metrics = {name.removeprefix("rollout/"): value for name, value in engine_metrics(counts, min_prefill).items()}
    waited = sum(turn.latency for (row,) in rows for turn in row.turns)
    return {"seconds": seconds, "tokens": sampled, "wait_seconds": waited, "min_prefill": min_prefill} | metrics


def critical_path(engine: Engine, talks: list[Talk]) -> float:
    """Seconds of the slowest conversation alone: of those with the longest waits and with the most tokens."""
    by_wait = max(talks, key=lambda talk: sum(step["wait"] for step in talk["steps"][:-1]))
    by_tokens = max(talks, key=lambda talk: sum(step["new"] for step in talk["steps"]))
    return max(run_talks(engine, [talk], salt)["seconds"] for salt, talk in ((3, by_wait), (4, by_tokens)))


def measure(bench: Bench, args: argparse.Namespace) -> dict[str, Any]:
    config, workload = shape_config(args.shape), load_workload(args.peers)
    size = (args.prompt, args.new, args.observed, args.tool_s)
    talks = within(workload(args.conversations, args.turns, *size), config.vocab_size)
    warm = within(workload(args.slots, 2, args.prompt, 16, 8, 0.0, seed=9), config.vocab_size)
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        limits = {"max_model_len": max(map(length_of, [*talks, *warm])) + 8, "max_num_seqs": args.slots}
        engine = bench.engine(config, dtype, Path(folder), **limits)
        try:
            run_talks(engine, warm, salt=1)
            alone = critical_path(engine, talks)
            row = run_talks(engine, talks, salt=2)
        finally:
            engine.close()
    facts = {"shape": args.shape, "conversations": args.conversations, "turns": args.turns, "slots": args.slots}
    speed = {"tokens_per_second": row["tokens"] / row["seconds"], "critical_path_seconds": alone}
    return facts | row | speed


def missed(row: dict[str, Any]) -> list[str]:
    """Targets that this row misses. Without a peer's figure, only the critical path tells the speed."""
    targets = {
        "speed": row.get("vllm_ratio", 0.0) >= SPEED_TARGET
        or row["seconds"] <= PATH_TARGET * row["critical_path_seconds"],
        "slots in use": row.get("decode_occupancy_loaded", 1.0) >= OCCUPANCY_TARGET,
        "prefill": row["prefill_ratio"] <= PREFILL_TARGET,
    }
    return [name for name, is_met in targets.items() if not is_met]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder with agents_vllm.py")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, default in FULL.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--tool-s", type=float, default=0.5, help="median seconds of a tool call")
    parser.add_argument("--sync-interval", type=int, default=16, help="decode steps between two host syncs")
    parser.add_argument("--block", type=int, default=64, help="tokens per KV block")
    parser.add_argument("--peer", default="", help="NAME=TOKENS_PER_SECOND of another engine on the same workload")
    tables.add_option(parser)
    return parser.parse_args(arguments)


def main() -> int:
    args = parse()
    bench = Bench(torch.device(args.device), sync_interval=args.sync_interval, block=args.block)
    row, columns = measure(bench, args), dict(COLUMNS)
    if args.peer:
        name, _, speed = args.peer.partition("=")
        row |= {f"{name}_tokens_per_second": float(speed), f"{name}_ratio": row["tokens_per_second"] / float(speed)}
        columns[f"{name} tokens/s"] = f"{{{name}_tokens_per_second:,.0f}}"
        columns[f"Burnish / {name}"] = f"{{{name}_ratio:.2f}}x"
    print("RESULT", json.dumps(row), flush=True)
    print(tables.table(columns, [row]), end="")
    is_full = bench.on_gpu and all(getattr(args, name) == value for name, value in FULL.items())
    tables.save(args, "agents", columns, [row], full=is_full)
    failures = missed(row)
    print(f"targets missed: {', '.join(failures) or 'none'}" if is_full else "not the full size: no targets")
    return 1 if is_full and failures else 0


if __name__ == "__main__":
    sys.exit(main())
