"""Tokens per second of the built-in engine against concurrent sequences and against context, as curves.

    python bench/scaling.py --shape 0.5B --out docs                            # on a machine with a CUDA device
    python bench/scaling.py --device cpu --shape tiny --sequences 2 4 --contexts 16 32 --rows 2 --tokens 4 8

A point is the difference of two runs that make more and fewer tokens, so that prompts and admission cancel out. A curve
stops being linear where the next point is below 0.8 of what a straight line promises; the reason printed is the largest
term of the least time that such a step takes. Prints a table, a line as soon as a point is there, writes scaling.json
and draws it as scaling.png; `--drawn FILE` draws such a file alone. Ends with status 1 if a point fails; the others are
drawn.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import torch
from engines import Bench, shape_config
from roofline import Ceilings, Cost
from shapes import SHAPES

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Engine, Request, Sampling
from burnish.seeding import derive_seed

GROUP = 8  # samples of a prompt
FILE = "scaling.json"
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
    return [Request(ModelInput(prompts[row // GROUP]), sampling, derive_seed(salt, row)) for row in range(rows)]


def seconds(engine: Engine, asked: list[Request]) -> float:
    started = time.perf_counter()
    for future in engine.generate(asked):
        future.result()
    return time.perf_counter() - started


def point(bench: Bench, args: argparse.Namespace, rows: int, context: int, ceilings: Ceilings) -> Point:
    config = shape_config(args.shape)
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
    read = -(-rows // GROUP) * context + rows * (few + many) // 2  # of the cache, a shared prompt once
    terms = Cost.of(config, dtype).step(rows, read, ceilings)
    least = max(terms[0] + terms[2], terms[1])
    return Point(rows, context, speed, REASONS[terms.index(max(terms))], speed * least / rows)


def curve(bench: Bench, args: argparse.Namespace, sizes: list[tuple[int, int]], ceilings: Ceilings) -> list[Point]:
    """A point for every (rows, context); one that fails is told and left out."""
    found = []
    for rows, context in sizes:
        try:
            p = point(bench, args, rows, context, ceilings)
        except (RuntimeError, UserError) as error:
            print(f"| {rows} | {context} | failed: {str(error).splitlines()[0][:200]} | | |", flush=True)
            bench.forget()
            continue
        found.append(p)
        print(f"| {p.rows} | {p.context} | {p.speed:.0f} | {p.share:.1%} | {p.limit} |", flush=True)
    return found


def bend(points: list[Point], of: str) -> str:
    """Where a curve stops being linear (in rows), or stops being flat (in context), and why."""
    for one, other in itertools.pairwise(points):
        growth = other.speed / one.speed
        expected = getattr(other, of) / getattr(one, of) if of == "rows" else 1.0
        if growth < 0.8 * expected:
            reason = f"{other.limit} is the largest part of the least time a step could take"
            return f"up to {of} {getattr(one, of)}; beyond, {reason}, which is {other.share:.0%} of what it takes"
    return f"up to {of} {getattr(points[-1], of)}, the most that was tried"


def draw(by_rows: list[Point], by_context: list[Point], path: Path, title: str) -> None:
    import matplotlib  # here, so that the machine that measures can do without

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


def measure(args: argparse.Namespace) -> bool:
    """Both curves into a file; whether every point is there."""
    bench = Bench(torch.device(args.device))
    ceilings = Ceilings.of(bench.device, torch.bfloat16 if bench.on_gpu else torch.float32)
    context = args.context if bench.on_gpu else 16
    print("| sequences | context | tokens/s | share of the roofline | limit |\n|---|---|---|---|---|", flush=True)
    by_rows = curve(bench, args, [(rows, context) for rows in args.sequences], ceilings)
    by_context = curve(bench, args, [(args.rows, context) for context in args.contexts], ceilings)
    found = {
        "by_rows": [dataclasses.asdict(p) for p in by_rows],
        "by_context": [dataclasses.asdict(p) for p in by_context],
        "title": f"built-in engine, {args.shape}, {args.device}",
    }
    (args.out / FILE).write_text(json.dumps(found))
    return len(by_rows) == len(args.sequences) and len(by_context) == len(args.contexts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", default="0.5B", choices=SHAPES)
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 256, 1024, 4096, 16384])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 8192, 16384, 32000])
    parser.add_argument("--context", type=int, default=256, help="of the curve against sequences")
    parser.add_argument("--rows", type=int, default=64, help="of the curve against context")
    parser.add_argument("--tokens", type=int, nargs=2, default=[32, 160], help="of the two runs of a point")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--drawn", type=Path, help="a scaling.json, drawn and not measured again")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    whole = args.drawn is not None or measure(args)
    found = json.loads((args.drawn or args.out / FILE).read_text())
    curves = [[Point(**point) for point in found[name]] for name in ("by_rows", "by_context")]
    print(f"\nsequences: linear {bend(curves[0], 'rows')}")
    print(f"context: flat {bend(curves[1], 'context')}")
    draw(*curves, args.out / "scaling.png", found["title"])
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
