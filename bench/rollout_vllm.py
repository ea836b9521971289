"""Throughput of vLLM on the requests of bench/rollout.py: the best of several settings on the same GPU.

    python bench/rollout_vllm.py --shapes 0.5B --max-num-seqs 256 512 1024
    python bench/rollout_vllm.py --shapes 0.5B:6 1.5B:11 7B:21 --max-num-seqs 1024

Requires vLLM in the same environment as Burnish. The number after a shape is the GiB of each engine's KV cache; these
requests need 4.3, 10 and 20. Each setting runs in its own process: all start and warm up at once, then one at a time
is timed while the others idle. Requests: those of bench/rollout.py, with the same options. Temperature 1, log-probs of
the sampled tokens, prefix caching, no detokenization, dummy weights, a CUDA graph for every batch size up to
max_num_seqs. `--processes`: vLLM's engine in a separate process, in the caller's, or both. The last line is the
command for `bench/rollout.py`. Exits with status 1 if no setting of a shape worked.
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

import tables
import torch
from engines import ENGINE_SHAPES, Workload, shape_config

START_SECONDS = 300.0
ENVIRONMENT = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
MULTIPROCESSING = {"own": "1", "same": "0"}
COLUMNS = {"shape": "{shape}", "vLLM tokens/s": "{tokens_per_second:,.0f}"}
CACHE_GIB = {"tiny": 1.0, "0.5B": 6.0, "1.5B": 11.0, "3B": 14.0, "7B": 21.0}
CACHE_GIB |= {"Qwen3-0.6B": 70.0, "Qwen3-4B": 90.0, "Llama-1B": 25.0, "Gemma3-1B": 25.0}  # 768 long-tailed responses


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Warm up, signal readiness by a file, wait for all others, then time the requests under a lock."""
    from vllm import LLM, SamplingParams

    max_num_seqs, folder, (shape, gib) = args.one, args.folder, args.shapes[0]
    config, workload = shape_config(shape), Workload.of(args)
    config.dtype = torch.bfloat16
    config.save_pretrained(folder / f"model-{os.getpid()}")
    sizes = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs + 1, 16)) if size <= max_num_seqs]
    engine = LLM(
        str(folder / f"model-{os.getpid()}"),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=workload.max_model_len + 8,
        max_num_seqs=max_num_seqs,
        kv_cache_memory_bytes=int(gib * (1 << 30)),
        gpu_memory_utilization=0.05,  # only checked at start; kv_cache_memory_bytes sizes the cache
        enable_prefix_caching=True,
        disable_log_stats=True,
        compilation_config={"cudagraph_capture_sizes": sizes},
    )
    requests = workload.requests(config.vocab_size)
    prompts = [{"prompt_token_ids": list(request.ids)} for request in requests]
    lengths = [request.sampling.max_tokens for request in requests]
    sampling = [
        SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False, logprobs=0)
        for length in lengths
    ]
    engine.generate(prompts[:64], sampling[:64], use_tqdm=False)
    (folder / f"ready-{os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.1)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        engine.reset_prefix_cache()
        started = time.perf_counter()
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    return {"tokens_per_second": sum(lengths) / seconds, "seconds": seconds}


def measure_all(args: argparse.Namespace) -> dict[str, float]:
    """Tokens per second of the best setting of every shape."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        settings = list(itertools.product(args.shapes, args.max_num_seqs, args.processes))
        children = [_start(folder, args, *setting) for setting in settings]
        try:
            _wait_for_all(folder, [child for child, _ in children])
            (folder / "go").touch()
            for ((shape, _), max_num_seqs, process), pair in zip(settings, children, strict=True):
                speed = _result(f"{shape}, max_num_seqs {max_num_seqs}, {process} process", *pair)
                if speed is not None:
                    best[shape] = max(speed, best.get(shape, 0.0))
        finally:  # free the GPU memory they hold
            for child, _ in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    return best


def _start(
    folder: Path, args: argparse.Namespace, shape: tuple[str, float], max_num_seqs: int, process: str
) -> tuple[subprocess.Popen, TextIO]:
    name = f"{shape[0]}:{shape[1]}"
    command = [sys.executable, __file__, "--shapes", name, *Workload.of(args).options()]
    command += ["--one", str(max_num_seqs), "--folder", str(folder)]
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": MULTIPROCESSING[process]}
    log = (folder / f"log-{shape[0]}-{max_num_seqs}-{process}").open("w+")
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True), log


def _wait_for_all(folder: Path, children: list[subprocess.Popen]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        alive = sum(child.poll() is None for child in children)
        if len(list(folder.glob("ready-*"))) >= alive:
            return
        time.sleep(0.2)


def _result(name: str, child: subprocess.Popen, log: TextIO) -> float | None:
    child.wait()
    with log:
        log.seek(0)
        lines = log.read().splitlines()
    results = [json.loads(line.removeprefix("RESULT ")) for line in lines if line.startswith("RESULT ")]
    if not results:
        print(f"| {name} | failed: {' '.join(lines[-3:])[:300]} |", flush=True)
        return None
    speed = results[-1]["tokens_per_second"]
    print(f"| {name} | {speed:.0f} |", flush=True)
    return speed


def _shape(text: str) -> tuple[str, float]:
    name, _, gib = text.partition(":")
    if name not in ENGINE_SHAPES:
        raise argparse.ArgumentTypeError(f"one of {', '.join(ENGINE_SHAPES)}")
    return name, float(gib or CACHE_GIB[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes", type=_shape, nargs="+", default=[_shape("0.5B")], help="a name, or name:GiB of cache"
    )
    Workload.add_options(parser)
    parser.add_argument("--max-num-seqs", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--processes", nargs="+", default=["same", "own"], choices=MULTIPROCESSING)
    parser.add_argument("--one", type=int, help="internal: measure this max_num_seqs in this process")
    parser.add_argument("--folder", type=Path, help="internal")
    tables.add_option(parser)
    args = parser.parse_args()
    if args.one:
        print("RESULT", json.dumps(measure(args)), flush=True)
        os.killpg(0, 9)  # vLLM's engine process would outlive a normal exit
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("| setting | tokens/s |\n|---|---|", flush=True)
    best = measure_all(args)
    speeds = ",".join(f"{speed:.0f}" for speed in best.values())
    options = " ".join(Workload.of(args).options())
    print(f"\npython bench/rollout.py --shape {' '.join(best)} {options} --peer vllm={speeds}")
    rows = [{"shape": shape, "tokens_per_second": speed} for shape, speed in best.items()]
    tables.save(args, "rollout_vllm", COLUMNS, rows, full=list(best) == ["0.5B", "1.5B", "7B"])
    return 0 if len(best) == len(args.shapes) else 1


if __name__ == "__main__":
    sys.exit(main())
