"""Decode steps of small batches: the model's own layers under torch.compile against explicit layers (few_rows).

    python bench/decode_layer.py                                  # on a GPU: within 540 s, the most useful first
    python bench/decode_layer.py --budget 120 --shape 0.5B --rows 64
    TRITON_INTERPRET=1 python bench/decode_layer.py --device cpu --shape tiny --rows 3 --context 20 --max-model-len 64

A step is all that the engine runs per token: embedding, layers, head, sampling, bookkeeping; in a CUDA graph, with
contexts of `--context` tokens on average. Layers are the step up to the last norm, divided by their number.

In this order, until the time is over: the first shape at the first of `--rows`, checked, with default and with tuned
tilings (`Tiling` in models/kernels/product_tiles.py); the other shapes; the other rows of the first shape; the other
shapes tuned; everything else. Tilings that do not compile are left out and named; a result that differs from plain
torch fails. What did not fit into the time is listed.

Prints a table and the lines to enter into `TUNED`. Exits with status 1 if a result was wrong.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tables
import torch
import torch.nn.functional as F
from engines import ENGINE_SHAPES, shape_config
from roofline import Ceilings, Cost
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from burnish.models import attention
from burnish.models.decode_layer import TorchProducts
from burnish.models.fused.replace import replace_modules
from burnish.models.kernels import product_tiles
from burnish.models.kernels import tuning as attention_tiles
from burnish.models.kernels.product_tiles import Tiling, tile_rows, tiling
from burnish.models.kernels.tuning import capability, next_power
from burnish.models.paged import bind_cache
from burnish.rollout.engines.builtin.decode_layers import DecodeLayers, UnsupportedLayersError
from burnish.rollout.engines.builtin.decode_plan import DecodePlan
from burnish.rollout.engines.builtin.decode_step import DecodeStep, StepBuffers
from burnish.rollout.engines.builtin.device_batch import PLAIN, DeviceBatch
from burnish.rollout.engines.builtin.graphs import CapturedStep, EagerStep, StepGraphs
from burnish.rollout.engines.builtin.kv_cache import CacheShape, KVCache
from burnish.rollout.engines.builtin.paged_attention import DeviceDecode

DEFAULT_SHAPES = ("0.5B", "Qwen3-0.6B", "Llama-1B", "Gemma3-1B", "Qwen3-4B")
DEFAULT_ROWS = (64, 16, 1, 32, 128, 8)
REPLAYS = 20  # of a graph; each adds a token to every context
GAIN = 0.995  # of the time, for a tiling to replace another
SHARED_MEMORY = 220 << 10  # bytes of a program
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # against the same operations in plain torch
PIPELINES = ((64, 4), (64, 6), (128, 3), (128, 5), (256, 2))  # depth, stages
COLUMNS = {
    "shape": "{shape}",
    "rows": "{rows}",
    "tilings": "{tilings}",
    "ms per step, own layers": "{own_ms:.3f}",
    "ms per step, explicit layers": "{explicit_ms:.3f}",
    "us per layer, own": "{own_layer_us:.1f}",
    "us per layer, explicit": "{explicit_layer_us:.1f}",
    "share of the roofline, own": "{own_share:.0%}",
    "share of the roofline, explicit": "{explicit_share:.0%}",
}


class Clock:
    """The time that is left."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end


