"""The viewer on large steps, in a real browser; and what recording for it costs.

    python bench/view.py                   # pages of a million tokens, and recording; replaces bench/results/view*.json
    python bench/view.py --tokens 100000   # smaller; writes nothing

Pages: from the request to the first colored tokens, the median of three, each with a new server and a new browser; then
frame times while the list of groups and the strip of tokens scroll. Needs Chromium with its driver (Debian: chromium,
chromium-driver) and selenium. Recording: the time that a step spends on it in the training thread, the time in the
background, and the bytes on disk.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tables import ROOT, add_option, save, table

from burnish.batch import Batch, Ragged
from burnish.demo.tiny import make_tokenizer
from burnish.log.folder import dump_rollouts
from burnish.log.tokens import TokenWriter, token_path

sys.path.insert(0, str(ROOT))
from tests.view.chromium import chromium, viewer

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


def open_page(folder: Path, num_rows: int, length: int) -> dict[str, Any]:
    """Open the step cold in a fresh browser, and scroll."""
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
    add_option(parser)
    args = parser.parse_args()
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
