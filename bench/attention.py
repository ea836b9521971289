"""Choices of the decoding kernels (models/kernels/tuning.py) per size of heads, by trying them on this GPU.

    python bench/attention.py                                        # every shape; about two minutes each
    python bench/attention.py --shape qwen3-0.6B --rows 64 512 1024 --prompt 512 --response 500 --n 16
    TRITON_INTERPRET=1 python bench/attention.py --device cpu --shape tiny --rows 4 --n 2 --prompt 64 --response 20

One call is the attention of a decode step: `rows` responses of `response` tokens so far, `n` per prompt of `prompt`
tokens. Fields of `Tuning` are varied one after the other, first without shared prefixes and then those of the prefix
kernel with them; a value is kept where the product of the times at all `rows` falls by more than 1 %. Results that
differ from the default's by more than rounding fail. Layers have caches of their own, so that the L2 cache holds none.

Prints the times before and after, and the lines to enter into `TUNED`. Exits with status 1 if a result was wrong.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tables
import torch
from roofline import Ceilings
from torch import Tensor

from burnish.models.kernels import tuning as kernels
from burnish.models.kernels.decode import write_and_attend
from burnish.models.kernels.tuning import Tuning, num_members
from burnish.models.varlen import AttentionShape

# query heads, key/value heads, size of a head, window
SHAPES = {
    "qwen2.5-0.5B": (14, 2, 64, None),
    "qwen2.5-1.5B": (12, 2, 128, None),
    "qwen2.5-7B": (28, 4, 128, None),
    "qwen3-0.6B": (16, 8, 128, None),
    "qwen3-4B": (32, 8, 128, None),
    "llama-1B": (32, 8, 64, None),
    "gemma3-1B": (4, 1, 256, 512),
    "tiny": (4, 2, 16, None),
}
ROWS_VALUES: dict[str, tuple[int, ...]] = {
    "tile": (32, 64, 128),
    "warps": (2, 4, 8),
    "stages": (1, 2, 3, 4),
    "programs": (264, 528, 1024, 2048),
    "short": (256, 512, 1024, 2048),
}
PREFIX_VALUES: dict[str, tuple[int, ...]] = {
    "prefix_warps": (4, 8),
    "prefix_stages": (1, 2, 3),
    "prefix_programs": (132, 264, 528),
}
GAIN = 0.99  # of the time, for a value to replace another
CACHE_BYTES = 512 << 20  # of all layers on a GPU: several times its L2 cache
COLUMNS = {
    "shape": "{shape}",
    "rows": "{rows}",
    "us": "{us:.1f}",
    "us tuned": "{tuned_us:.1f}",
    "us, shared prefix": "{prefix_us:.1f}",
    "us tuned, shared prefix": "{tuned_prefix_us:.1f}",
    "share of the bandwidth": "{bandwidth_share:.0%}",
}


class Case(NamedTuple):
    """A decode step's attention: layers with caches of their own, and everything else in common."""

    layers: list[tuple[Tensor, Tensor]]
    arguments: tuple[Tensor, ...]  # query, key, value, slots, tables, lengths
    prefixes: tuple[Tensor, Tensor, Tensor]
    shape: AttentionShape
    num_bytes: int  # of KV that a layer has to read, prompts once

    def run(self, layer: int, shared: bool) -> Tensor:
        keys, values = self.layers[layer]
        query, key, value, slots, tables, lengths = self.arguments
        prefixes = self.prefixes if shared else (None, None, None)
        return write_and_attend(keys, values, query, key, value, slots, tables, lengths, self.shape, *prefixes)


