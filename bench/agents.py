"""Conversations with tools on the built-in engine: 4,096 conversations of 8 turns over 1,024 batch slots.

    python bench/agents.py --peers FOLDER --quick                          # on a machine with a CUDA device
    python bench/agents.py --peers FOLDER --peer vllm=TOKENS_PER_SECOND
    python bench/agents.py --peers FOLDER --device cpu --shape tiny --conversations 24 --turns 3 --slots 8 \\
        --prompt 48 --new 12 --observed 9 --tool-s 0.02

FOLDER contains agents_vllm.py: its function `workload` says for every conversation the prompt, and for every turn how
many tokens are sampled (EOS ignored), how long the tool takes (log-normal) and what it returns. Its own run on the same
machine, with the same numbers, gives the figure for `--peer`. Conversations are episodes, as in training: through
sampler, sessions and return times. Reported: sampled (trainable) tokens per second; the critical path, which is the
slowest conversation alone on the engine; batch slots in use while enough conversations are ready; prefilled tokens
against the minimum. The KV cache takes the share `--memory` of the free memory: waiting conversations keep their KV.
Conversations that do not end within `--limit-s` are stopped, and the figures are those up to then. Full runs on a GPU
write agents.json. Exits with status 1 if a target is missed on a full run.
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
from roofline import GIB

from burnish.log.metrics import engine_metrics
from burnish.loop.collect import EpisodeRunner
from burnish.loop.event_loop import run_coroutine
from burnish.models.model_input import ModelInput
from burnish.rollout.conversation import TrajectoryBuilder
from burnish.rollout.engine import Engine, Sampling
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.rollout.episode import Prompt, Sampler
from burnish.rollout.trajectory import Trajectory
from burnish.sizing import capture_sizes

FULL = {"shape": "0.5B", "conversations": 4096, "turns": 8, "slots": 1024, "prompt": 512, "new": 160, "observed": 120}
QUICK = {**FULL, "conversations": 256, "turns": 3, "slots": 64}
SPEED_TARGET, PATH_TARGET, OCCUPANCY_TARGET, PREFILL_TARGET = 3.0, 1.25, 0.9, 1.05
COLUMNS = {
    "shape": "{shape}",
    "conversations": "{conversations:,}",
    "slots": "{slots:,}",
    "trained tokens/s": "{tokens_per_second:,.0f}",
    "seconds": "{seconds:.1f}",
    "critical path s": "{critical_path_seconds:.1f}",
    "slots in use under load": "{decode_occupancy_loaded:.0%}",
    "prefill / minimum": "{prefill_ratio:.3f}",
}
COUNTERS = ("decode_steps", "host_syncs", "graph_replays", "blocks_in_use", "preemptions", "evicted_sessions")
REPORT_S = 10.0  # seconds between two lines of progress

Talk = dict[str, Any]  # {"prompt": ids, "steps": [{"new": tokens, "wait": seconds, "observed": ids}]}


class Progress:
    """What conversations have sampled so far; printed every few seconds."""

    def __init__(self, num_conversations: int) -> None:
        self.num_conversations = num_conversations
        self.num_ended = self.num_turns = self.num_tokens = 0
        self.tool_seconds = 0.0
        self.started = time.perf_counter()

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.started
        return (
            f"{seconds:.0f} s: {self.num_ended:,} of {self.num_conversations:,} conversations ended, "
            f"{self.num_turns:,} turns, {self.num_tokens:,} tokens, {self.num_tokens / seconds:,.0f} per second"
        )

    async def report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            say(str(self))


class ToolTalk:
    """Samples turns of given lengths; the tool answers after a given time."""

    uses_session = True
    scores = True

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory:
        builder, steps, progress = TrajectoryBuilder(prompt.input), prompt.row["steps"], self.progress
        for number, step in enumerate(steps):
            builder.add_sampled(await sampler.generate(builder.input, max_tokens=step["new"]))
            progress.num_turns += 1
            progress.num_tokens += step["new"]
            if number + 1 < len(steps):

                async def act(seconds: float = step["wait"]) -> dict[str, Any]:
                    await asyncio.sleep(seconds)
                    return {}

                await sampler.observe(act, name="tool")
                waited = sampler.waited()
                builder.add_observation(step["observed"], "tool", latency=waited)
                progress.tool_seconds += waited
        progress.num_ended += 1
        return builder.build("stop")


def say(text: str) -> None:
    print(text, flush=True)


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


def num_sampled(talk: Talk) -> int:
    return sum(step["new"] for step in talk["steps"])


def tool_seconds(talk: Talk) -> float:
    return sum(step["wait"] for step in talk["steps"][:-1])


def run_talks(engine: Engine, talks: list[Talk], salt: int, limit: float) -> dict[str, Any]:
    """All conversations at once; seconds, sampled tokens and how busy the engine was."""
    engine.stats()
    prompts = [
        Prompt(
            ModelInput(tuple(talk["prompt"])), Sampling(length_of(talk), ignore_eos=True), (salt << 32) + number,
            row=talk,
        )
        for number, talk in enumerate(talks)
    ]  # fmt: skip

    async def run() -> dict[str, Any]:
        progress = Progress(len(talks))
        runner = EpisodeRunner(engine, ToolTalk(progress))
        reports = asyncio.create_task(progress.report())
        tasks = [asyncio.create_task(runner.run(prompt)) for prompt in prompts]
        done, late = await runner.wait(asyncio.ensure_future(asyncio.wait(tasks, timeout=limit)))
        seconds = time.perf_counter() - progress.started
        counts, tokens = engine.stats(), progress.num_tokens
        reports.cancel()
        if late:
            say(f"stopped after {limit:.0f} s: {len(late)} conversations have not ended")
            await runner.cancel(list(late))
        for task, talk in zip(tasks, talks, strict=True):
            if task in done:
                (row,) = task.result()
                assert sum(row.mask) == num_sampled(talk)
        metrics = engine_metrics(counts, runner.queue.prefill.minimum)
        return {
            "seconds": round(seconds, 3),
            "tokens": tokens,
            "tokens_per_second": round(tokens / seconds, 1),
            "unfinished": len(late),
            "wait_seconds": round(progress.tool_seconds, 1),
            "min_prefill": runner.queue.prefill.minimum,
            **{name: counts.get(name, 0) for name in COUNTERS},
            **{name.removeprefix("rollout/"): round(value, 4) for name, value in metrics.items()},
        }

    return run_coroutine(run())


def warm_up_talks(workload: Any, vocabulary: int, args: argparse.Namespace) -> tuple[list[Talk], list[Talk]]:
    """To compile and capture what the conversations will need: prefill in two turns; then a batch that shrinks through
    every size with a graph."""
    pairs = within(workload(args.slots, 2, args.prompt, 16, args.observed, 0.0, seed=9), vocabulary)
    shrinking = within(workload(args.slots, 1, args.prompt, 16, 4, 0.0, seed=10), vocabulary)
    sizes = capture_sizes(args.slots)
    for number, talk in enumerate(shrinking):
        windows = sum(number < size for size in sizes)  # in the last of them, the batch has the smallest such size
        talk["steps"] = [{"new": windows * args.sync_interval, "wait": 0.0, "observed": []}]
    return pairs, shrinking


def cache_size(engine: BuiltinEngine) -> str:
    num_blocks, shape = engine.scheduler.blocks.pool.num_blocks, engine.runner.shape
    return f"KV cache: {num_blocks * shape.block_size:,} tokens, {num_blocks * shape.block_bytes / GIB:.1f} GiB"


def critical_path(engine: Engine, talks: list[Talk], limit: float) -> float:
    """Seconds of the slowest conversation alone. The one with the most tokens tells what a token takes."""
    longest = max(talks, key=num_sampled)
    seconds = run_talks(engine, [longest], 3, limit)["seconds"]
    per_token = max(0.0, seconds - tool_seconds(longest)) / num_sampled(longest)
    slowest = max(talks, key=lambda talk: tool_seconds(talk) + per_token * num_sampled(talk))
    return seconds if slowest is longest else max(seconds, run_talks(engine, [slowest], 4, limit)["seconds"])


def measure(bench: Bench, args: argparse.Namespace) -> dict[str, Any]:
    config, workload = shape_config(args.shape), load_workload(args.peers)
    size = (args.prompt, args.new, args.observed, args.tool_s)
    talks = within(workload(args.conversations, args.turns, *size), config.vocab_size)
    say(f"{len(talks):,} conversations, {sum(map(num_sampled, talks)):,} tokens to sample")
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    pairs, shrinking = warm_up_talks(workload, config.vocab_size, args)
    limits = {
        "max_model_len": max(map(length_of, [*talks, *pairs, *shrinking])) + 8,
        "max_num_seqs": args.slots,
        "max_sessions": args.conversations,
        "max_num_batched_tokens": args.prefill_tokens,
    }
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        engine = bench.engine(config, dtype, Path(folder), **limits)
        try:
            run_talks(engine, pairs, 1, args.limit_s)
            say(f"warm after {time.perf_counter() - started:.0f} s; {cache_size(engine)}")
            run_talks(engine, shrinking, 2, args.limit_s)
            say(f"all batch sizes captured after {time.perf_counter() - started:.0f} s")
            alone = critical_path(engine, talks, args.limit_s)
            say(f"slowest conversation alone: {alone:.2f} s")
            row = run_talks(engine, talks, 5, args.limit_s)
        finally:
            engine.close()
    facts = {"shape": args.shape, "conversations": args.conversations, "turns": args.turns, "slots": args.slots}
    total = {"critical_path_seconds": alone, "bench_seconds": round(time.perf_counter() - started, 1)}
    return facts | row | total


def missed(row: dict[str, Any]) -> list[str]:
    """Targets that this row misses. Without a peer's figure, only the critical path tells the speed."""
    targets = {
        "speed": row.get("vllm_ratio", 0.0) >= SPEED_TARGET
        or row["seconds"] <= PATH_TARGET * row["critical_path_seconds"],
        "slots in use": row.get("decode_occupancy_loaded", 1.0) >= OCCUPANCY_TARGET,
        "prefill": row["prefill_ratio"] <= PREFILL_TARGET,
        "all conversations": row["unfinished"] == 0,
    }
    return [name for name, is_met in targets.items() if not is_met]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder with agents_vllm.py")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a small size, to see that everything works")
    for name, default in FULL.items():
        parser.add_argument(f"--{name}", type=type(default), help=f"default: {default}, with --quick {QUICK[name]}")
    parser.add_argument("--tool-s", type=float, default=0.5, help="median seconds of a tool call")
    parser.add_argument("--sync-interval", type=int, default=16, help="decode steps between two host syncs")
    parser.add_argument("--block", type=int, default=64, help="tokens per KV block")
    parser.add_argument("--prefill-tokens", type=int, default=16384, help="prompt tokens per prefill pass")
    parser.add_argument("--memory", type=float, default=0.8, help="share of the free memory for the KV cache, on a GPU")
    parser.add_argument("--limit-s", type=float, default=150.0, help="seconds after which conversations are stopped")
    parser.add_argument("--peer", default="", help="NAME=TOKENS_PER_SECOND of another engine on the same workload")
    tables.add_option(parser)
    args = parser.parse_args(arguments)
    for name, default in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    return args


def main() -> int:
    args = parse()
    bench = Bench(
        torch.device(args.device), sync_interval=args.sync_interval, block=args.block, memory_share=args.memory
    )
    row, columns = measure(bench, args), dict(COLUMNS)
    if args.peer:
        name, _, speed = args.peer.partition("=")
        row |= {f"{name}_tokens_per_second": float(speed), f"{name}_ratio": row["tokens_per_second"] / float(speed)}
        columns[f"{name} tokens/s"] = f"{{{name}_tokens_per_second:,.0f}}"
        columns[f"Burnish / {name}"] = f"{{{name}_ratio:.2f}}x"
    say(f"RESULT {json.dumps(row)}\n{tables.table(columns, [row])}")
    is_full = bench.on_gpu and all(getattr(args, name) == value for name, value in FULL.items())
    tables.save(args, "agents", columns, [row], full=is_full)
    failures = missed(row)
    say(f"targets missed: {', '.join(failures) or 'none'}" if is_full else "not the full size: no targets")
    return 1 if is_full and failures else 0


if __name__ == "__main__":
    sys.exit(main())
