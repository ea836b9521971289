"""The fused head against the naive one and Liger's fused linear cross entropy: correctness, then time and memory.

    python bench/head.py           # on a machine with a CUDA device: 16,384 tokens x 151,936 entries
    python bench/head.py --smoke   # the same code on a CPU, tiny

Work: log-probs of the tokens and their gradient for hidden states and weights (for Liger: the mean cross entropy). The
errors are ||ours - naive|| / ||naive|| of log-prob, d hidden and d weight, against float64 on fewer tokens. Ends with
status 1 if an error is too large, the peak exceeds an eighth of the naive head's, or Triton's head is slower than the
naive one or Liger's.
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

import torch
from torch import Tensor

from burnish import sizing
from burnish.models.kernels.head import TritonKernel
from burnish.models.logits import TorchKernel
from burnish.models.logprobs import token_log_probs

GIB = 1 << 30
ERROR = 1e-2  # of bfloat16 operands
Head = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden, weight, tokens -> log-probs


def naive(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    log_p = (hidden @ weight.t()).float().log_softmax(-1)
    return log_p.gather(-1, tokens[:, None]).squeeze(-1)


def liger(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    loss = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, tokens)
    return -(loss[0] if isinstance(loss, tuple) else loss)


def ours(kernel: object) -> Head:
    return lambda hidden, weight, tokens: token_log_probs(hidden, weight, tokens, kernel=kernel)[0]


def heads(device: str) -> dict[str, Head]:
    found: dict[str, Head] = {"naive": naive, "torch": ours(TorchKernel())}
    if device == "cuda":
        found |= {"torch compiled": ours(TorchKernel(True)), "triton": ours(TritonKernel())}
        if importlib.util.find_spec("liger_kernel") is not None:
            found["Liger"] = liger
    return found


@dataclass(frozen=True)
class Size:
    tokens: int
    vocabulary: int
    hidden: int
    device: str
    dtype: torch.dtype
    taught: bool = True  # else the head is frozen, as under LoRA

    def inputs(self, tokens: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator(self.device).manual_seed(0)
        make = functools.partial(torch.randn, device=self.device, generator=generator)
        count = tokens or self.tokens
        hidden = make(count, self.hidden).to(self.dtype).requires_grad_()
        weight = (make(self.vocabulary, self.hidden) * self.hidden**-0.5).to(self.dtype).requires_grad_(self.taught)
        chosen = torch.randint(0, self.vocabulary, (count,), device=self.device, generator=generator)
        return hidden, weight, chosen

    @property
    def flops(self) -> float:
        """Of forward and backward, nothing computed twice."""
        return (6 if self.taught else 4) * self.tokens * self.vocabulary * self.hidden


def errors(size: Size, head: Head, tokens: int) -> list[float]:
    """Relative to the naive head in float64, on fewer tokens; log-probs are summed up for Liger's sake."""
    hidden, weight, chosen = size.inputs(tokens)
    leaves = [hidden, weight] if size.taught else [hidden]
    value = head(hidden, weight, chosen).mean()
    found = [value, *torch.autograd.grad(value, leaves)]
    wide = [leaf.detach().double().requires_grad_(leaf.requires_grad) for leaf in (hidden, weight)]
    log_p = (wide[0] @ wide[1].t()).log_softmax(-1).gather(-1, chosen[:, None])
    expected = [log_p.mean(), *torch.autograd.grad(log_p.mean(), wide if size.taught else wide[:1])]
    return [float(((a.double() - b).norm() / b.norm()).detach()) for a, b in zip(found, expected, strict=True)]


def milliseconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """The median, after a warm-up."""
    times = []
    for number in range(repeats + 2):
        _settle(device)
        started = time.perf_counter()
        work()
        _settle(device)
        if number >= 2:
            times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_gib(work: Callable[[], object], device: str) -> float:
    """Beyond what was there before; 0 on a CPU, which does not count."""
    if device != "cuda":
        return 0.0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return (torch.cuda.max_memory_allocated() - before) / GIB


def measured(size: Size, name: str, head: Head, repeats: int, check: int) -> dict[str, float]:
    hidden, weight, chosen = size.inputs()
    leaves = [hidden, weight] if size.taught else [hidden]

    def forward() -> Tensor:
        return head(hidden, weight, chosen)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward().mean(), leaves)

    with torch.no_grad():
        reading = milliseconds(forward, size.device, repeats) if name != "Liger" else float("nan")
    return {
        "error": max(errors(size, head, check)),
        "reading": reading,
        "both": milliseconds(both, size.device, repeats),
        "peak": peak_gib(both, size.device),
    }


def table(size: Size, repeats: int, check: int) -> bool:
    """Print one size; whether it holds."""
    print(
        f"\n{size.tokens} tokens x {size.vocabulary} vocabulary x {size.hidden} hidden, {size.dtype}, head "
        f"{'taught' if size.taught else 'frozen'}, chunks of {sizing.LOGIT_CHUNK_BYTES[size.device] >> 20} MiB\n"
    )
    print("| head | error | read ms | forward + backward ms | TFLOP/s | peak GiB | of naive |")
    print("|---|---|---|---|---|---|---|")
    found: dict[str, dict[str, float]] = {}
    for name, head in heads(size.device).items():
        if name == "Liger" and not size.taught:
            continue
        found[name] = one = measured(size, name, head, repeats, check)
        share = one["peak"] / found["naive"]["peak"] if found["naive"]["peak"] else float("nan")
        speed = size.flops / one["both"] / 1e9
        print(
            f"| {name} | {one['error']:.1e} | {one['reading']:.2f} | {one['both']:.2f} | {speed:.0f} | "
            f"{one['peak']:.2f} | {share:.3f} |",
            flush=True,
        )
    good = all(one["error"] < ERROR for one in found.values())
    if size.device == "cuda":
        mine = found["triton"]
        good &= mine["peak"] <= found["naive"]["peak"] / 8
        good &= all(mine["both"] <= other["both"] for name, other in found.items() if name in ("naive", "Liger"))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, nargs="+", default=[896, 1536, 3584])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budgets", type=int, nargs="+", help="MiB of a chunk to try; as the head has it by default")
    args = parser.parse_args()
    if args.smoke:
        return 0 if table(Size(96, 500, 32, "cpu", torch.float32), repeats=1, check=32) else 1
    good = True
    for budget in args.budgets or [sizing.LOGIT_CHUNK_BYTES["cuda"] >> 20]:
        sizing.LOGIT_CHUNK_BYTES["cuda"] = budget << 20
        for hidden in args.hidden:
            for taught in (True, False):
                size = Size(args.tokens, args.vocabulary, hidden, "cuda", torch.bfloat16, taught)
                good &= table(size, args.repeats, check=512)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
