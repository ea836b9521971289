"""Asynchronous training, simulated: throughput against staleness on 8 to 4,096 GPUs (docs/scale.md).

    python bench/plan_curves.py --picture docs/scale_async.png    # a few minutes on one core; nothing is measured
    python bench/plan_curves.py --smoke                           # two sizes of clusters

A 7B model on machines of eight H100, GRPO with groups of 8, prompts of 512 tokens, log-normal response lengths with a
median of 1,024 tokens (sigma 1.0), at most 16,384. Decoding speed, training time and weight sync come from the
planner's step-time model; burnish/doctor/planner/simulation.py plays 16 steps, of which the last 10 count. `weak`: 16
samples a step for every GPU; `strong`: 8,192 samples a step on any number of GPUs. A pool of engines gets the best of a
quarter, half and three quarters of the GPUs, as staleness 1 has it. The baseline is synchronous training with engines
on the ranks' GPUs. Writes plan_curves.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import tables

from burnish.config import load
from burnish.doctor.gpus import parse_cluster
from burnish.doctor.memory import Shapes
from burnish.doctor.planner import features
from burnish.doctor.planner.calibration import shipped
from burnish.doctor.planner.layout import ONE_STEP_OFF, Layout, applied
from burnish.doctor.planner.simulation import Lengths, Outcome, Scenario, Speed, draw, simulate
from burnish.doctor.planner.timing import ROLLOUT, SYNC, Workload, step_time
from burnish.doctor.shapes import find_shape

MODEL, GROUP, PROMPT, SLOTS = "qwen2.5-7b", 8, 512, 128
LENGTHS = Lengths(1024, 1.0, 16_384)
PER_GPU, STRONG_BATCH = 16, 8192
STEPS, SKIP = 16, 6
STALENESS = (0, 1, 2, 4)
SIZES = (8, 32, 128, 512, 2048, 4096)
SHARES = (0.25, 0.5, 0.75)  # of the GPUs, for engines
COLUMNS = {
    "scaling": "{scaling}",
    "GPUs": "{gpus:,}",
    "samples a step": "{batch:,}",
    "GPUs of engines": "{engines:,}",
    "tokens/s a GPU, on the same GPUs, synchronous": "{baseline:,.0f}",
    **{f"staleness {number}": f"{{staleness_{number}:.2f}}x" for number in STALENESS},
    "rollout of a step, mean length (s)": "{mean_rollout:.0f}",
    "longest response of a step (s)": "{longest:.0f}",
}


def mean_length() -> float:
    rng = random.Random(0)
    return statistics.fmean(LENGTHS.sample(rng) for _ in range(20_000))


def speed_of() -> Speed:
    """Of an engine, at the mean length: reading the weights, and what every sequence adds."""
    gpu, shape, calibration = parse_cluster("8xH100").gpu, find_shape(MODEL).shape, shipped()

    def seconds(sequences: float) -> float:
        more = {"prompt": PROMPT, "cached": mean_length() / 2, "steps": 1, "itemsize": 2}
        return calibration.seconds(features.decode(shape, gpu, sequences=sequences, **more))

    each = (seconds(SLOTS) - seconds(1)) / (SLOTS - 1)
    return Speed(seconds(1) - each, each)


def training(layout: Layout, gpus: int, batch: int, mean: float) -> tuple[float, float]:
    """Seconds of everything but the rollout, per response token, and of a weight sync."""
    mode = ["async_training.mode=one_step_off"] if layout.is_apart else []
    settings = [f"data.train_batch_size={batch // GROUP}", f"actor_rollout_ref.rollout.n={GROUP}", *mode]
    settings += [f"actor_rollout_ref.actor.ppo_mini_batch_size={batch // GROUP}", "algorithm.adv_estimator=grpo"]
    cfg = load([*settings, f"actor_rollout_ref.model.path={MODEL}"], check=False).cfg
    cluster, shapes = parse_cluster(f"{gpus}xH100"), Shapes(find_shape(MODEL).shape)
    work = Workload(batch // GROUP, GROUP, PROMPT, mean)
    time = step_time(applied(layout, cfg), shapes, layout, cluster, SLOTS, shipped(), work)
    rest = sum(seconds for name, seconds in time.phases.items() if name not in (ROLLOUT, SYNC))
    return rest / (batch * mean), time.phases[SYNC]


def layout_of(gpus: int, engines: int) -> Layout:
    """Weights are sharded within a machine, so that gathers do not cross machines."""
    ranks = gpus - engines
    if not engines:
        return Layout(max(1, gpus // 8), min(8, gpus), fsdp_size=8)
    pools = (ranks // 8, 8, engines // 8, 8) if gpus > 8 else (1, ranks, 1, engines)
    return Layout(
        pools[0], pools[1], fsdp_size=8, engine_machines=pools[2], engine_per_machine=pools[3], mode=ONE_STEP_OFF
    )


def played(gpus: int, engines: int, batch: int, staleness: int, speed: Speed, mean: float) -> Outcome:
    layout = layout_of(gpus, engines)
    per_token, sync = training(layout, gpus, batch, mean)
    scenario = Scenario(engines or gpus, SLOTS, batch, staleness, speed, lambda tokens: per_token * tokens, sync, STEPS)
    return simulate(scenario, draw(replace(scenario, staleness=max(STALENESS)), LENGTHS)[: STEPS + staleness])


def measure(scaling: str, gpus: int, speed: Speed, mean: float) -> dict[str, Any]:
    batch = PER_GPU * gpus if scaling == "weak" else STRONG_BATCH
    baseline = played(gpus, 0, batch, 0, speed, mean).throughput(SKIP)
    shares = {int(share * gpus): played(gpus, int(share * gpus), batch, 1, speed, mean) for share in SHARES}
    engines = max(shares, key=lambda number: shares[number].throughput(SKIP))
    row = {"scaling": scaling, "gpus": gpus, "batch": batch, "engines": engines, "baseline": baseline / gpus}
    for staleness in STALENESS:
        outcome = shares[engines] if staleness == 1 else played(gpus, engines, batch, staleness, speed, mean)
        row[f"staleness_{staleness}"] = outcome.throughput(SKIP) / baseline
        row[f"lag_{staleness}"] = statistics.fmean(outcome.lags[SKIP:])
        row[f"engines_busy_{staleness}"] = outcome.engine_busy / (engines * outcome.ends[-1])
    sequences = min(SLOTS, batch / engines)
    row["mean_rollout"] = batch * mean / engines / sequences * speed.token(round(sequences))
    row["longest"] = LENGTHS.longest * speed.token(1)
    return row


def picture(result: dict[str, Any], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for row in result["rows"]:
        if row["scaling"] == "weak":
            left.plot(STALENESS, [row[f"staleness_{s}"] for s in STALENESS], marker="o", label=f"{row['gpus']:,} GPUs")
    left.set_xlabel("staleness (updates)")
    left.set_ylabel("throughput / synchronous on the same GPUs")
    left.set_title("16 samples a step for every GPU")
    left.axhline(1.0, color="gray", linewidth=0.8)
    left.legend()
    strong = [row for row in result["rows"] if row["scaling"] == "strong"]
    sizes = [row["gpus"] for row in strong]
    right.plot(
        sizes, [row["baseline"] for row in strong], "--", marker="s", color="gray", label="same GPUs, synchronous"
    )
    for staleness in STALENESS:
        rates = [row[f"staleness_{staleness}"] * row["baseline"] for row in strong]
        right.plot(sizes, rates, marker="o", label=f"own GPUs, staleness {staleness}")
    right.set_xscale("log", base=2)
    right.set_xlabel("GPUs")
    right.set_ylabel("trained response tokens per second and GPU")
    right.set_title("8,192 samples a step")
    right.legend()
    figure.suptitle("simulated: 7B on H100, log-normal lengths, median 1,024 tokens, at most 16,384")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="two sizes of clusters")
    parser.add_argument("--picture", type=Path, help="draw the curves into this PNG")
    parser.add_argument("--draw", type=Path, help="a result file to draw; nothing is simulated")
    tables.add_option(parser)
    args = parser.parse_args()
    path = args.draw
    if path is None:
        speed, mean, rows = speed_of(), mean_length(), []
        print(tables.table(COLUMNS, []), end="", flush=True)
        for scaling in ("weak", "strong"):
            for gpus in (8, 32) if args.smoke else SIZES:
                rows.append(measure(scaling, gpus, speed, mean))
                print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
        facts = {"machine_note": "simulated", "speed": [speed.base, speed.per_sequence], "mean_length": mean}
        path = tables.save(args, "plan_curves", COLUMNS, rows, full=not args.smoke, **facts)
    if path is not None and args.picture is not None:
        picture(tables.load(path), args.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
