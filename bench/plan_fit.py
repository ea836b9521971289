"""Fit the planner's step-time model to measured phases, and check it on setups that were not used.

    python bench/plan_fit.py                    # prints the errors
    python bench/plan_fit.py --write            # and writes burnish/doctor/planner/coefficients.py
    python bench/plan_fit.py --add FILE ...     # merges rows of other plan_check.json files into bench/results first

Fitted on: the rows of plan_check.json marked `fit`, decoding (scaling.json, up to 4,096 sequences), updates
(train_step.json) and the head (head.json); relative errors, non-negative least squares with a weak pull towards
plausible values, because four setups do not determine every term. Exits with status 1 if the step of a checked setup,
or a phase that takes at least a tenth of it, is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import tables
from engines import make_requests
from plan_check import Session, Setup, overrides
from shapes import config_of

from burnish.config import load
from burnish.doctor.gpus import Cluster, gpu_of_device
from burnish.doctor.memory import Shapes
from burnish.doctor.planner import coefficients as shipped
from burnish.doctor.planner import features, timing
from burnish.doctor.planner.calibration import Calibration, seconds_of
from burnish.doctor.planner.features import Part, Terms
from burnish.doctor.planner.layout import ACTOR, MODEL, Layout, applied
from burnish.doctor.shapes import Shape, find_shape, shape_of

# Measured as a check, this setup was off by 41 %: the model had no limit by the host. That limit is fitted on it.
MOVED = ("0.5B PPO 128x1024, recomputed",)
LIMIT = 0.15
LARGE = 0.1  # share of a step from which on a phase's own error counts
LEAST = 0.3  # of what is plausible
PULL = 0.05  # weight of the plausible values against measured ones
MOST_SEQUENCES = 4096
PHASES = {
    "gen": timing.ROLLOUT,
    "old_log_prob": timing.OLD_LOG_PROBS,
    "ref": timing.REFERENCE,
    "values": timing.VALUES,
    "update_critic": timing.CRITIC,
    "update_actor": timing.ACTOR,
    "update_weights": timing.SYNC,
}
# Where nothing is measured: a kernel reaches two thirds of its roofline, the host needs a millisecond for a layer.
PLAUSIBLE = {
    features.LINEAR: 1.4,
    features.ELEMENTWISE: 2.0,
    features.ATTENTION: 2.5,
    features.HEAD: 1.3,
    features.OPTIMIZER: 1.3,
    features.LAUNCH: 1e-3,
    features.ROWS: 2e-5,
    features.PHASE: 5e-3,
    features.DECODE_LAYER: 4e-5,
    features.DECODE_WEIGHTS: 1.2,
    features.DECODE_LINEAR: 1.5,
    features.DECODE_CACHE: 1.2,
    features.DECODE_PROMPT: 0.8,
    features.DECODE_SAMPLE: 4.0,
    features.ROLLOUT_TOKENS: 1e-6,
    features.ROLLOUT_ROWS: 5e-5,
    features.ROLLOUT: 2e-2,
    features.SYNC_TENSORS: 1e-4,
    features.SYNC_BYTES: 1.0,
    features.HOST_TOKENS: 5e-8,
    features.STEP: 5e-3,
}
# Without compiled layers the 0.5B's update takes 1.600 s instead of 1.108 s (docs/performance.md, "Update").
EAGER_UPDATE = (1.600, 1.108)
# Machines -> tokens per second and GPU without torch.compile: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md,
# tables 1 and 3. Selective activation checkpointing there, none here.
PUBLISHED = {1: 5762, 16: 5605}
ELSEWHERE = {
    "figure": "{what}",
    "measured tokens/s": "{published:,.0f}",
    "model": "{model:,.0f}",
    "error": "{error:+.0%}",
}
COLUMNS = {
    "setup": "{name}",
    "use": "{use}",
    **{
        f"{title} s (error)": f"{{{key}:.2f}} ({{{key}_error:+.0%}})"
        for title, key in (
            *(("step", "step"), ("rollout", "gen"), ("old log-probs", "old_log_prob"), ("reference", "ref")),
            *(("values", "values"), ("critic update", "update_critic"), ("actor update", "update_actor")),
        )
    },
    "largest error that counts": "{largest:.0%}",
}


class Sample(NamedTuple):
    """Measured seconds of some work."""

    terms: Terms
    seconds: float
    weight: float = 1.0


def shape_named(name: str) -> Shape:
    return shape_of(config_of(name).to_dict())


def phase_terms(row: dict[str, Any], cluster: Cluster) -> dict[str, Terms]:
    """The model's terms of a measured setup."""
    cfg = load(row["overrides"], check=False).cfg
    layout = Layout(1, 1, micro_batch_tokens=row["tokens"], recompute=row["recompute"])
    work = timing.Workload(row["prompts"], row["samples"], row["prompt_tokens"], row["response_tokens"])
    at_once = row["prompts"] * row["samples"]
    return timing.terms_of(cfg, Shapes(shape_named(row["shape"])), work, layout, cluster, at_once)


