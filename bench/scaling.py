"""Decode throughput of the built-in engine against the number of sequences and against context length.

    python bench/scaling.py --picture docs/scaling.png               # on a CUDA device: about four minutes
    python bench/scaling.py --draw bench/results/scaling.json --picture docs/scaling.png
    python bench/scaling.py --smoke --results FOLDER                 # tiny, on a CPU

Every repeat of a point times a short and a long run of the same prompts and divides the extra tokens by the extra time,
so that prefill and admission cancel out. A point is the median of its repeats, with the interquartile range. A point
above 100 % of the roofline, or without extra time, is an error: it is reported, not recorded. Prints a table row per
point, writes scaling.json and draws the picture from that file. Exits with status 1 if a point failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tables
import torch
from engines import Bench, shape_config
from roofline import Ceilings, Cost
from shapes import SHAPES

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Engine, Request, Sampling
from burnish.seeding import derive_seed

GROUP = 8  # samples per prompt
MIN_REPEATS = 3
TERMS = ("reading the weights", "arithmetic", "reading the cache")
COLUMNS = {
    "sequences": "{num_sequences:,}",
    "context": "{context:,}",
    "tokens/s": "{tokens_per_second:,.0f}",
    "middle half of repeats": "{low_tokens_per_second:,.0f}..{high_tokens_per_second:,.0f}",
    "repeats": "{repeats}",
    "ms per step": "{ms_per_step:.2f}",
    "share of the roofline": "{roofline_share:.0%}",
    "largest term of the roofline": "{limit}",
}


@dataclasses.dataclass(frozen=True)
class Point:
    curve: str  # "sequences" or "context": what varies
    num_sequences: int
    context: int
    tokens_per_second: float  # median of the repeats
    low_tokens_per_second: float | None  # quartiles of the repeats
    high_tokens_per_second: float | None
    repeats: int
    ms_per_step: float
    roofline_share: float
    limit: str  # largest term of the roofline

    @property
    def x(self) -> int:
        return self.num_sequences if self.curve == "sequences" else self.context


@dataclasses.dataclass(frozen=True)
class Plan:
    """Token counts of the short and the long run of a repeat, and how often to repeat."""

    tokens: tuple[int, int]
    repeats: int
    max_seconds: float  # stop repeating after this long, but not before MIN_REPEATS


def make_requests(num_sequences: int, context: int, tokens: int, vocabulary: int, seed: int) -> list[Request]:
    """The same prompts for every seed, so that the prefix cache serves them after the first run."""
    rng = random.Random(context)
    num_prompts = -(-num_sequences // GROUP)
    prompts = [ModelInput(tuple(rng.randrange(3, vocabulary) for _ in range(context))) for _ in range(num_prompts)]
    sampling = Sampling(tokens, ignore_eos=True)
    return [Request(prompts[row // GROUP], sampling, derive_seed(seed, row)) for row in range(num_sequences)]


def seconds(engine: Engine, requests: list[Request]) -> float:
    started = time.perf_counter()
    for future in engine.generate(requests):
        future.result()
    return time.perf_counter() - started


def step_times(engine: Engine, num_sequences: int, context: int, vocabulary: int, plan: Plan) -> list[float]:
    """Seconds per decode step, once per repeat."""
    short, long = plan.tokens
    seeds = itertools.count(1)

    def run(tokens: int) -> float:
        return seconds(engine, make_requests(num_sequences, context, tokens, vocabulary, next(seeds)))

    run(long), run(short)  # warm-up: compiles, captures graphs, fills the prefix cache
    durations: list[float] = []
    spent = 0.0
    while len(durations) < plan.repeats and (len(durations) < MIN_REPEATS or spent < plan.max_seconds):
        first, second = run(short), run(long)
        spent += first + second
        durations.append((second - first) / (long - short))
    return durations


def summarize(
    curve: str, num_sequences: int, context: int, durations: list[float], plan: Plan, cost: Cost, ceilings: Ceilings
) -> Point:
    """Median, spread and share of the roofline of one point; ImpossibleFigure if a run or the result makes no sense."""
    what = f"{num_sequences} sequences, context {context}"
    fast, median, slow = statistics.quantiles(durations, n=4, method="inclusive")
    if fast <= 0:
        raise tables.ImpossibleFigure(f"{what}: long runs took no longer than short ones; increase --tokens")
    # Halfway through the extra tokens; a prompt shared by a group is read once.
    cached_tokens = -(-num_sequences // GROUP) * context + num_sequences * sum(plan.tokens) // 2
    terms = cost.step_terms(num_sequences, cached_tokens, ceilings)
    share = cost.step_seconds(num_sequences, cached_tokens, ceilings) / median
    return Point(
        curve,
        num_sequences,
        context,
        num_sequences / median,
        num_sequences / slow,
        num_sequences / fast,
        len(durations),
        1000 * median,
        tables.check_share(share, what),
        TERMS[terms.index(max(terms))],
    )


def measure(
    bench: Bench, shape: str, curve: str, num_sequences: int, context: int, plan: Plan, ceilings: Ceilings
) -> Point:
    config = shape_config(shape)
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    limits = {"max_model_len": context + max(plan.tokens), "max_num_seqs": num_sequences}
    with tempfile.TemporaryDirectory() as folder:
        engine = bench.engine(config, dtype, Path(folder), **limits)
        try:
            durations = step_times(engine, num_sequences, context, config.vocab_size, plan)
        finally:
            engine.close()
    bench.forget()
    return summarize(curve, num_sequences, context, durations, plan, Cost.of(config, dtype), ceilings)


def measure_all(args: argparse.Namespace, plan: Plan) -> tuple[list[dict[str, Any]], int]:
    """All points of both curves as rows, and the number of points that failed."""
    bench = Bench(torch.device(args.device))
    ceilings = Ceilings.of(bench.device, torch.bfloat16 if bench.on_gpu else torch.float32)
    sizes = [("sequences", number, args.context) for number in args.sequences]
    sizes += [("context", args.rows, context) for context in args.contexts]
    print(tables.table(COLUMNS, []), end="", flush=True)
    rows, failed = [], 0
    for curve, num_sequences, context in sizes:
        try:
            point = measure(bench, args.shape, curve, num_sequences, context, plan, ceilings)
        except (RuntimeError, UserError, tables.ImpossibleFigure) as error:
            failed += 1
            print(f"| {num_sequences:,} | {context:,} | failed: {str(error).splitlines()[0][:200]} |", flush=True)
            bench.forget()
            continue
        rows.append(dataclasses.asdict(point))
        print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
    return rows, failed


def bend(points: list[Point]) -> str:
    """Where throughput stops growing with sequences, or starts to fall with context: below 0.8 of the straight line."""
    for one, other in itertools.pairwise(points):
        expected = other.x / one.x if one.curve == "sequences" else 1.0
        if other.tokens_per_second / one.tokens_per_second < 0.8 * expected:
            return f"up to {one.x:,}; beyond, mostly {other.limit} ({other.roofline_share:.0%} of the roofline)"
    return f"up to {points[-1].x:,}, the largest measured" if points else "nothing measured"


def draw(result: dict[str, Any], path: Path) -> None:
    """Both curves of a result file, with the spread of each point and the roofline."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    labels = {"sequences": "concurrent sequences", "context": "context (tokens)"}
    for axis, (curve, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        points = [Point(**row) for row in result["rows"] if row["curve"] == curve]
        x, y = [p.x for p in points], [p.tokens_per_second for p in points]
        low = [p.tokens_per_second - (p.low_tokens_per_second or p.tokens_per_second) for p in points]
        high = [(p.high_tokens_per_second or p.tokens_per_second) - p.tokens_per_second for p in points]
        axis.errorbar(x, y, yerr=[low, high], marker="o", capsize=3, label="measured (median, quartiles)")
        axis.plot(x, [p.tokens_per_second / p.roofline_share for p in points], "--", label="roofline")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xlabel(label)
        axis.set_ylabel("tokens per second")
        axis.legend()
    machine = result["machine"]
    figure.suptitle(f"built-in engine, {result['shape']}, {machine['gpu'] or machine['cpu']}, {result['date']}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", default="0.5B", choices=SHAPES)
    parser.add_argument("--sequences", type=int, nargs="*", default=[64, 256, 1024, 4096, 16384])
    parser.add_argument("--contexts", type=int, nargs="*", default=[1024, 4096, 8192, 16384, 32000])
    parser.add_argument("--context", type=int, default=256, help="context length of the curve against sequences")
    parser.add_argument("--rows", type=int, default=64, help="number of sequences of the curve against context")
    parser.add_argument("--tokens", type=int, nargs=2, default=[32, 160], help="new tokens of the short and long run")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--max-seconds", type=float, default=12.0, help="per point, after three repeats")
    parser.add_argument("--picture", type=Path, help="draw the result file into this PNG")
    parser.add_argument("--draw", type=Path, help="a result file to draw; nothing is measured")
    tables.add_option(parser)
    args = parser.parse_args()
    if args.smoke:
        args.device, args.shape, args.context, args.rows = "cpu", "tiny", 16, 2
        args.sequences, args.contexts, args.tokens, args.repeats = [2, 4], [16, 32], [4, 20], 3
    return args


def main() -> int:
    args = parse()
    failed = 0
    if args.draw is None:
        rows, failed = measure_all(args, Plan(tuple(args.tokens), args.repeats, args.max_seconds))
        path = tables.save(args, "scaling", COLUMNS, rows, full=not args.smoke, shape=args.shape) if rows else None
    else:
        path = args.draw
    if path is not None:
        result = tables.load(path)
        for curve in ("sequences", "context"):
            points = [Point(**row) for row in result["rows"] if row["curve"] == curve]
            print(f"\n{curve}: {'linear' if curve == 'sequences' else 'flat'} {bend(points)}")
        if args.picture is not None:
            draw(result, args.picture)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
