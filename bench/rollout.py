"""How fast does the built-in engine generate on one device? First whether it is right, then tokens per second.

    python bench/rollout.py --shape 0.5B --peer vllm=25000 --peer hf=3000     # on a machine with a CUDA device
    python bench/rollout.py --device cpu --shape tiny --seqs 16 --n 4 --prompt 8 --max-new 24

Requests: `seqs` responses, `n` to each prompt, of long-tailed lengths (lognormal, clipped); EOS is ignored, log-probs
are given. The first round captures graphs and compiles; the second is timed. `--peer name=tokens_per_second` puts
another engine's figure for the same requests, measured on the same machine, beside ours. Ends with status 1 if a check
fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from engines import Bench, make_requests, shape_config
from rollout_checks import run_checks
from roofline import GIB, Ceilings, Cost, min_seconds
from shapes import SHAPES

from burnish.rollout.engine import Engine, Request, Sampling


def timed_run(engine: Engine, requests: list[Request], bench: Bench) -> tuple[float, dict[str, float]]:
    """Seconds for all of them, and the engine's counts."""
    engine.stats()
    bench.wait()
    started = time.perf_counter()
    completions = [future.result() for future in engine.generate(requests)]
    seconds = time.perf_counter() - started
    assert [len(c.ids) for c in completions] == [r.sampling.max_tokens for r in requests]
    assert all(len(c.log_probs) == len(c.ids) for c in completions)
    return seconds, engine.stats()


def sleep_and_wake(engine: Engine, request: Request, bench: Bench) -> dict[str, float]:
    """Bytes that the driver gets back, and the time from waking to the first answer."""
    held = torch.cuda.mem_get_info()[0] if bench.on_gpu else 0
    engine.sleep(level=1)
    freed = torch.cuda.mem_get_info()[0] - held if bench.on_gpu else 0
    started = time.perf_counter()
    engine.wake()
    engine.generate([request])[0].result()
    bench.wait()
    return {"sleep_freed_gib": round(freed / GIB, 2), "wake_seconds": round(time.perf_counter() - started, 3)}


def measure(bench: Bench, args: argparse.Namespace, dtype: torch.dtype) -> dict[str, object]:
    config = shape_config(args.shape)
    shape = (args.seqs, args.n, args.prompt, args.max_new, config.vocab_size, args.fixed)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        longest = args.prompt + args.max_new
        engine = bench.engine(config, dtype, Path(folder), max_model_len=longest, max_num_seqs=args.max_num_seqs)
        try:
            first, _ = timed_run(engine, make_requests(*shape, salt=1), bench)
            start_up = time.perf_counter() - started
            requests = make_requests(*shape, salt=2)
            seconds, stats = timed_run(engine, requests, bench)
            slept = sleep_and_wake(engine, dataclasses.replace(requests[0], sampling=Sampling(1)), bench)
        finally:
            engine.close()
    tokens = sum(request.sampling.max_tokens for request in requests)
    floor = min_seconds(requests, Cost.of(config, dtype), Ceilings.of(bench.device, dtype))
    names = ("host_syncs", "graph_replays", "decode_steps", "prefill_tokens", "blocks_in_use", "preemptions")
    return {
        "shape": args.shape,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "ms_per_step": round(1000 * seconds / stats["decode_steps"], 3),
        "roofline_share": round(floor / seconds, 3),
        "start_up_seconds": round(start_up, 1),
        "first_round_seconds": round(first, 1),
        **{name: stats.get(name, 0) for name in names},
        **slept,
    }


def table(found: dict[str, object], peers: list[str]) -> str:
    """Ours beside the others', as Markdown."""
    ours = float(found["tokens_per_second"])
    lines = ["| engine | tokens/s | ours / theirs | share of the roofline |", "|---|---|---|---|"]
    lines.append(f"| built-in, {found['shape']} | {ours:.0f} | 1 | {float(found['roofline_share']):.1%} |")
    for peer in peers:
        name, speed = peer.split("=")
        lines.append(f"| {name} | {float(speed):.0f} | {ours / float(speed):.2f} | |")
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", default="0.5B", choices=SHAPES)
    parser.add_argument("--seqs", type=int, default=1024)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--max-new", type=int, default=1024)
    parser.add_argument("--fixed", action="store_true", help="all responses of the longest length")
    parser.add_argument("--max-num-seqs", type=int, default=1024)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--plain-layers", action="store_true", help="no torch.compile inside the graphs")
    parser.add_argument("--look-in", type=int, default=16, help="tokens between two looks of the host")
    parser.add_argument("--block", type=int, default=64, help="tokens of a block of the cache")
    parser.add_argument("--peer", action="append", default=[], help="name=tokens_per_second of another engine")
    parser.add_argument("--checks", choices=("all", "none", "only"), default="all")
    parser.add_argument("--only", default="", help="checks whose name has this text")
    return parser.parse_args(arguments)


def main() -> int:
    args = parse()
    bench = Bench(torch.device(args.device), args.eager, args.look_in, args.block, False if args.plain_layers else None)
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    dtypes = [torch.float32, *([dtype] if bench.on_gpu else [])]
    good = args.checks == "none" or run_checks(bench, dtypes, args.shape, args.only)
    if args.checks != "only":
        found = measure(bench, args, dtype)
        print("RESULT", json.dumps(found), flush=True)
        print(table(found, args.peer))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