def measured_phases(row: dict[str, Any]) -> dict[str, float]:
    found = {phase: row[name] for name, phase in PHASES.items() if row.get(name) is not None}
    return found | {timing.OTHER: row["step"] - sum(found.values())}


def samples_of(rows: list[dict[str, Any]], cluster: Cluster) -> list[Sample]:
    samples = []
    for row in rows:
        terms, seconds = phase_terms(row, cluster), measured_phases(row)
        samples += [Sample(terms[phase], seconds[phase]) for phase in seconds]
    return samples


def published_samples(results: Path, cluster: Cluster) -> list[Sample]:
    """Of earlier measurements on the same GPU."""
    gpu, samples = cluster.gpu, []
    for row in tables.load(results / "scaling.json")["rows"]:
        if row["num_sequences"] <= MOST_SEQUENCES:
            terms = features.decode(
                shape_named("0.5B"), gpu, sequences=row["num_sequences"], prompt=row["context"], cached=96, steps=1,
                itemsize=2,
            )  # fmt: skip
            samples.append(Sample(terms, row["ms_per_step"] / 1000, 0.5))
    for row in tables.load(results / "train_step.json")["rows"]:
        if row["shape"] in ("0.5B", "1.5B"):
            shape, part = shape_named(row["shape"]), Part(128, 1024, 1023, 8)
            terms = features.update(
                shape, gpu, part, recompute=False, trained=shape.parameters, updates=1, adapters=False
            )
            samples.append(Sample(terms, row["seconds"]))
    for row in tables.load(results / "head.json")["rows"]:
        if row["head"] == "triton":
            for training, key in ((False, "forward_ms"), (True, "both_ms")):
                seconds = features.head_seconds(shape_named("0.5B"), gpu, 16_384, training=training)
                samples.append(Sample(Counter({features.HEAD: seconds}), row[key] / 1000))
    return samples


def fit(samples: list[Sample]) -> dict[str, float]:
    """Coefficients, and which samples the host limits: each follows from the other, until nothing changes."""
    coefficients, limited = dict(PLAUSIBLE), [False] * len(samples)
    for _ in range(20):
        known = [Sample(_active(one.terms, slow), *one[1:]) for one, slow in zip(samples, limited, strict=True)]
        coefficients = _least_squares(known)
        before, limited = limited, [_launching(one.terms, coefficients) for one in samples]
        if limited == before:
            break
    return coefficients


def _active(terms: Terms, launching: bool) -> Terms:
    """The terms that count: of the host, or of the GPU."""
    others = {term: amount for term, amount in terms.items() if (term == features.LAUNCH) == launching}
    return Counter({**others, **{term: terms[term] for term in features.AROUND}})


def _launching(terms: Terms, coefficients: dict[str, float]) -> bool:
    host = seconds_of(_active(terms, True), coefficients)
    return host > seconds_of(_active(terms, False), coefficients)


