"""Throughput of the built-in engine on one device, after correctness checks.

    python bench/rollout.py --shape 0.5B 1.5B 7B --peer vllm=21515,20122,16380    # on a machine with a CUDA device
    python bench/rollout.py --prefix off on --n 16 --prompt 512                   # without and with shared prefixes
    python bench/rollout.py --shape Qwen3-0.6B Qwen3-4B Llama-1B Gemma3-1B --seqs 768 --n 16 --prompt 233 700 \
        --max-new 2048 --mean-log 6.0 --rounds 3 --prefix off on
    python bench/rollout.py --seqs 64 --fixed --few-rows 64                       # small batches: explicit layers
    python bench/rollout.py --device cpu --shape tiny --seqs 16 --n 4 --prompt 8 --max-new 24

Requests: `seqs` responses, `n` per prompt, long-tailed lengths (lognormal, clipped), EOS ignored, with log-probs. The
first round compiles and captures graphs; `--rounds` more are timed, and the median counts. `--peer
NAME=TOKENS_PER_SECOND,...` adds another engine's throughput on the same requests and machine, one number per shape.
Full runs on a GPU write rollout.json and rollout_checks.json, with shared prefixes rollout_prefix.json. Exits with
status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tables
import torch
from engines import ENGINE_SHAPES, Bench, Workload, shape_config
from rollout_checks import run_checks
from roofline import GIB, Ceilings, Cost, min_seconds

from burnish.rollout.engine import Engine, Request, Sampling

COLUMNS = {
    "shape": "{shape}",
    "tokens/s": "{tokens_per_second:,.0f}",
    "share of the roofline": "{roofline_share:.0%}",
    "wake s": "{wake_seconds:.2f}",
    "memory released GiB": "{sleep_freed_gib:.0f}",
}
PREFIX_COLUMNS = {
    "KV of a prefix": "{prefix}",
    "KV tokens read per step": "{kv_tokens_per_step:,.0f}",
    "ms per step": "{ms_per_step:.2f}",
}
CHECK_COLUMNS = {
    "model": "{model}",
    "float32 mean, max": "{float32_mean:.1e}, {float32_max:.1e}",
    "bfloat16 mean, max": "{bfloat16_mean:.1e}, {bfloat16_max:.1e}",
    "bfloat16 after one weight changed": "{bfloat16_changed_mean:.1e}, {bfloat16_changed_max:.1e}",
}


def timed_run(engine: Engine, requests: list[Request], bench: Bench) -> tuple[float, dict[str, float]]:
    """Seconds for all requests, and the engine's counters."""
    engine.stats()
    bench.wait()
    started = time.perf_counter()
    completions = [future.result() for future in engine.generate(requests)]
    seconds = time.perf_counter() - started
    assert [len(c.ids) for c in completions] == [r.sampling.max_tokens for r in requests]
    assert all(len(c.log_probs) == len(c.ids) for c in completions)
    return seconds, engine.stats()


def sleep_and_wake(engine: Engine, request: Request, bench: Bench) -> dict[str, float]:
    """Memory that sleeping releases to the driver, and the time from waking to the first response."""
    free = torch.cuda.mem_get_info()[0] if bench.on_gpu else 0
    engine.sleep(level=1)
    freed = torch.cuda.mem_get_info()[0] - free if bench.on_gpu else 0
    started = time.perf_counter()
    engine.wake()
    engine.generate([request])[0].result()
    bench.wait()
    return {"sleep_freed_gib": round(freed / GIB, 2), "wake_seconds": round(time.perf_counter() - started, 3)}


