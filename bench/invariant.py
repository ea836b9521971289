"""Equal bits in rollout and training (rollout.invariant=true), and what they cost beside the default mode.

    python bench/invariant.py                     # a million tokens over three shapes, where there is a CUDA device
    python bench/invariant.py --minutes 10        # begins no further part after so many
    python bench/invariant.py --tokens 10000000 --shape Llama-1B
    TRITON_INTERPRET=1 python bench/invariant.py --device cpu --shape tiny --tokens 32 --max-new 16 --n 2

Random weights, float32 in the trainer and bfloat16 in the engine (float32 on a CPU). First every shape is checked: the
engine generates long-tailed responses at temperature 1, the trainer computes the log-probs of the same tokens, and no
bit may differ. Then the same in default mode, and the tax on rollout, log-probs, update (forward and backward, no
optimizer) and their sum. A first round of requests compiles and captures graphs; the second is timed and checked. Full
runs on a GPU write invariant.json. Exits with status 1 if a bit differs, a shape was not checked, or the sum costs more
than 25 %.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tables
import torch
from engines import ENGINE_SHAPES, Bench, make_requests, shape_config
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from burnish.algos.batches import token_budget_batches
from burnish.batch import Batch, Ragged
from burnish.models import attention
from burnish.models.compiled import can_compile, compile_layers
from burnish.models.head_kernels import HEAD_KERNELS
from burnish.models.invariant.head import InvariantHead
from burnish.models.invariant.modules import use_invariant_modules
from burnish.models.kernels import invariant as kernels
from burnish.models.kernels.lazy_triton import ordered_products
from burnish.models.logits import TORCH
from burnish.rollout.engine import Completion, Engine, Request
from burnish.training.backend import BackendOptions
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows

SHAPES = ("0.5B", "Qwen3-0.6B", "Llama-1B")
PHASES = ("rollout", "log_probs", "update")
MAX_TAX = 0.25  # on the sum of the phases
COLUMNS = {
    "shape": "{shape}",
    "tokens": "{tokens:,}",
    "largest difference": "{difference}",
    "in default mode": "{default_difference:.1e}",
    "tax on rollout": "{rollout_tax:.0%}",
    "on log-probs": "{log_probs_tax:.0%}",
    "on the update": "{update_tax:.0%}",
    "on all": "{step_tax:.0%}",
}


class Trainer:
    """Float32 weights of a shape, computed with as in training; the same weights for the same shape."""

    def __init__(self, config: PretrainedConfig, device: torch.device, dtype: torch.dtype, budget: int) -> None:
        self.config, self.device, self.dtype, self.budget = config, device, dtype, budget
        self.backend: SingleBackend

    def open(self, invariant: bool) -> PreTrainedModel:
        attention.register()
        torch.manual_seed(0)
        with self.device:
            model = AutoModelForCausalLM.from_config(
                self.config, attn_implementation=attention.PACKED, dtype=torch.float32
            )
        on_gpu = self.device.type == "cuda"
        head = HEAD_KERNELS["torch"](True) if on_gpu else TORCH
        if invariant:
            use_invariant_modules(model, self.dtype)
            head = InvariantHead(head)
        elif can_compile(model, self.device):
            compile_layers(model, "bench")
        self.backend = SingleBackend(model, self.device, self.dtype, options=BackendOptions(head=head))
        return model

    def micro_batches(self, requests: Sequence[Request], answers: Sequence[Completion]) -> Iterator[list[int]]:
        lengths = [len(request.input) + len(answer.ids) for request, answer in zip(requests, answers, strict=True)]
        yield from token_budget_batches(lengths, self.budget)

    def rows(self, requests: Sequence[Request], answers: Sequence[Completion], part: Sequence[int]) -> PackedRows:
        columns = ([list(requests[row].input.ids) for row in part], [answers[row].ids for row in part])
        prompts, responses = (Ragged.of(column, torch.int64) for column in columns)
        return PackedRows.of(Batch(prompt_ids=prompts, responses=responses), self.device)

    @torch.no_grad()
    def log_probs(self, requests: Sequence[Request], answers: Sequence[Completion]) -> list[Tensor]:
        """Of each response."""
        found: list[Tensor] = [torch.empty(0)] * len(answers)
        for part in self.micro_batches(requests, answers):
            values, _ = self.backend.log_probs(self.rows(requests, answers, part), 1.0, False)
            for row, piece in zip(part, values.cpu().split([len(answers[row].ids) for row in part]), strict=True):
                found[row] = piece
        return found

    def update(self, requests: Sequence[Request], answers: Sequence[Completion]) -> None:
        self.backend.model.train()
        for part in self.micro_batches(requests, answers):
            values, _ = self.backend.log_probs(self.rows(requests, answers, part), 1.0, False)
            values.sum().backward()
        self.backend.model.zero_grad(set_to_none=True)
        self.backend.model.eval()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one mode: seconds by phase, and how rollout and training differ."""

    tokens: int
    seconds: dict[str, float]
    difference: float
    differing: int