def _least_squares(samples: list[Sample]) -> dict[str, float]:
    """Coefficients of at least LEAST of what is plausible, by coordinate descent on relative errors."""
    names = list(PLAUSIBLE)
    matrix = [
        [sample.weight * sample.terms[name] * PLAUSIBLE[name] / sample.seconds for name in names] for sample in samples
    ]
    target = [sample.weight for sample in samples]
    for index in range(len(names)):
        matrix.append([PULL if other == index else 0.0 for other in range(len(names))])
        target.append(PULL)
    scales = [1.0] * len(names)
    squares = [sum(row[index] ** 2 for row in matrix) for index in range(len(names))]
    rest = [goal - sum(row) for row, goal in zip(matrix, target, strict=True)]
    for _ in range(3000):
        for index, square in enumerate(squares):
            step = sum(row[index] * left for row, left in zip(matrix, rest, strict=True)) / square
            new = max(LEAST, scales[index] + step)
            change, scales[index] = new - scales[index], new
            rest = [left - change * row[index] for row, left in zip(matrix, rest, strict=True)]
    return {name: PLAUSIBLE[name] * scale for name, scale in zip(names, scales, strict=True)}


def earlier_rows() -> list[dict[str, Any]]:
    """A full step of another day and machine, by bench/gpu_step.py, in the form of plan_check.json."""
    session = Session("0.5B", False, prompt=6, ppo=True, kl=True)
    setup = Setup("0.5B PPO 1024x256 (bench/gpu_step.py --ppo)", session, 128, 8, 256)
    phases = {row["phase"]: row["seconds"] for row in tables.load(tables.RESULTS / "gpu_step_ppo.json")["rows"]}
    about = {"prompt_tokens": 13.0, "response_tokens": 256.0, "overrides": overrides(setup)}
    return [{**asdict(setup), **asdict(session), **phases, **about}]


def compare(row: dict[str, Any], coefficients: dict[str, float], cluster: Cluster) -> dict[str, Any]:
    """Measured seconds of a setup and the model's errors."""
    terms, measured = phase_terms(row, cluster), measured_phases(row)
    modelled = {phase: seconds_of(terms[phase], coefficients) for phase in measured}
    found: dict[str, Any] = {"name": row["name"], "use": "fitted" if row["fit"] else "checked", "step": row["step"]}
    found["step_error"] = sum(modelled.values()) / row["step"] - 1
    counted = [found["step_error"]]
    for name, phase in PHASES.items():
        if phase in measured:
            found[name], found[f"{name}_error"] = measured[phase], modelled[phase] / measured[phase] - 1
            counted += [found[f"{name}_error"]] if measured[phase] >= LARGE * row["step"] else []
    return found | {"largest": max(map(abs, counted))}


def elsewhere(calibration: Calibration, cluster: Cluster) -> list[dict[str, Any]]:
    """Figures that nothing was fitted on: rollouts of an earlier engine (rollout.json), and published ones."""
    rows = []
    for row in tables.load(tables.RESULTS / "rollout.json")["rows"]:
        shape, requests = shape_named(row["shape"]), make_requests(1024, 8, 256, 1024, 151_936)
        lengths = [request.sampling.max_tokens for request in requests]
        parts = {"prompt": 256, "itemsize": 2}
        terms = features.rollout(
            shape, cluster.gpu, rows=len(lengths), prompts=128, at_once=len(lengths), response=1e-9, **parts
        )
        seconds = calibration.seconds(terms) + calibration.coefficients[features.ROLLOUT_TOKENS] * sum(lengths)
        for step in range(max(lengths)):
            sequences = sum(length > step for length in lengths)
            terms = features.decode(shape, cluster.gpu, sequences=sequences, cached=step, steps=1, **parts)
            seconds += calibration.seconds(terms)
        rows.append({
            "what": f"rollout of 1,024 long-tailed responses, {row['shape']}, one H200 (bench/rollout.py)",
            "published": row["tokens_per_second"], "model": sum(lengths) / seconds,
        })  # fmt: skip
    for machines, speed in PUBLISHED.items():
        rows.append({
            "what": f"Llama 3.1 8B, {8 * machines} H100 (HBM2e, 500 W), FSDP, 8,192 tokens, per GPU (torchtitan)",
            "published": speed, "model": _published_update(calibration, machines),
        })  # fmt: skip
    return [{**row, "error": row["model"] / row["published"] - 1} for row in rows]


