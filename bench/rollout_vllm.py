"""vLLM on the requests of bench/rollout.py, at its best of several settings, on the same GPU.

    python bench/rollout_vllm.py --shapes 0.5B --max-num-seqs 256 512 1024
    python bench/rollout_vllm.py --shapes 0.5B:6 1.5B:11 7B:21 --max-num-seqs 1024

Needs vLLM beside Burnish (PYTHONPATH will do). The number after a shape is the GiB of each engine's cache: these
requests need 4.3, 10 and 20. Every setting is a process that starts, answers a few requests, and then waits for its
turn: all start at once, one at a time is timed, nothing else runs meanwhile. Sampling at temperature 1, log-probs of
the sampled tokens, prefix caching, no detokenizing, dummy weights, a CUDA graph for every batch size up to
max_num_seqs. `--processes`: the engine in vLLM's own process, in the caller's, or both in turn. The last lines are for
`bench/rollout.py --peer`. Ends with status 1 if a shape has no setting that worked.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

import torch
from engines import make_requests, shape_config
from shapes import SHAPES

SAMPLES, PROMPT = 8, 256
START = 300.0  # seconds
ENVIRONMENT = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
OWN_PROCESS = {"own": "1", "same": "0"}
CACHE_GIB = {"tiny": 1.0, "0.5B": 6.0, "1.5B": 11.0, "3B": 14.0, "7B": 21.0}


def one(args: argparse.Namespace) -> dict[str, float]:
    """Start, say so in a file, wait until all have, and time the requests when the lock is ours."""
    from vllm import LLM, SamplingParams

    most, place, (shape, gib) = args.one, args.place, args.shapes[0]
    config = shape_config(shape)
    config.dtype = torch.bfloat16
    config.save_pretrained(place / f"model-{os.getpid()}")
    sizes = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size <= most]
    engine = LLM(
        str(place / f"model-{os.getpid()}"),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=PROMPT + args.max_new + 8,
        max_num_seqs=most,
        kv_cache_memory_bytes=int(gib * (1 << 30)),
        gpu_memory_utilization=0.05,  # not the cache, which the line above sets: what must be free before it starts
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
    """Tokens per second of the best setting of every shape."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        settings = list(itertools.product(args.shapes, args.max_num_seqs, args.processes))
        children = [_start(place, args, *setting) for setting in settings]
        try:
            _wait_for_all(place, [child for child, _ in children])
            (place / "go").touch()
            for ((shape, _), most, process), pair in zip(settings, children, strict=True):
                speed = _told(f"{shape}, max_num_seqs {most}, {process} process", *pair)
                if speed is not None:
                    best[shape] = max(speed, best.get(shape, 0.0))
        finally:  # however it ends: what they hold of the GPU would be missing for the next
            for child, _ in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    return best


def _start(
    place: Path, args: argparse.Namespace, shape: tuple[str, float], most: int, process: str
) -> tuple[subprocess.Popen, TextIO]:
    name = f"{shape[0]}:{shape[1]}"
    command = [sys.executable, __file__, "--shapes", name, "--seqs", str(args.seqs), "--max-new", str(args.max_new)]
    command += ["--one", str(most), "--place", str(place)]
    told = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": OWN_PROCESS[process]}
    log = (place / f"log-{shape[0]}-{most}-{process}").open("w+")
    return subprocess.Popen(command, stdout=log, stderr=log, env=told, start_new_session=True), log


def _wait_for_all(place: Path, children: list[subprocess.Popen]) -> None:
    until = time.monotonic() + START
    while time.monotonic() < until:
        alive = sum(child.poll() is None for child in children)
        if len(list(place.glob("ready-*"))) >= alive:
            return
        time.sleep(0.2)


def _told(name: str, child: subprocess.Popen, log: TextIO) -> float | None:
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


def _shape(text: str) -> tuple[str, float]:
    name, _, gib = text.partition(":")
    if name not in SHAPES:
        raise argparse.ArgumentTypeError(f"one of {', '.join(SHAPES)}")
    return name, float(gib or CACHE_GIB[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes", type=_shape, nargs="+", default=[_shape("0.5B")], help="a name, or name:GiB of cache"
    )
    parser.add_argument("--seqs", type=int, default=1024)
    parser.add_argument("--max-new", type=int, default=1024)
    parser.add_argument("--max-num-seqs", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--processes", nargs="+", default=["same", "own"], choices=OWN_PROCESS)
    parser.add_argument("--one", type=int, help="this max_num_seqs, in this process; for the script's own use")
    parser.add_argument("--place", type=Path)
    args = parser.parse_args()
    if args.one:
        print("RESULT", json.dumps(one(args)), flush=True)
        os.killpg(0, 9)  # an engine in a process of its own outlives a caller that merely ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("| setting | tokens/s |\n|---|---|", flush=True)
    found = all_settings(args)
    for shape, speed in found.items():
        print(f"\nbench/rollout.py --shape {shape} --peer vllm={speed:.0f}")
    return 0 if len(found) == len(args.shapes) else 1


if __name__ == "__main__":
    sys.exit(main())