class Scene:
    """A model with random weights and its KV cache, and a batch of some rows in the middle of their responses."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.args, self.name, self.config = args, name, shape_config(name)
        self.device = torch.device(args.device)
        self.on_gpu = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float32
        attention.register()
        torch.manual_seed(0)
        with self.device:
            options = {"attn_implementation": attention.PAGED, "dtype": self.dtype}
            model = AutoModelForCausalLM.from_config(self.config, **options)
        self.model: PreTrainedModel = model.eval().requires_grad_(False)
        replace_modules(self.model, None, F.linear)
        self.layers = DecodeLayers(self.model, args.max_model_len, triton=True)
        self.rows = 0

    def of(self, rows: int) -> Scene:
        """With so many rows."""
        if rows == self.rows:
            return self
        args, config, device = self.args, self.config, self.device
        block, width = args.block, -(-args.max_model_len // args.block)
        # Lengths vary as those of responses do; the longest has room for what is generated here.
        spread = torch.arange(rows) * 7919 % args.context
        self.lengths = (args.context // 2 + 1 + spread).clamp(max=args.max_model_len - 2 * REPLAYS)
        needed = (self.lengths + 2 * REPLAYS) // block + 1
        first = needed.cumsum(0) - needed + 1  # block 0 is for the dummy slot
        table = first[:, None] + torch.arange(width)
        table = torch.where(torch.arange(width) < needed[:, None], table, 0)
        dim = self.layers.shape.dim
        shape = CacheShape(config.num_hidden_layers, config.num_key_value_heads, dim, self.dtype, block)
        self.cache = None  # frees that of other rows
        self.cache = KVCache(shape, int(needed.sum()) + 1, device)
        for pool in (*self.cache.keys, *self.cache.values):
            pool.normal_()
        bind_cache(self.model, self.cache.keys, self.cache.values)
        self.batch = DeviceBatch(rows, width, args.max_model_len, config.vocab_size, 16, device)
        self.batch.tables.device.copy_(table)
        logits = torch.empty(rows, config.vocab_size, dtype=self.dtype, device=device)
        self.buffers = StepBuffers(self.batch, logits, block, 0, has_media=False, layers=self.layers)
        self.rows = rows
        self.reset()
        return self

    def reset(self) -> None:
        """Every row active again, at its first length."""
        numbers = torch.arange(self.rows)
        values = {"token": 3 + numbers, "length": self.lengths, "seed": numbers}
        constants = {"num_tokens": 0, "active": 1, "limit": 1 << 30, "greedy": 0, "temperature": 1.0}
        for name, value in values.items():
            self.batch.tensor(name, self.rows).copy_(value)
        for name, value in constants.items():
            self.batch.tensor(name, self.rows).fill_(value)
        self.batch.step.zero_()

    def step(self, explicit: bool) -> DecodeStep:
        plan = DecodePlan((self.rows,), triton=True, few_rows=self.rows if explicit else 0)
        return DecodeStep(self.model, self.buffers, self.rows, PLAIN, plan)

    def seconds(self, explicit: bool) -> tuple[float, float]:
        """Of a step, and of its part up to the last norm: medians."""
        plan = DecodePlan((self.rows,), triton=True, compiled=self.on_gpu and not explicit, captured=self.on_gpu)
        parts: list[Callable[..., Any]] = [
            lambda *size: self.step(explicit),
            lambda *size: _forward_of(self.step(explicit)),
        ]
        graphs = StepGraphs(self.model, plan, parts[0], self.batch.deactivate)  # it compiles the layers once
        found = []
        for graphs.make_step in parts:
            graphs.clear()
            runnable, _ = graphs.get(self.rows, PLAIN)
            found.append(self.median(runnable.run))
        return found[0], found[1]

    def layer_seconds(self) -> float:
        """Of the explicit layers, all of them, with the tilings of the moment."""
        forward = _forward_of(self.step(explicit=True))
        return self.median((CapturedStep(forward, None) if self.on_gpu else EagerStep(forward)).run)

    def median(self, run: Callable[[], None]) -> float:
        self.reset()
        if not self.on_gpu:
            started = time.perf_counter()
            run()
            return time.perf_counter() - started
        durations = []
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            durations.append(begin.elapsed_time(end) / 1000)
        return statistics.median(durations)

    @torch.inference_mode()
    def hidden(self, explicit: bool = True) -> Tensor:
        self.reset()
        return self.step(explicit)._forward().float()

    @torch.inference_mode()
    def expected(self) -> Tensor:
        """By the same operations in plain torch."""
        products, self.layers.products = self.layers.products, TorchProducts(self.layers.shape)
        try:
            return self.hidden()
        finally:
            self.layers.products = products

    @torch.inference_mode()
    def moved(self) -> tuple[Tensor, Tensor]:
        """The rows in another order, and the batch's own result in that order."""
        found, order = self.hidden(), torch.arange(self.rows - 1, -1, -1, device=self.device)
        step = self.step(explicit=True)
        slots, lengths = step._place()
        where = (slots[order], step.tables[order], lengths[order])
        paged = DeviceDecode(*where, triton=True, counters=self.layers.products.counters)
        return self.layers(step.token[order], step.length[order], paged).float(), found[order]

    def check(self) -> str:
        """What is wrong with the explicit layers; empty if nothing is."""
        tolerance = TOLERANCES[self.dtype]
        if (error := _difference(self.hidden(), self.expected())) > tolerance:
            return f"differs from plain torch by {error:.1e}"
        if (error := _difference(self.hidden(), self.hidden(explicit=False))) > 3 * tolerance:
            return f"differs from the model's own layers by {error:.1e}"
        first = self.hidden()
        if not all(torch.equal(self.hidden(), first) for _ in range(5)):
            return "the bits change from run to run"
        moved, expected = self.moved()
        # The interpreter's products depend on a row's place.
        if not (torch.equal(moved, expected) if self.on_gpu else torch.allclose(moved, expected, atol=1e-4)):
            return "the bits of a row depend on its place"
        return ""

    def kv_bytes(self) -> int:
        """That a step has to read."""
        cost = Cost.of(self.config, self.dtype)
        most = self.args.max_model_len
        return cost.layer_bytes * sum(
            count * int((self.lengths + REPLAYS // 2).clamp(max=window or most).sum()) for window, count in cost.layers
        )


def _forward_of(step: DecodeStep) -> Callable[[], None]:
    def forward() -> None:
        with torch.inference_mode():
            step._forward()

    return forward


def _difference(found: Tensor, expected: Tensor) -> float:
    """Relative; a result that is no number differs by infinity."""
    error = float((found - expected).norm() / expected.norm())
    return error if error == error else float("inf")


class Product(NamedTuple):
    """One of a layer's products, by the key of its tilings."""

    kind: str
    outputs: int
    inputs: int
    columns: int | None  # of every tiling, where the product does not leave a choice


def products_of(scene: Scene) -> list[Product]:
    """Those that read the most come first."""
    shape, normed = scene.layers.shape, scene.layers.backbone.get_submodule("layers.0.self_attn")
    width = shape.heads * shape.dim
    columns = next_power(shape.dim) if hasattr(normed, "q_norm") else None
    found = [
        Product("heads", width + 2 * shape.kv_heads * shape.dim, shape.hidden, columns),
        Product("gate_up", 2 * shape.inner, shape.hidden, None),
        Product("add", shape.hidden, width, None),
        Product("add", shape.hidden, shape.inner, None),
    ]
    return sorted(set(found), key=lambda product: -product.outputs * product.inputs)


class Tuner:
    """Tries tilings of the products of one scene, on the time of all its layers."""

    def __init__(self, scene: Scene, clock: Clock) -> None:
        self.scene, self.clock = scene, clock
        self.failed = 0
        self.expected = scene.expected()
        self.best = scene.layer_seconds()
        cap, rest = capability(scene.device), (scene.rows, scene.dtype.itemsize)
        self.choices = {
            product: tiling(cap, *product[:3], *rest, self._columns(product)) for product in products_of(scene)
        }

    def _columns(self, product: Product) -> int | None:
        heads = min(64, next_power(self.scene.layers.shape.dim))
        return product.columns or (heads if product.kind == "heads" else None)

    def key(self, product: Product) -> tuple:
        cap = capability(self.scene.device)
        return cap, product.kind, product.outputs, product.inputs, tile_rows(self.scene.rows)

    def set(self, choices: dict[Product, Tiling]) -> None:
        product_tiles.TUNED.update({self.key(product): choice for product, choice in choices.items()})

    def tune(self) -> None:
        if capability(self.scene.device) >= (9, 0):
            self.attempt({product: choice._replace(overlap=True) for product, choice in self.choices.items()})
            self.overlap_attention()
        for candidates in (self.cuts, self.pipelines, self.warps):
            for product in list(self.choices):
                for choice in candidates(product):
                    if self.clock.over:
                        return self.set(self.choices)
                    if choice != self.choices[product] and self.fits(choice):
                        self.attempt({product: choice})
        self.set(self.choices)

    def overlap_attention(self) -> None:
        """Keep it where it is faster, in the table of the attention kernels."""
        shape, before = self.scene.layers.shape, self.best
        entry = (capability(self.scene.device), shape.dim, shape.kv_heads)
        choice = attention_tiles.TUNED.get(entry, attention_tiles.DEFAULT)
        attention_tiles.TUNED[entry] = choice._replace(overlap=True)
        self.attempt({})
        if self.best < before:
            print(f"attention, models/kernels/tuning.py: {entry}: overlap=True", flush=True)
        else:
            attention_tiles.TUNED[entry] = choice

    def cuts(self, product: Product) -> Iterator[Tiling]:
        """Columns and splits that fill the GPU, but not too often."""
        choice = self.choices[product]
        steps = -(-product.inputs // choice.depth)
        widths = [self._columns(product)] if product.kind == "heads" else [32, 64, 128]
        for columns, splits in itertools.product(widths, (1, 2, 3, 4, 6, 8, 12, 16)):
            assert columns is not None
            programs = -(-product.outputs // columns) * splits
            if splits == 1 or (splits <= steps and 60 <= programs <= 400):
                yield choice._replace(columns=columns, splits=splits)

    def pipelines(self, product: Product) -> Iterator[Tiling]:
        for depth, stages in PIPELINES:
            if self.choices[product].splits <= -(-product.inputs // depth):
                yield self.choices[product]._replace(depth=depth, stages=stages)

    def warps(self, product: Product) -> Iterator[Tiling]:
        yield from (self.choices[product]._replace(warps=warps) for warps in (2, 4, 8))

    def fits(self, choice: Tiling) -> bool:
        rows = tile_rows(self.scene.rows) + choice.columns
        return choice.stages * rows * choice.depth * self.scene.dtype.itemsize <= SHARED_MEMORY

    def attempt(self, changes: dict[Product, Tiling]) -> None:
        """Keep these tilings if all layers are faster with them, and right."""
        self.set({**self.choices, **changes})
        try:
            error = _difference(self.scene.hidden(), self.expected)
            if error > TOLERANCES[self.scene.dtype]:
                self.failed += 1
                print(f"FAIL  {changes}: differs by {error:.1e}", flush=True)
                return
            seconds = self.scene.layer_seconds()
        except Exception as error:
            if _is_broken():
                raise
            self.scene.layers.products.counters.zero_()
            print(f"left out: {changes}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        else:
            if seconds < GAIN * self.best:
                self.choices.update(changes)
                self.best = seconds
        finally:
            self.set(self.choices)


def _is_broken() -> bool:
    """Whether the device cannot be used any more, as after an illegal access."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception:
        return True
    return False


class Report:
    """Rows of the table, printed as they come."""

    def __init__(self, ceilings: Ceilings) -> None:
        self.ceilings = ceilings
        self.rows: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.wrong = 0
        self.own: dict[tuple[str, int], tuple[float, float]] = {}
        self.left: list[str] = []
        self.tuned: set[tuple[str, int]] = set()  # shapes, by tiles of rows

    def measure(self, scene: Scene) -> None:
        what = (scene.name, scene.rows)
        tilings = "tuned" if (scene.name, tile_rows(scene.rows)) in self.tuned else "default"
        if what not in self.own:
            self.own[what] = scene.seconds(explicit=False)
        (own, own_layers), (step, layers) = self.own[what], scene.seconds(explicit=True)
        weights = Cost.of(scene.config, scene.dtype).weight_bytes
        minimum, count = (weights + scene.kv_bytes()) / self.ceilings.bandwidth, scene.config.num_hidden_layers
        row = {"shape": scene.name, "rows": scene.rows, "tilings": tilings, "own_ms": 1e3 * own}
        row |= {"explicit_ms": 1e3 * step, "own_layer_us": 1e6 * own_layers / count}
        row |= {"explicit_layer_us": 1e6 * layers / count}
        row["own_share"] = tables.check_share(minimum / own, f"{what}, own layers")
        row["explicit_share"] = tables.check_share(minimum / step, f"{what}, explicit layers")
        self.rows.append(row)
        print(tables.table(COLUMNS, [row]).splitlines()[-1], flush=True)

    def tune(self, scene: Scene, clock: Clock) -> None:
        tuner = Tuner(scene, clock)
        tuner.tune()
        self.wrong += tuner.failed
        self.lines += [f"    {tuner.key(product)}: {choice}," for product, choice in tuner.choices.items()]
        self.tuned.add((scene.name, tile_rows(scene.rows)))
        self.measure(scene)

    def fail(self, what: str, problem: object) -> None:
        self.wrong += 1
        print(f"FAIL  {what}: {problem}", flush=True)


def jobs(args: argparse.Namespace) -> list[tuple[str, str, int]]:
    """(what, shape, rows), the most useful first."""
    (first, *others), (main, *more) = args.shape, args.rows
    found = [("check", first, main), ("tune", first, main)]
    found += [("check", shape, main) for shape in others]
    found += [("check", first, rows) for rows in more]
    found += [("tune", shape, main) for shape in others]
    tiles = {tile_rows(rows): rows for rows in reversed(more) if tile_rows(rows) != tile_rows(main)}
    found += [("tune", first, rows) for rows in tiles.values()]
    found += [("check", shape, rows) for shape in others for rows in more]
    return [job for job in found if not (args.no_tuning and job[0] == "tune")]


def run(args: argparse.Namespace, report: Report) -> None:
    clock, scene = Clock(args.budget), None
    for job in jobs(args):
        what, shape, rows = job
        if clock.over:
            report.left.append(f"{what} {shape} with {rows} rows")
            continue
        if scene is None or scene.name != shape:
            scene = None  # one model at a time
            gc.collect()
            if args.device == "cuda":
                torch.cuda.empty_cache()
        try:
            scene = (scene or Scene(args, shape)).of(rows)
            if what == "tune":
                report.tune(scene, clock)
                continue
            if problem := scene.check():
                report.fail(f"{shape}, {rows} rows", problem)
            report.measure(scene)
        except (UnsupportedLayersError, tables.ImpossibleFigure) as problem:
            report.fail(f"{shape}, {rows} rows", problem)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", nargs="+", choices=ENGINE_SHAPES, default=list(DEFAULT_SHAPES))
    parser.add_argument("--rows", type=int, nargs="+", default=list(DEFAULT_ROWS))
    parser.add_argument("--context", type=int, default=512, help="mean tokens of a context")
    parser.add_argument("--max-model-len", type=int, default=2048, help="what contexts are split for")
    parser.add_argument("--block", type=int, default=64, help="tokens per KV block")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds after which nothing new is begun")
    parser.add_argument("--no-tuning", action="store_true", help="default tilings only")
    tables.add_option(parser)
    return parser.parse_args()


def main() -> int:
    args = parse()
    device = torch.device(args.device)
    report = Report(Ceilings.of(device, torch.bfloat16 if args.device == "cuda" else torch.float32))
    print(tables.table(COLUMNS, []), end="", flush=True)
    try:
        run(args, report)
    except Exception as error:
        if not _is_broken():
            raise
        report.fail("the GPU cannot be used any more", str(error)[:500])
    if report.lines:
        print("TUNED = {", *report.lines, "}", sep="\n")
    for job in report.left:
        print(f"no time for: {job}")
    full = args.device == "cuda" and set(DEFAULT_SHAPES) <= {row["shape"] for row in report.rows}
    tables.save(args, "decode_layer", COLUMNS, report.rows, full=full)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