def _published_update(calibration: Calibration, machines: int) -> float:
    """Tokens per second and GPU of an update as torchtitan measured it: two sequences of 8,192 tokens on each GPU."""
    gpu = replace(gpu_of_device("H100"), bandwidth=2.4e12)
    layout, rows = Layout(machines, 8, recompute=False), 16 * machines
    settings = [f"data.train_batch_size={rows}", "actor_rollout_ref.rollout.n=1", f"{ACTOR}.ppo_mini_batch_size={rows}"]
    cfg = load([*settings, f"{MODEL}.enable_gradient_checkpointing=false"], check=False).cfg
    shapes, work = Shapes(find_shape("llama-3.1-8b").shape), timing.Workload(rows, 1, 0, 8192)
    time = timing.step_time(applied(layout, cfg), shapes, layout, Cluster(gpu, machines, 8), 1, calibration, work)
    return 2 * 8192 / time.phases[timing.ACTOR]


def eager_factor(coefficients: dict[str, float], cluster: Cluster) -> float:
    """How much longer elementwise work takes where layers are not compiled."""
    shape = shape_named("0.5B")
    terms = features.update(
        shape, cluster.gpu, Part(128, 1024, 1023, 8), recompute=False, trained=0, updates=1, adapters=False
    )
    elementwise = coefficients[features.ELEMENTWISE] * terms[features.ELEMENTWISE]
    return 1 + (EAGER_UPDATE[0] - EAGER_UPDATE[1]) / elementwise


def merge(files: list[Path]) -> None:
    """Rows of other measurements into bench/results/plan_check.json; later ones of the same name win."""
    path = tables.RESULTS / "plan_check.json"
    result, rows = None, {}
    for file in [*([path] if path.exists() else []), *files]:
        loaded = tables.load(file)
        result = {**loaded, "columns": (result or loaded)["columns"]}
        rows |= {row["name"]: {**row, "commit": row.get("commit", loaded["commit"])} for row in loaded["rows"]}
    assert result is not None
    result["rows"] = sorted(rows.values(), key=lambda row: not row["fit"])
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="further plan_check.json files")
    parser.add_argument("--write", action="store_true", help="write the calibration that ships")
    tables.add_option(parser)
    args = parser.parse_args()
    if args.add:
        merge(args.add)
    measured = tables.load(tables.RESULTS / "plan_check.json")
    rows, cluster = measured["rows"], Cluster(gpu_of_device(measured["machine"]["gpu"]), 1, 1)
    rows += earlier_rows()
    for row in rows:
        row["fit"] = row["fit"] or row["name"] in MOVED
    fitted = [row for row in rows if row["fit"]]
    coefficients = fit(samples_of(fitted, cluster) + published_samples(tables.RESULTS, cluster))
    for name, value in coefficients.items():
        print(f"{name:16} {value:.3g}")
    compared = [compare(row, coefficients, cluster) for row in rows]
    print(f"\n{tables.table(COLUMNS, compared)}")
    checked = [row for row in compared if row["use"] == "checked"]
    errors = {row["name"]: round(row["step_error"], 3) for row in checked}
    origin = f"one {measured['machine']['gpu']}, {measured['date']}: {len(fitted)} setups and earlier benchmarks"
    calibration = Calibration(
        {name: float(f"{value:.4g}") for name, value in coefficients.items()},
        round(eager_factor(coefficients, cluster), 3),
        origin,
        {"of the step": errors, "largest of a large phase": round(max((r["largest"] for r in checked), default=0), 3)},
    )
    others = elsewhere(calibration, cluster)
    print(tables.table(ELSEWHERE, others))
    if args.write:
        path = Path(shipped.__file__)
        head = path.read_text(encoding="utf-8").partition("= {")[0]
        path.write_text(f"{head}= {json.dumps(asdict(calibration), indent=4)}\n", encoding="utf-8")
        facts = {key: measured[key] for key in ("commit", "date", "machine", "versions")}
        for name, columns, found in (("plan_fit", COLUMNS, compared), ("plan_elsewhere", ELSEWHERE, others)):
            result = {"name": name, "command": "python bench/plan_fit.py", **facts, "columns": columns, "rows": found}
            (tables.RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["largest"] > LIMIT for row in checked) else 0


if __name__ == "__main__":
    sys.exit(main())
