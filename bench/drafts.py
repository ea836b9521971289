"""The tail of a rollout with and without speculative decoding (docs/engines.md).

    python bench/drafts.py [--rounds 5]
    python bench/drafts.py --device cuda      # in the device loop, with CUDA graphs

32 prompts with 8 responses each, up to 512 new tokens, long-tailed lengths, EOS ignored. The tail is the last 10 % of
the tokens. The demo's warmed-up model (64 wide, 2 layers) samples at its temperature; behind its answer it repeats
itself. The other cases are the worst for drafts: random weights, whose responses do not repeat, in the demo's size over
20 and over 4,096 tokens, and four times as wide over 512. Both engines run every rollout, one after the other; a row
has medians of the rounds. On a CPU, seconds are CPU time, so that other load does not count; on a GPU, wall time. Exits
with status 1 if a token differs; not in the device loop, where the number of rows changes last bits.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tables
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from burnish.demo.sorting import SortTask
from burnish.demo.tiny import prompt_ids
from burnish.models.load import ModelSource, load_tokenizer
from burnish.models.model_input import ModelInput
from burnish.models.parts import all_weights
from burnish.rollout.engine import DraftOptions, EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.seeding import derive_seed

PROMPTS, SAMPLES, MAX_NEW, TAIL = 32, 8, 512, 0.1
RANDOM = ((64, 20), (64, 4096), (256, 512))  # (hidden size, vocabulary)
SHAPE = {
    **{"num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 1024, "tie_word_embeddings": True},
    **{"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0},
}
COLUMNS = {
    "responses": "{case}",
    "tail tokens/s": "{tail:,.0f}",
    "with drafts": "{tail_drafts:,.0f}",
    "ratio of the tail": "{tail_ratio:.2f}",
    "min..max": "{tail_low:.2f}..{tail_high:.2f}",
    "ratio of the rollout": "{ratio:.2f}",
    "drafts accepted": "{accepted:.0%}",
    "decode steps": "{steps:,.0f} -> {steps_drafts:,.0f}",
}


class Case(NamedTuple):
    name: str
    folder: Path
    prompts: list[tuple[int, ...]]
    temperature: float


class Measured(NamedTuple):
    """A rollout: seconds, tokens per second of its tail, and what it gave."""

    seconds: float
    tail: float
    stats: dict[str, float]
    responses: list[list[int]]


def demo(folder: Path) -> Case:
    task = SortTask()
    problems = task.make_problems(seed=1)
    task.warm_up(folder, problems, 1, lambda _: None)
    tokenizer = load_tokenizer(str(folder), key="model")
    prompts = [tuple(prompt_ids(tokenizer, problem.question)) for problem in problems.train[:PROMPTS]]
    return Case("demo", folder, prompts, temperature=0.6)


def random_weights(folder: Path, hidden: int, vocabulary: int) -> Case:
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPE, hidden_size=hidden, intermediate_size=4 * hidden, vocab_size=vocabulary)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(3, vocabulary) for _ in range(16)) for _ in range(PROMPTS)]
    return Case(f"random, {hidden} wide, {vocabulary:,} tokens", folder, prompts, temperature=1.0)


def make_engine(case: Case, drafts: bool, device: torch.device, max_new: int, device_loop: bool) -> BuiltinEngine:
    longest = max(map(len, case.prompts))
    options = EngineOptions(
        *(ModelSource(str(case.folder)), torch.float32, device, (2,), longest + max_new),
        max_num_seqs=PROMPTS * SAMPLES,
        memory_share=0.2,
        own_thread=False,
        device_loop=device_loop,
        eager=not device_loop,
        drafts=DraftOptions() if drafts else None,
    )
    engine = BuiltinEngine(options)
    model = AutoModelForCausalLM.from_pretrained(case.folder, dtype=torch.float32)
    engine.load_weights(all_weights(model), version=1)
    return engine


def measure(
    engine: BuiltinEngine, case: Case, lengths: Sequence[int], salt: int, clock: Callable[[], float]
) -> Measured:
    requests = [
        Request(
            ModelInput(case.prompts[number // SAMPLES]),
            Sampling(length, temperature=case.temperature, ignore_eos=True),
            derive_seed(salt, number),
        )
        for number, length in enumerate(lengths)
    ]
    futures = engine.generate(requests)
    started, marks = clock(), []
    while engine.step():
        marks.append((clock() - started, engine.scheduler.counts["tokens"]))
    total, num_tail = sum(lengths), TAIL * sum(lengths)
    begun = next(seconds for seconds, count in marks if count >= total - num_tail)
    seconds = marks[-1][0]
    return Measured(seconds, num_tail / (seconds - begun), engine.stats(), [future.result().ids for future in futures])


def compare(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Rounds of both engines in turn, each with other noise; the first one is not counted."""
    device = torch.device(args.device)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    rng = random.Random(0)
    lengths = [max(4, min(args.max_new, int(rng.lognormvariate(4.5, 0.9)))) for _ in range(PROMPTS * SAMPLES)]
    plain, drafting = (make_engine(case, drafts, device, args.max_new, args.device_loop) for drafts in (False, True))
    pairs = []
    for salt in range(args.rounds + 1):
        order = (plain, drafting) if salt % 2 else (drafting, plain)
        results = {engine: measure(engine, case, lengths, salt, clock) for engine in order}
        pairs.append((results[plain], results[drafting]))
        if not args.device_loop and pairs[-1][0].responses != pairs[-1][1].responses:
            raise SystemExit(f"FAIL  {case.name}: drafts changed a token")
    ones, others = zip(*pairs[1:], strict=True)
    ratios = [other.tail / one.tail for one, other in pairs[1:]]
    drafted = sum(other.stats.get("draft_tokens", 0) for other in others)
    return {
        "case": case.name,
        "tail": statistics.median(one.tail for one in ones),
        "tail_drafts": statistics.median(other.tail for other in others),
        "tail_ratio": statistics.median(ratios),
        **{"tail_low": min(ratios), "tail_high": max(ratios)},
        "ratio": statistics.median(one.seconds / other.seconds for one, other in pairs[1:]),
        "accepted": sum(other.stats.get("draft_accepted", 0) for other in others) / drafted if drafted else None,
        "steps": statistics.median(one.stats["decode_steps"] for one in ones),
        "steps_drafts": statistics.median(other.stats["decode_steps"] for other in others),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--device-loop", action="store_true", help="also on a CPU, as a test (default on a GPU)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-new", type=int, default=MAX_NEW)
    parser.add_argument("--threads", type=int, default=1)
    tables.add_option(parser)
    args = parser.parse_args()
    args.device_loop |= args.device != "cpu"
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        cases = [demo(root / "demo"), *(random_weights(root / f"{sizes}", *sizes) for sizes in RANDOM)]
        rows = [compare(case, args) for case in cases]
    print(tables.table(COLUMNS, rows), end="")
    sizes = args.device, args.device_loop, args.max_new, args.threads
    full = sizes == ("cpu", False, MAX_NEW, 1) and args.rounds >= 5
    tables.save(args, "drafts", COLUMNS, rows, full=full)
    return 0


if __name__ == "__main__":
    sys.exit(main())
