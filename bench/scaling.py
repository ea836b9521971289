"""Tokens per second of the built-in engine against concurrent sequences and against context, as curves.

    python bench/scaling.py --shape 0.5b --out docs                            # on a machine with a CUDA device
    python bench/scaling.py --device cpu --shape tiny --sequences 2 4 --contexts 16 32 --rows 2 --tokens 4 8

A point is the difference of two runs that make more and fewer tokens, so that prompts and admission cancel out. A curve
stops being linear where the next point is below 0.8 of what a straight line promises; the reason printed is the largest
term of the least time that such a step takes. Writes scaling.png and prints a table.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import tempfile
import time
from pathlib import Path

import matplotlib
import torch
from rollout import QWEN, SHAPES, Bench, Ceilings, Cost
from transformers import Qwen2Config

from burnish.address import address
from burnish.rollout.engine import Engine, Request, Sampling

GROUP = 8  # samples of a prompt
REASONS = ("reading the weights", "arithmetic", "reading the cache")


@dataclasses.dataclass(frozen=True)
class Point:
    rows: int
    context: int
    speed: float  # tokens per second
    limit: str  # what the least time of such a step is spent on, mostly
    share: float  # of the roofline


def requests(rows: int, context: int, tokens: int, vocabulary: int, salt: int) -> list[Request]:
    rng = random.Random(salt)
    prompts = [tuple(rng.randrange(3, vocabulary) for _ in range(context)) for _ in range(-(-rows // GROUP))]
    sampling = Sampling(tokens, ignore_eos=True)
    return [Request(prompts[row // GROUP], sampling, address(salt, row)) for row in range(rows)]


def seconds(engine: Engine, asked: list[Request]) -> float:
    started = time.perf_counter()
    for future in engine.generate(asked):
        future.result()
    return time.perf_counter() - started


def point(bench: Bench, args: argparse.Namespace, rows: int, context: int, ceilings: Ceilings) -> Point:
    config = Qwen2Config(**SHAPES[args.shape], **QWEN, architectures=["Qwen2ForCausalLM"])
    few, many = args.tokens
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        engine = bench.engine(config, dtype, Path(folder), max_model_len=context + many, max_num_seqs=rows)
        try:
            seconds(engine, requests(rows, context, many, config.vocab_size, salt=1))  # captures and compiles
            short = seconds(engine, requests(rows, context, few, config.vocab_size, salt=2))
            long = seconds(engine, requests(rows, context, many, config.vocab_size, salt=3))
        finally:
            engine.close()
    bench.forget()
    speed = rows * (many - few) / max(long - short, 1e-9)
    terms = Cost.of(config, dtype).step(rows, rows * (context + (few + many) // 2), ceilings)
    least = max(terms[0] + terms[2], terms[1])
    return Point(rows, context, speed, REASONS[terms.index(max(terms))], speed * least / rows)


def bend(points: list[Point], of: str) -> str:
    """Where a curve stops being linear (in rows), or stops being flat (in context), and why."""
    for one, other in itertools.pairwise(points):
        growth = other.speed / one.speed
        expected = getattr(other, of) / getattr(one, of) if of == "rows" else 1.0
        if growth < 0.8 * expected:
            return f"up to {of} {getattr(one, of)}; beyond, {other.limit} takes most of a step"
    return f"up to {of} {getattr(points[-1], of)}, the most that was tried"


def draw(by_rows: list[Point], by_context: list[Point], path: Path, title: str) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    for axis, points, of in zip(axes, (by_rows, by_context), ("rows", "context"), strict=True):
        axis.plot([getattr(p, of) for p in points], [p.speed for p in points], marker="o", label="measured")
        axis.plot([getattr(p, of) for p in points], [p.speed / p.share for p in points], "--", label="roofline")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xlabel("concurrent sequences" if of == "rows" else "context (tokens)")
        axis.set_ylabel("tokens per second")
        axis.legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", default="0.5b", choices=SHAPES)
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 256, 1024, 4096, 16384])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 8192, 16384, 32000])
    parser.add_argument("--context", type=int, default=256, help="of the curve against sequences")
    parser.add_argument("--rows", type=int, default=64, help="of the curve against context")
    parser.add_argument("--tokens", type=int, nargs=2, default=[32, 160], help="of the two runs of a point")
    parser.add_argument("--out", type=Path, default=Path("."))
    args = parser.parse_args()
    bench = Bench(torch.device(args.device))
    ceilings = Ceilings.of(bench.device, torch.bfloat16 if bench.on_gpu else torch.float32)
    context = args.context if bench.on_gpu else 16
    by_rows = [point(bench, args, rows, context, ceilings) for rows in args.sequences]
    by_context = [point(bench, args, args.rows, context, ceilings) for context in args.contexts]
    print("| sequences | context | tokens/s | share of the roofline | limit |\n|---|---|---|---|---|")
    for p in (*by_rows, *by_context):
        print(f"| {p.rows} | {p.context} | {p.speed:.0f} | {p.share:.1%} | {p.limit} |")
    print(f"sequences: linear {bend(by_rows, 'rows')}")
    print(f"context: flat {bend(by_context, 'context')}")
    args.out.mkdir(parents=True, exist_ok=True)
    draw(by_rows, by_context, args.out / "scaling.png", f"built-in engine, {args.shape}, {args.device}")
    print("RESULT", json.dumps([dataclasses.asdict(p) for p in (*by_rows, *by_context)]))


if __name__ == "__main__":
    main()
