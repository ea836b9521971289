"""The viewer on large steps, in a real browser; and what recording for it costs.

    python bench/view.py                   # pages of a million tokens, and recording; replaces bench/results/view*.json
    python bench/view.py --tokens 100000   # smaller; writes nothing
    python bench/view.py --steps           # recording as a share of whole steps of the demos: view_steps.json
    python bench/view.py --gpu             # the same for the step of gpu_step.py on a GPU: view_steps_gpu.json
    python bench/view.py --gpu --smoke     # the same, tiny, on a CPU; writes nothing

Pages: from the request to the first colored tokens, the median of three, each with a new server and a new browser; then
frame times while the list of groups and the strip of tokens scroll. Needs Chromium with its driver (Debian: chromium,
chromium-driver) and selenium. Recording: the time that a step spends on it in the training thread, the time in the
background, and the bytes on disk.

Whole steps: a run turns recording (texts, tokens, timeline) on and off every few steps, so that both see the same
machine. Steps are timed from one to the next, with logging. The exit status is 1 if recording takes more than 1 % of a
step in the training thread. Each block of steps is also compared with the two around it: the median of these
differences has in it what the threads in the background cost, and the noise of the machine, which their middle half
shows.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tables import ROOT, add_option, save, table

from burnish.batch import Batch, Ragged
from burnish.demo.run import run_demo
from burnish.demo.tiny import make_tokenizer
from burnish.log.folder import dump_rollouts
from burnish.log.tokens import TokenWriter, token_path
from burnish.loop import fit

PAGES = {
    "step": "{rows:,} trajectories of {length:,}",
    "tokens": "{tokens:,}",
    "opens (s)": "{opens:.2f}",
    "strip scrolls: median / worst frame (ms)": "{strip_median:.0f} / {strip_worst:.0f}",
    "list scrolls: median / worst frame (ms)": "{list_median:.0f} / {list_worst:.0f}",
}
COSTS = {
    "tokens of a step": "{tokens:,}",
    "in the training thread (ms)": "{foreground:.3f}",
    "in the background (ms)": "{background:.0f}",
    "on disk (MB)": "{megabytes:.2f}",
    "MB per million tokens": "{per_million:.1f}",
}
STEPS = {
    "step": "{name}",
    "response tokens": "{tokens:,.0f}",
    "recording off (ms)": "{off:.1f}",
    "recording on (ms)": "{on:.1f}",
    "difference": "{difference:+.1%}",
    "middle half of the differences": "{lower:+.1%} to {upper:+.1%}",
    "in the training thread (ms)": "{foreground:.2f}",
    "share of a step": "{share:.2%}",
    "CPU time in the background (ms)": "{background:.1f}",
    "MB per million tokens: texts, tokens": "{texts_mb:.1f}, {tokens_mb:.1f}",
}
MAX_SHARE = 0.01  # of a step, in the training thread
BLOCK = 4  # steps with recording, then as many without; the first of each is not counted
SCROLL = """
const element = document.querySelector(arguments[0]), done = arguments[arguments.length - 1], times = [];
let last = performance.now(), count = 0;
element.scrollTop = 0;
const frame = (now) => {
  times.push(now - last); last = now; count += 1;
  element.scrollTop += 120;
  if (count < 150) requestAnimationFrame(frame); else done(times.slice(5));
};
requestAnimationFrame(frame);
"""


def make_batch(num_rows: int, length: int) -> Batch:
    """A batch as the recorder gets it."""
    total, lengths = num_rows * length, torch.full((num_rows,), length)

    def column() -> Ragged:
        return Ragged(torch.randn(total), lengths)

    return Batch(
        prompt_ids=Ragged(torch.randint(3, 13, (num_rows * 64,)), torch.full((num_rows,), 64)),
        responses=Ragged(torch.randint(3, 13, (total,)), lengths),
        response_mask=Ragged(torch.ones(total), lengths),
        rollout_log_probs=column(),
        old_log_probs=column(),
        entropys=column(),
        advantages=column(),
        token_level_rewards=column(),
        token_level_scores=column(),
        weight_version=Ragged(torch.full((total,), 7), lengths),
    )


def make_run(folder: Path, num_rows: int, length: int) -> dict[str, Any]:
    """A run folder with one step; returns what recording it took."""
    batch, writer = make_batch(num_rows, length), TokenWriter(folder / "tokens", None, make_tokenizer("0123456789+"))
    text = "0123456789" * (length // 10)
    rows = [
        {
            **{"input": f"prompt {row // 8}", "output": text, "gts": "7", "score": float(row % 2), "sample": row % 8},
            **{"uid": f"group-{row // 8}", "finish_reason": "stop", "data_source": "bench"},
        }
        for row in range(num_rows)
    ]
    dump_rollouts(folder / "rollouts", 1, rows)
    for _ in range(5):  # the last one counts: the first starts the thread
        started = time.perf_counter()
        writer.record(1, batch)
        foreground = time.perf_counter() - started
        writer.wait()
        background = time.perf_counter() - started - foreground
    writer.close()
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {"timing_s/step": 60.0}}) + "\n")
    tokens, size = num_rows * length, token_path(folder / "tokens", 1).stat().st_size
    cost = {"tokens": tokens, "foreground": foreground * 1e3, "background": background * 1e3}
    return cost | {"megabytes": size / 1e6, "per_million": size / tokens}


class StepMeter:
    """Turns a run's recording on and off in blocks of steps, and times both."""

    def __init__(self) -> None:
        self.blocks: list[list[float]] = []  # seconds of whole steps: with recording, without, with, ...
        self.foreground: list[float] = []
        self.background: list[float] = []
        self.num_tokens: list[int] = []
        self.num_recorded = 0  # tokens
        self.folder = Path()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Every run inside is measured."""
        original = fit._one_step

        def one_step(run: Any, result: Any) -> None:
            block, place = divmod(run.step, BLOCK)
            is_on, in_recording, count = block % 2 == 0, 0.0, 0
            recorder = run.recorder
            dump, record = type(recorder).dump_trajectories, type(recorder).record_step

            def timed(function: Any, *arguments: Any) -> None:
                nonlocal in_recording, count
                started = time.perf_counter()
                if is_on:
                    function(recorder, *arguments)
                in_recording += time.perf_counter() - started
                count = len(arguments[1]["responses"].flat)

            recorder.dump_trajectories = lambda *arguments: timed(dump, *arguments)
            recorder.record_step = lambda *arguments: timed(record, *arguments)
            started, background = time.perf_counter(), background_seconds()
            original(run, result)
            self.folder = recorder.folder.path
            self.num_recorded += count if is_on else 0
            if place == 0:
                self.blocks.append([])
            if place > 0:  # the first step of a run compiles, and that of a block competes with the last block's writer
                self.blocks[-1].append(time.perf_counter() - started)
                self.num_tokens.append(count)
            if place > 0 and is_on:
                self.foreground.append(in_recording)
                self.background.append(background_seconds() - background)

        fit._one_step = one_step
        try:
            yield
        finally:
            fit._one_step = original

    def row(self, name: str) -> dict[str, Any]:
        """The result; call it while the run folder exists."""
        medians = [statistics.median(block) for block in self.blocks if block]
        on, off = statistics.median(medians[::2]), statistics.median(medians[1::2])
        # A block against the mean of those before and after it: a slow drift of the machine or the task cancels out.
        middle = range(1, len(medians) - 1)
        pairs = [(medians[i], (medians[i - 1] + medians[i + 1]) / 2) for i in middle]
        found = [b / a - 1 if i % 2 else a / b - 1 for i, (a, b) in zip(middle, pairs, strict=True)]
        lower, difference, upper = statistics.quantiles(found, n=4)
        foreground = statistics.median(self.foreground)
        sizes = {
            part: sum(file.stat().st_size for file in (self.folder / part).iterdir()) / self.num_recorded
            for part in ("rollouts", "tokens")
        }
        return {
            "name": name,
            "tokens": statistics.median(self.num_tokens),
            "off": off * 1e3,
            "on": on * 1e3,
            "difference": difference,
            "lower": lower,
            "upper": upper,
            "foreground": foreground * 1e3,
            "share": foreground / off,
            "background": statistics.median(self.background) * 1e3,
            "texts_mb": sizes["rollouts"],
            "tokens_mb": sizes["tokens"],
        }


def background_seconds() -> float:
    """CPU time of the threads that write, so far."""
    threads = [thread for thread in threading.enumerate() if thread.name in ("burnish-tokens", "burnish-texts")]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0)) for thread in threads)


def demo_steps(task: str, steps: int) -> dict[str, Any]:
    """Recording in a demo, as `burnish demo --task TASK` runs it."""
    meter = StepMeter()
    with TemporaryDirectory() as folder:
        with meter.measuring():
            run_demo(Path(folder), 1, task=task, steps=steps, overrides=("trainer.logger=[file]",))
        return meter.row(f"`burnish demo --task {task}`")


def gpu_steps(steps: int, smoke: bool) -> dict[str, Any]:
    """Recording in the GPU step of gpu_step.py."""
    import gpu_step

    import burnish

    shape, device, new_tokens = ("tiny", "cpu", 16) if smoke else ("0.5B", "cuda", 256)
    rng, meter = random.Random(0), StepMeter()
    rows = [gpu_step.prompt_row(rng) for _ in range(gpu_step.PROMPTS * steps)]
    with TemporaryDirectory() as folder:
        model, run = Path(folder) / "model", Path(folder) / "run"
        gpu_step.write_model(model, shape, device)
        overrides = gpu_step.overrides(model, run, steps, new_tokens, device)
        with meter.measuring():
            burnish.train(overrides, reward=gpu_step.reward, dataset=rows)
        size = f"{gpu_step.PROMPTS * gpu_step.SAMPLES} x {new_tokens} tokens"
        return meter.row(f"GRPO, {shape}, {size}, {'CPU' if smoke else '1 GPU'}")


def measure_steps(args: argparse.Namespace) -> int:
    """Whole steps with recording on and off; exits with status 1 above MAX_SHARE."""
    name = "view_steps_gpu" if args.gpu else "view_steps"
    if args.gpu:
        rows = [gpu_steps(20 if args.smoke else 52, args.smoke)]
    else:
        rows = [demo_steps(task, 20 if args.smoke else 120) for task in ("sort", "tools")]
    print(table(STEPS, rows), end="")
    save(args, name, STEPS, rows, full=not args.smoke)
    worst = max(row["share"] for row in rows)
    print(f"recording in the training thread: {worst:.2%} of a step, at most {MAX_SHARE:.0%} is the target")
    return 0 if worst <= MAX_SHARE else 1


def open_page(folder: Path, num_rows: int, length: int) -> dict[str, Any]:
    """Open the step cold in a fresh browser, and scroll."""
    sys.path.insert(0, str(ROOT))
    from tests.view.chromium import chromium, viewer

    with viewer(folder) as url, chromium() as browser:
        browser.get(url)
        base = url.partition("/open/")[0]
        browser.get("about:blank")
        started = time.perf_counter()
        browser.get(f"{base}/#page=samples")
        ready = "return document.querySelectorAll('.strip span').length > 0 && document.querySelector('.item') !== null"
        while not browser.execute_script(ready):
            time.sleep(0.005)
        opens = time.perf_counter() - started
        browser.set_script_timeout(60)
        frames = {name: sorted(browser.execute_async_script(SCROLL, f".{name}")) for name in ("strip", "list")}
    result = {"rows": num_rows, "length": length, "tokens": num_rows * length, "opens": opens}
    for name, times in frames.items():
        result |= {f"{name}_median": times[len(times) // 2], f"{name}_worst": times[-1]}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of a step (default: one million)")
    parser.add_argument("--steps", action="store_true", help="only recording, as a share of whole steps of the demos")
    parser.add_argument("--gpu", action="store_true", help="only recording, as a share of a step on a GPU")
    parser.add_argument("--smoke", action="store_true", help="--steps or --gpu, tiny, on a CPU")
    add_option(parser)
    args = parser.parse_args()
    if args.steps or args.gpu:
        return measure_steps(args)
    is_full, pages, costs = args.tokens == 1_000_000, [], []
    for num_rows in (2000, 8):
        with TemporaryDirectory() as folder:
            costs.append(make_run(Path(folder), num_rows, args.tokens // num_rows))
            opened = [open_page(Path(folder), num_rows, args.tokens // num_rows) for _ in range(3)]
            pages.append(sorted(opened, key=lambda page: page["opens"])[1])
    with TemporaryDirectory() as folder:
        costs.append(make_run(Path(folder), 256, 18))  # a step of `burnish demo --task tools`
    print(table(PAGES, pages), table(COSTS, costs), sep="\n", end="")
    save(args, "view", PAGES, pages, full=is_full)
    save(args, "view_recording", COSTS, costs, full=is_full)
    return 0


if __name__ == "__main__":
    sys.exit(main())