def make_workload(args: argparse.Namespace, config: PretrainedConfig, salt: int) -> list[Request]:
    """As many responses as have this shape's share of the tokens."""
    wanted, found = args.tokens / len(args.shape), []
    prompts = 1 + int(2 * wanted / min(args.max_new, 200)) // args.n  # more than enough
    limits = (args.n * prompts, args.n, (args.prompt[0], args.prompt[-1]), args.max_new, config.vocab_size)
    for request in make_requests(*limits, salt=salt):
        if wanted > 0:
            found.append(request)
            wanted -= request.sampling.max_tokens
    return found


def run_mode(bench: Bench, args: argparse.Namespace, shape: str, dtype: torch.dtype, invariant: bool) -> Outcome:
    config = shape_config(shape)
    trainer = Trainer(config, bench.device, dtype, args.micro_batch)
    model = trainer.open(invariant)
    limits = {"max_model_len": args.prompt[-1] + args.max_new, "max_num_seqs": args.max_num_seqs}
    with tempfile.TemporaryDirectory() as folder:
        extra = {"triton": True} if invariant else {}
        engine = bench.engine(config, dtype, Path(folder), invariant=invariant, more_extra=extra, **limits)
        try:
            engine.load_weights(model.named_parameters(), 1)
            generate(engine, make_workload(args, config, salt=1)[: None if bench.on_gpu else 1])
            requests = make_workload(args, config, salt=2)
            seconds = {}
            seconds["rollout"], answers = timed(bench, lambda: generate(engine, requests))
            engine.sleep(level=1)
            if bench.on_gpu:
                trainer.log_probs(requests, answers)  # compiles
                trainer.update(requests[: args.n], answers[: args.n])
            seconds["log_probs"], found = timed(bench, lambda: trainer.log_probs(requests, answers))
            seconds["update"], _ = timed(bench, lambda: trainer.update(requests, answers))
            gaps = [(ours - torch.tensor(answer.log_probs)).abs() for ours, answer in zip(found, answers, strict=True)]
            if invariant:
                explain(engine, requests, answers, found, gaps)
        finally:
            engine.close()
    together = torch.cat(gaps)
    return Outcome(len(together), seconds, float(together.max()), int((together != 0).sum()))


def generate(engine: Engine, requests: list[Request]) -> list[Completion]:
    return [future.result() for future in engine.generate(requests)]


def timed(bench: Bench, work: Callable[[], Any]) -> tuple[float, Any]:
    bench.wait()
    started = time.perf_counter()
    result = work()
    bench.wait()
    return time.perf_counter() - started, result


def explain(
    engine: Engine, requests: list[Request], answers: list[Completion], found: list[Tensor], gaps: list[Tensor]
) -> None:
    """Where bits differ: of the first response with a difference, what the engine computes for all of it at once."""
    row = next((row for row, gap in enumerate(gaps) if gap.any()), None)
    if row is None:
        return
    engine.wake()
    count = len(answers[row].ids)
    scores = torch.tensor(engine.score([[*requests[row].input.ids, *answers[row].ids]])[0][-count:])
    first = int(gaps[row].nonzero()[0])
    print(f"response {row}, prompt of {len(requests[row].input)} tokens: token {first} is the first that differs")
    decoded, trained = torch.equal(scores, torch.tensor(answers[row].log_probs)), torch.equal(scores, found[row])
    print(f"decoding equals the engine's packed pass: {decoded}; that equals training: {trained}")


