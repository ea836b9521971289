"""The fused head against a naive one and Liger's fused linear cross entropy: error, time and memory.

    python bench/head.py           # on a machine with a CUDA device: 16,384 tokens x 151,936 vocabulary entries
    python bench/head.py --smoke   # tiny, on a CPU

Computes log-probs of the tokens and their gradient for hidden states and weights (for Liger: the mean cross entropy).
The error is the largest relative error of the mean log-prob and both gradients, against float64 on fewer tokens. Exits
with status 1 if an error is too large, the peak exceeds an eighth of the naive head's, or the Triton head is slower
than the naive one or Liger's.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tables
import torch
from torch import Tensor

from burnish import sizing
from burnish.models.kernels.head import TritonKernel
from burnish.models.logits import TorchKernel
from burnish.models.logprobs import token_log_probs

GIB = 1 << 30
MAX_ERROR = 1e-2  # bfloat16 operands
COLUMNS = {
    "hidden": "{hidden}",
    "trained": "{trained}",
    "chunk MiB": "{budget_mib}",
    "head": "{head}",
    "error": "{error:.1e}",
    "forward ms": "{forward_ms:.2f}",
    "forward + backward ms": "{both_ms:.2f}",
    "TFLOP/s": "{tflops:.0f}",
    "peak GiB": "{peak_gib:.2f}",
    "of the naive peak": "{peak_share:.3f}",
}
Head = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden, weight, tokens -> log-probs


def naive(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    log_p = (hidden @ weight.t()).float().log_softmax(-1)
    return log_p.gather(-1, tokens[:, None]).squeeze(-1)


def liger(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    loss = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, tokens)
    return -(loss[0] if isinstance(loss, tuple) else loss)


def fused(kernel: object) -> Head:
    return lambda hidden, weight, tokens: token_log_probs(hidden, weight, tokens, kernel=kernel)[0]


def heads(device: str) -> dict[str, Head]:
    implementations: dict[str, Head] = {"naive": naive, "torch": fused(TorchKernel())}
    if device == "cuda":
        implementations |= {"torch compiled": fused(TorchKernel(True)), "triton": fused(TritonKernel())}
        if importlib.util.find_spec("liger_kernel") is not None:
            implementations["Liger"] = liger
    return implementations


@dataclass(frozen=True)
class Size:
    tokens: int
    vocabulary: int
    hidden: int
    device: str
    dtype: torch.dtype
    trained: bool = True  # False: the head is frozen, as under LoRA

    def inputs(self, tokens: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator(self.device).manual_seed(0)
        make = functools.partial(torch.randn, device=self.device, generator=generator)
        count = tokens or self.tokens
        hidden = make(count, self.hidden).to(self.dtype).requires_grad_()
        weight = (make(self.vocabulary, self.hidden) * self.hidden**-0.5).to(self.dtype).requires_grad_(self.trained)
        chosen = torch.randint(0, self.vocabulary, (count,), device=self.device, generator=generator)
        return hidden, weight, chosen

    @property
    def flops(self) -> float:
        """FLOPs of forward and backward without recomputation."""
        return (6 if self.trained else 4) * self.tokens * self.vocabulary * self.hidden


def errors(size: Size, head: Head, tokens: int) -> list[float]:
    """Errors relative to the naive head in float64, on fewer tokens; Liger returns the mean log-prob only."""
    hidden, weight, chosen = size.inputs(tokens)
    leaves = [hidden, weight] if size.trained else [hidden]
    value = head(hidden, weight, chosen).mean()
    actual = [value, *torch.autograd.grad(value, leaves)]
    wide = [leaf.detach().double().requires_grad_(leaf.requires_grad) for leaf in (hidden, weight)]
    log_p = (wide[0] @ wide[1].t()).log_softmax(-1).gather(-1, chosen[:, None])
    expected = [log_p.mean(), *torch.autograd.grad(log_p.mean(), wide if size.trained else wide[:1])]
    return [float(((a.double() - b).norm() / b.norm()).detach()) for a, b in zip(actual, expected, strict=True)]


def milliseconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """Median, after two warm-up calls."""
    times = []
    for number in range(repeats + 2):
        _synchronize(device)
        started = time.perf_counter()
        work()
        _synchronize(device)
        if number >= 2:
            times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_gib(work: Callable[[], object], device: str) -> float:
    """Peak memory beyond what was allocated before; 0 on a CPU."""
    if device != "cuda":
        return 0.0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return (torch.cuda.max_memory_allocated() - before) / GIB


def measure(size: Size, name: str, head: Head, repeats: int, check: int) -> dict[str, Any]:
    hidden, weight, chosen = size.inputs()
    leaves = [hidden, weight] if size.trained else [hidden]

    def forward() -> Tensor:
        return head(hidden, weight, chosen)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward().mean(), leaves)

    with torch.no_grad():
        forward_ms = milliseconds(forward, size.device, repeats) if name != "Liger" else None
    both_ms = milliseconds(both, size.device, repeats)
    return {
        "hidden": size.hidden,
        "trained": "yes" if size.trained else "no",
        "budget_mib": sizing.LOGIT_CHUNK_BYTES[size.device] >> 20,
        "head": name,
        "error": max(errors(size, head, check)),
        "forward_ms": forward_ms,
        "both_ms": both_ms,
        "tflops": size.flops / both_ms / 1e9,
        "peak_gib": peak_gib(both, size.device),
    }


def compare(size: Size, repeats: int, check: int) -> tuple[list[dict[str, Any]], bool]:
    """Measure and print every head at one size; also whether all limits are met."""
    rows: dict[str, dict[str, Any]] = {}
    for name, head in heads(size.device).items():
        if name == "Liger" and not size.trained:
            continue
        rows[name] = row = measure(size, name, head, repeats, check)
        row["peak_share"] = row["peak_gib"] / rows["naive"]["peak_gib"] if rows["naive"]["peak_gib"] else None
        print(tables.table(COLUMNS, [row]).splitlines()[-1], flush=True)
    passed = all(row["error"] < MAX_ERROR for row in rows.values())
    if size.device == "cuda":
        triton = rows["triton"]
        passed &= triton["peak_share"] <= 1 / 8
        passed &= all(triton["both_ms"] <= rows[name]["both_ms"] for name in ("naive", "Liger") if name in rows)
    return list(rows.values()), passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, nargs="+", default=[896, 1536, 3584])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budgets", type=int, nargs="+", help="chunk sizes in MiB to try (default: the head's own)")
    tables.add_option(parser)
    args = parser.parse_args()
    sizes = [
        Size(args.tokens, args.vocabulary, hidden, "cuda", torch.bfloat16, trained)
        for hidden in args.hidden
        for trained in (True, False)
    ]
    budgets, device, repeats, check = args.budgets, "cuda", args.repeats, 512
    if args.smoke:
        sizes, budgets, device, repeats, check = [Size(96, 500, 32, "cpu", torch.float32)], None, "cpu", 1, 32
    print(tables.table(COLUMNS, []), end="", flush=True)
    rows, passed = [], True
    for budget in budgets or [sizing.LOGIT_CHUNK_BYTES[device] >> 20]:
        sizing.LOGIT_CHUNK_BYTES[device] = budget << 20
        for size in sizes:
            results, within_limits = compare(size, repeats, check)
            rows += results
            passed &= within_limits
    tables.save(args, "head", COLUMNS, rows, full=not args.smoke and not args.budgets)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
