"""vLLM on the requests of bench/rollout.py, at its best of several settings, on the same GPU.

    python bench/rollout_vllm.py --shape 0.5b --max-num-seqs 256 512 1024
    python bench/rollout_vllm.py --shape 7b --max-num-seqs 1024 --cache-gib 40 --processes own

Needs vLLM beside Burnish (PYTHONPATH will do). Every setting is a process that starts, answers a few requests, and then
waits for its turn: all start at once, one at a time is timed, nothing else runs meanwhile. Sampling at temperature 1,
log-probs of the sampled tokens, prefix caching, no detokenizing, dummy weights, a CUDA graph for every batch size up to
max_num_seqs. `--processes`: the engine in vLLM's own process, in the caller's, or both in turn. The last line is for
`bench/rollout.py --peer`. Ends with status 1 if no setting worked.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rollout import QWEN, SHAPES, make_requests
from transformers import Qwen2Config

SAMPLES, PROMPT = 8, 256
START = 300.0  # seconds
ENVIRONMENT = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
OWN_PROCESS = {"own": "1", "same": "0"}


def one(args: argparse.Namespace) -> dict[str, float]:
    """Start, say so in a file, wait until all have, and time the requests when the lock is ours."""
    from vllm import LLM, SamplingParams

    most, place = args.one, args.place
    config = Qwen2Config(**SHAPES[args.shape], **QWEN, architectures=["Qwen2ForCausalLM"], dtype="bfloat16")
    config.save_pretrained(place / f"model-{os.getpid()}")
    sizes = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size <= most]
    engine = LLM(
        str(place / f"model-{os.getpid()}"),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=PROMPT + args.max_new + 8,
        max_num_seqs=most,
        kv_cache_memory_bytes=int(args.cache_gib * (1 << 30)),
        enable_prefix_caching=True,
        disable_log_stats=True,
        compilation_config={"cudagraph_capture_sizes": sizes},
    )
    asked = make_requests(args.seqs, SAMPLES, PROMPT, args.max_new, config.vocab_size)
    prompts = [{"prompt_token_ids": list(request.ids)} for request in asked]
    lengths = [request.sampling.max_tokens for request in asked]
    how = [
        SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False, logprobs=0)
        for length in lengths
    ]
    engine.generate(prompts[:64], how[:64], use_tqdm=False)
    (place / f"ready-{os.getpid()}").touch()
    while not (place / "go").exists():
        time.sleep(0.1)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        engine.reset_prefix_cache()
        started = time.perf_counter()
        answers = engine.generate(prompts, how, use_tqdm=False)
        seconds = time.perf_counter() - started
    assert [len(answer.outputs[0].token_ids) for answer in answers] == lengths
    return {"tokens_per_second": sum(lengths) / seconds, "seconds": seconds}


def all_settings(args: argparse.Namespace) -> dict[str, float]:
    """Tokens per second of every setting that worked."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        children = {}
        for most in args.max_num_seqs:
            for process in args.processes:
                command = [sys.executable, __file__, "--shape", args.shape, "--cache-gib", str(args.cache_gib)]
                command += ["--seqs", str(args.seqs), "--max-new", str(args.max_new)]
                command += ["--one", str(most), "--place", folder]
                told = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": OWN_PROCESS[process]}
                log = (place / f"log-{most}-{process}").open("w+")
                child = subprocess.Popen(command, stdout=log, stderr=log, env=told, start_new_session=True)
                children[f"max_num_seqs {most}, {process} process"] = (child, log)
        _wait_for_all(place, [child for child, _ in children.values()])
        (place / "go").touch()
        return {name: speed for name, pair in children.items() if (speed := _told(name, *pair)) is not None}


def _wait_for_all(place: Path, children: list[subprocess.Popen]) -> None:
    until = time.monotonic() + START
    while time.monotonic() < until:
        alive = sum(child.poll() is None for child in children)
        if len(list(place.glob("ready-*"))) >= alive:
            return
        time.sleep(0.2)


def _told(name: str, child: subprocess.Popen, log) -> float | None:
    child.wait()
    with log:
        log.seek(0)
        lines = log.read().splitlines()
    found = [json.loads(line.removeprefix("RESULT ")) for line in lines if line.startswith("RESULT ")]
    if not found:
        print(f"| {name} | failed: {' '.join(lines[-3:])[:300]} |", flush=True)
        return None
    speed = found[-1]["tokens_per_second"]
    print(f"| {name} | {speed:.0f} |", flush=True)
    return speed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b", choices=SHAPES)
    parser.add_argument("--seqs", type=int, default=1024)
    parser.add_argument("--max-new", type=int, default=1024)
    parser.add_argument("--max-num-seqs", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--processes", nargs="+", default=["same", "own"], choices=OWN_PROCESS)
    parser.add_argument("--cache-gib", type=float, default=8, help="of each engine's cache")
    parser.add_argument("--one", type=int, help="this max_num_seqs, in this process; for the script's own use")
    parser.add_argument("--place", type=Path)
    args = parser.parse_args()
    if args.one:
        print("RESULT", json.dumps(one(args)), flush=True)
        os.killpg(0, 9)  # an engine in a process of its own outlives a caller that merely ends
    print("| setting | tokens/s |\n|---|---|", flush=True)
    found = all_settings(args)
    if found:
        print(f"\n--peer vllm={max(found.values()):.0f}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