def row_of(shape: str, ours: Outcome, default: Outcome | None) -> dict[str, Any]:
    row: dict[str, Any] = {"shape": shape, "tokens": ours.tokens, "difference": ours.difference}
    row |= {"differing": ours.differing, **{f"{name}_seconds": round(ours.seconds[name], 3) for name in PHASES}}
    if default is None:
        return row
    row |= {f"default_{name}_seconds": round(default.seconds[name], 3) for name in PHASES}
    row |= {f"{name}_tax": ours.seconds[name] / default.seconds[name] - 1 for name in PHASES}
    row["step_tax"] = sum(ours.seconds.values()) / sum(default.seconds.values()) - 1
    return row | {"default_difference": default.difference}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", nargs="+", default=list(SHAPES), choices=ENGINE_SHAPES)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="generated, over all shapes")
    parser.add_argument("--n", type=int, default=8, help="responses per prompt")
    parser.add_argument("--prompt", type=int, nargs="+", default=[64, 512], help="tokens, the fewest and the most")
    parser.add_argument("--max-new", type=int, default=1024)
    parser.add_argument("--max-num-seqs", type=int, default=512)
    parser.add_argument("--micro-batch", type=int, default=16_384, help="tokens of a pass in training")
    parser.add_argument(
        "--tile", default="", help="of products, as ROWSxCOLUMNSxWARPSxSTAGES; changes bits, on both sides"
    )
    parser.add_argument("--minutes", type=float, help="begin no further part after so many")
    parser.add_argument("--only-check", action="store_true", help="no comparison with the default mode")
    tables.add_option(parser)
    return parser.parse_args(arguments)


def main() -> int:
    args = parse()
    bench = Bench(torch.device(args.device), eager=args.device == "cpu", memory_share=0.4)
    if not bench.on_gpu:
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise SystemExit("set TRITON_INTERPRET=1 to run the kernels on a CPU")
        args.prompt = [min(size, 20) for size in args.prompt]
    if args.tile:
        kernels.ROWS, kernels.COLUMNS, kernels.PRODUCT_WARPS, kernels.PRODUCT_STAGES = map(int, args.tile.split("x"))
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    started, checked, default = time.monotonic(), {}, {}

    def has_time() -> bool:
        return args.minutes is None or time.monotonic() - started < 60 * args.minutes

    with contextlib.nullcontext() if bench.on_gpu else ordered_products():
        for invariant, outcomes in ((True, checked), (False, default)):
            for shape in args.shape if invariant or not args.only_check else ():
                if not has_time():
                    print(f"no time left for {shape}, invariant={invariant}")
                    continue
                outcomes[shape] = outcome = run_mode(bench, args, shape, dtype, invariant)
                bench.forget()
                told = f"{shape}, invariant={invariant}: {outcome.tokens:,} tokens, largest difference"
                print(f"{told} {outcome.difference} ({outcome.differing:,} differ)", flush=True)
    rows = [row_of(shape, checked[shape], default.get(shape)) for shape in args.shape if shape in checked]
    for row in rows:
        print("RESULT", json.dumps(row), flush=True)
    print(tables.table(COLUMNS, rows), end="")
    complete = len(rows) == len(default) == len(args.shape)
    tables.save(
        args,
        "invariant",
        COLUMNS,
        rows,
        full=bench.on_gpu and complete and not args.tile and tuple(args.shape) == SHAPES,
    )
    exact = len(rows) == len(args.shape) and all(row["differing"] == 0 for row in rows)
    cheap = not bench.on_gpu or all(row.get("step_tax", 0.0) <= MAX_TAX for row in rows)
    return 0 if exact and cheap else 1


if __name__ == "__main__":
    sys.exit(main())