def make_case(args: argparse.Namespace, name: str, rows: int, dtype: torch.dtype) -> Case:
    heads, kv_heads, dim, window = SHAPES[name]
    block, device = args.block, args.device
    full, width = args.prompt // block, -(-(args.prompt + 2 * args.response) // block)
    groups = -(-rows // args.n)
    own = groups * full + torch.arange(rows * (width - full)).reshape(rows, -1)
    prompts = torch.arange(groups * full).reshape(groups, full).repeat_interleave(args.n, 0)[:rows]
    table = torch.cat([prompts, own], dim=1)
    num_blocks = int(own.max()) + 1
    layer_bytes = 2 * num_blocks * kv_heads * block * dim * dtype.itemsize
    num_layers = max(1, min(32, CACHE_BYTES // layer_bytes)) if device == "cuda" else 1
    size = (num_blocks, kv_heads, block, dim)

    def pool() -> Tensor:
        return torch.randn(size, device=device).to(dtype)

    layers = [(pool(), pool()) for _ in range(num_layers)]
    query, key, value = (torch.randn(n, rows, dim, device=device).to(dtype) for n in (heads, kv_heads, kv_heads))
    # Lengths vary as those of responses do, so that programs do not all end at once.
    lengths = args.prompt + 1 + (torch.arange(rows) * 7919) % (2 * args.response)
    slots = table[torch.arange(rows), (lengths - 1) // block] * block + (lengths - 1) % block
    tokens = full * block
    members = num_members(heads // kv_heads)
    parts = [part for group in torch.arange(rows).split(args.n) for part in group.chunk(-(-len(group) // members))]
    clusters = torch.full((max(len(parts), rows // 4), members), -1)
    for number, part in enumerate(parts):
        clusters[number, : len(part)] = part
    prefix = torch.where(clusters[:, 1] >= 0, tokens, 0)
    shared = torch.zeros(rows, dtype=torch.int64)
    shared[clusters[prefix > 0].flatten().clamp(min=0)] = tokens
    seen = lengths if window is None else lengths.clamp(max=window)
    read = int(seen.sum()) if window is not None else int((lengths - tokens).sum()) + groups * tokens
    on_device = (part.to(device, torch.int32) for part in (clusters, prefix, shared))
    return Case(
        layers,
        (query, key, value, slots.to(device), table.to(device, torch.int32), lengths.to(device)),
        (next(on_device), next(on_device), next(on_device)),
        AttentionShape(dim**-0.5, window),
        2 * read * kv_heads * dim * dtype.itemsize,
    )


def seconds(case: Case, shared: bool, times: int = 20) -> float:
    """Median seconds of one layer, from a CUDA graph of all layers; of a call where there is no GPU."""

    def layers() -> None:
        for number in range(len(case.layers)):
            case.run(number, shared)

    if case.arguments[0].device.type != "cuda":
        started = time.perf_counter()
        layers()
        return (time.perf_counter() - started) / len(case.layers)
    layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers()
    graph.replay()
    durations = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        durations.append(begin.elapsed_time(end) / 1000 / len(case.layers))
    return statistics.median(durations)


class Tuner:
    """Tries values of `Tuning` on the cases of one shape."""

    def __init__(self, cases: list[Case], entry: tuple[tuple[int, int], int, int]) -> None:
        self.cases, self.entry = cases, entry
        self.wrong = 0
        kernels.TUNED.pop(entry, None)
        self.expected = [case.run(0, shared=False).float() for case in cases]

    def times(self, choice: Tuning, shared: bool) -> list[float] | None:
        """Seconds per case, or None where the choice does not run or its result is wrong."""
        kernels.TUNED[self.entry] = choice
        try:
            for case, expected in zip(self.cases, self.expected, strict=True):
                error = (case.run(0, shared).float() - expected).norm() / expected.norm()
                if not error < 1e-2:
                    self.wrong += 1
                    print(f"FAIL  {choice}: differs by {float(error):.1e}", flush=True)
                    return None
            return [seconds(case, shared) for case in self.cases]
        except Exception as error:  # more registers or shared memory than there are: Triton's own class
            if type(error).__name__ != "OutOfResources":
                raise
            return None
        finally:
            kernels.TUNED.pop(self.entry, None)

    def tune(self, choice: Tuning, values: dict[str, tuple[int, ...]], shared: bool) -> Tuning:
        best = self.times(choice, shared)
        assert best is not None, "the default does not run"
        for field, candidates in values.items():
            for value in candidates:
                tried = choice._replace(**{field: value})
                found = None if tried == choice else self.times(tried, shared)
                if found is not None and _product(found) < GAIN ** len(found) * _product(best):
                    choice, best = tried, found
        return choice


def _product(times: list[float]) -> float:
    return math.prod(seconds * 1e6 for seconds in times)


def measure(args: argparse.Namespace, name: str, dtype: torch.dtype) -> tuple[list[dict[str, Any]], str, bool]:
    """Rows of the table, the line for `TUNED`, and whether all results were right."""
    _, kv_heads, dim, _ = SHAPES[name]
    cases = [make_case(args, name, rows, dtype) for rows in args.rows]
    entry = (kernels.capability(torch.device(args.device)), dim, kv_heads)
    tuner = Tuner(cases, entry)
    choice = tuner.tune(kernels.DEFAULT, ROWS_VALUES, shared=False)
    choice = tuner.tune(choice, PREFIX_VALUES, shared=True)
    find: Callable[[Tuning, bool], list[float]] = lambda *how: tuner.times(*how) or [math.nan] * len(cases)  # noqa: E731
    columns = [find(which, shared) for shared in (False, True) for which in (kernels.DEFAULT, choice)]
    bandwidth = Ceilings.of(torch.device(args.device), dtype).bandwidth
    rows = []
    for case, number, (us, tuned, prefix, both) in zip(cases, args.rows, zip(*columns, strict=True), strict=True):
        share = tables.check_share(case.num_bytes / bandwidth / both, f"{name}, {number} rows")
        row = {"shape": name, "rows": number, "us": 1e6 * us, "tuned_us": 1e6 * tuned, "prefix_us": 1e6 * prefix}
        rows.append({**row, "tuned_prefix_us": 1e6 * both, "bandwidth_share": share})
    changed = {f: v for f, v in choice._asdict().items() if v != getattr(kernels.DEFAULT, f)}
    line = f"    {entry}: Tuning({', '.join(f'{field}={value}' for field, value in changed.items())}),"
    return rows, line, tuner.wrong == 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=[name for name in SHAPES if name != "tiny"])
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 512, 1024])
    parser.add_argument("--n", type=int, default=16, help="responses per prompt")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--response", type=int, default=500, help="mean tokens of a response so far")
    parser.add_argument("--block", type=int, default=64, help="tokens per KV block")
    tables.add_option(parser)
    return parser.parse_args()


def main() -> int:
    args = parse()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    torch.manual_seed(0)
    rows, lines, passed = [], [], True
    for name in args.shape:
        measured, line, right = measure(args, name, dtype)
        rows, lines, passed = rows + measured, [*lines, line], passed and right
        print(tables.table(COLUMNS, measured), end="", flush=True)
    print("TUNED = {", *lines, "}", sep="\n")
    tables.save(args, "attention", COLUMNS, rows, full=args.device == "cuda" and len(args.shape) == len(SHAPES) - 1)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