def measure(bench: Bench, args: argparse.Namespace, shape: str, dtype: torch.dtype) -> dict[str, Any]:
    config = shape_config(shape)
    workload = Workload.of(args)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        limits = {"max_model_len": workload.max_model_len, "max_num_seqs": args.max_num_seqs}
        engine = bench.engine(config, dtype, Path(folder), **limits)
        try:
            first, _ = timed_run(engine, workload.requests(config.vocab_size, salt=1), bench)
            start_up = time.perf_counter() - started
            requests = workload.requests(config.vocab_size, salt=2)
            rounds = sorted(
                (timed_run(engine, workload.requests(config.vocab_size, 2 + i), bench) for i in range(args.rounds)),
                key=lambda measured: measured[0],
            )
            seconds, stats = rounds[len(rounds) // 2]
            sleep = sleep_and_wake(engine, dataclasses.replace(requests[0], sampling=Sampling(1)), bench)
        finally:
            engine.close()
    tokens = sum(request.sampling.max_tokens for request in requests)
    minimum = min_seconds(requests, Cost.of(config, dtype), Ceilings.of(bench.device, dtype))
    counters = ("host_syncs", "graph_replays", "decode_steps", "prefill_tokens", "blocks_in_use", "preemptions")
    return {
        "shape": shape,
        "prefix": "read per cluster" if bench.shared_prefix else "read per response",
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "rounds": [round(seconds, 3) for seconds, _ in rounds],
        "tokens_per_second": round(tokens / seconds, 1),
        "ms_per_step": round(1000 * seconds / stats["decode_steps"], 3),
        "kv_tokens_per_step": round(stats["kv_tokens_read"] / stats["decode_steps"], 1),
        "kv_tokens_saved_per_step": round(stats["kv_tokens_saved"] / stats["decode_steps"], 1),
        "roofline_share": round(tables.check_share(minimum / seconds, shape), 3),
        "start_up_seconds": round(start_up, 1),
        "first_round_seconds": round(first, 1),
        **{name: stats.get(name, 0) for name in counters},
        **sleep,
    }


def peer_speeds(peers: list[str], num_shapes: int) -> dict[str, list[float]]:
    """NAME=SPEED,SPEED per peer, one speed per shape."""
    speeds = {name: [float(speed) for speed in text.split(",")] for name, _, text in (p.partition("=") for p in peers)}
    for name, values in speeds.items():
        if len(values) != num_shapes:
            raise SystemExit(f"--peer {name}: {len(values)} figures for {num_shapes} shapes")
    return speeds


def columns(peers: dict[str, list[float]], prefixes: list[str]) -> dict[str, str]:
    """The table's columns, with two for each peer after the share of the roofline, and those of shared prefixes."""
    items = list(COLUMNS.items())
    for name in peers:
        items.insert(-2, (f"{name} tokens/s", f"{{{name}_tokens_per_second:,.0f}}"))
        items.insert(-2, (f"Burnish / {name}", f"{{{name}_ratio:.2f}}x"))
    if "on" in prefixes:
        items[1:1] = PREFIX_COLUMNS.items()
    return dict(items)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", nargs="+", default=["0.5B"], choices=ENGINE_SHAPES)
    Workload.add_options(parser)
    parser.add_argument("--rounds", type=int, default=1, help="timed rounds")
    parser.add_argument("--max-num-seqs", type=int, default=1024)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--plain-layers", action="store_true", help="no torch.compile inside the graphs")
    parser.add_argument("--sync-interval", type=int, default=16, help="decode steps between two host syncs")
    parser.add_argument("--block", type=int, default=64, help="tokens per KV block")
    parser.add_argument(
        "--prefix", nargs="+", default=["off"], choices=("off", "on"), help="engine_kwargs.builtin.shared_prefix"
    )
    parser.add_argument("--few-rows", type=int, default=0, help="engine_kwargs.builtin.few_rows")
    parser.add_argument("--peer", action="append", default=[], help="NAME=TOKENS_PER_SECOND,... of another engine")
    parser.add_argument("--checks", choices=("all", "none", "only"), default="all")
    parser.add_argument("--only", default="", help="checks whose name contains this text")
    tables.add_option(parser)
    return parser.parse_args(arguments)


def main() -> int:
    args = parse()
    peers = peer_speeds(args.peer, len(args.shape))
    compiled = False if args.plain_layers else None
    benches = [
        Bench(
            *(torch.device(args.device), args.eager, args.sync_interval, args.block, compiled),
            shared_prefix=prefix == "on",
            few_rows=args.few_rows,
        )
        for prefix in args.prefix
    ]
    on_gpu = benches[0].on_gpu
    dtype = torch.bfloat16 if on_gpu else torch.float32
    passed = True
    if args.checks != "none":
        dtypes = [torch.float32, *([dtype] if on_gpu else [])]
        for bench in benches:
            checks, agree = run_checks(bench, dtypes, args.shape, args.only)
            full = on_gpu and not args.only and not bench.shared_prefix and not bench.few_rows
            tables.save(args, "rollout_checks", CHECK_COLUMNS, checks, full=full)
            passed &= agree
    if args.checks == "only":
        return 0 if passed else 1
    rows = []
    for (number, shape), bench in itertools.product(enumerate(args.shape), benches):
        row = measure(bench, args, shape, dtype)
        for name, speeds in peers.items():
            row[f"{name}_tokens_per_second"] = speeds[number]
            row[f"{name}_ratio"] = row["tokens_per_second"] / speeds[number]
        rows.append(row)
        bench.forget()
        print("RESULT", json.dumps(row), flush=True)
    chosen = columns(peers, args.prefix)
    print(tables.table(chosen, rows), end="")
    full = on_gpu and args.shape == ["0.5B", "1.5B", "7B"] and not args.few_rows
    tables.save(args, "rollout_prefix" if "on" in args.prefix else "rollout", chosen, rows, full=full)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
