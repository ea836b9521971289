"""The memory plan of `burnish doctor` against a real run, phase by phase.

    python bench/memory_oracle.py                   # on a machine with a CUDA device: every configuration
    python bench/memory_oracle.py --only 0.5B 3B    # those whose name contains one of these texts
    python bench/memory_oracle.py --jobs 4          # up to 4 in parallel, if their plans fit together
    python bench/memory_oracle.py --smoke           # tiny models on a CPU, counting the bytes of all tensors

Each configuration is one step of `burnish train` in its own process: random weights, prompts and responses of full
length. Measured is the peak of a phase: memory allocated by PyTorch, plus the CUDA context, the engine's KV cache and
CUDA-graph pools. The error is that of the largest phase. Exits with status 1 if the median error exceeds 10 %, or a
configuration that was planned to fit did not. A configuration that did not fit beside others runs again alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tables
import torch
from memory_meters import Allocator, LiveBytes, context_bytes
from shapes import config_of, make

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.doctor.memory import Plan

GIB = 1 << 30
SHARE = 0.85  # of the device that parallel configurations may fill, by their plans
MODEL, ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout", "ref"))
KEEP = f"{MODEL}.enable_gradient_checkpointing=false"
BLOCK, AUTO = f"{MODEL}.recompute.method=block", f"{MODEL}.recompute.method=auto"
KL = f"{ACTOR}.use_kl_loss=true"
TORCH_HEAD = f"{MODEL}.fused_kernel_options.impl_backend=torch"
EAGER = f"{ACTOR}.use_torch_compile=false"
LORA = (f"{MODEL}.lora_rank=32", f"{ACTOR}.fsdp_config.model_dtype=bf16")
OFFLOAD = f"{ACTOR}.fsdp_config.optimizer_offload=true"


def budget(tokens: int) -> str:
    return f"{ACTOR}.ppo_max_token_len_per_gpu={tokens}"


@dataclass(frozen=True)
class Case:
    """A configuration: a shape, overrides and batch sizes."""

    name: str
    shape: str
    overrides: tuple[str, ...] = ()
    rows: int = 32
    prompt: int = 768
    response: int = 256


CRITIC = ("algorithm.adv_estimator=gae", "critic.ppo_max_token_len_per_gpu=16384")
CASES = (
    Case("0.5B", "0.5B", (budget(16384),)),
    Case("0.5B, not compiled", "0.5B", (budget(16384), EAGER)),
    Case("0.5B, nothing recomputed", "0.5B", (budget(16384), KEEP)),
    Case("0.5B, nothing recomputed, torch head", "0.5B", (budget(8192), KEEP, TORCH_HEAD)),
    Case("0.5B, nothing recomputed, not compiled", "0.5B", (budget(16384), KEEP, EAGER)),
    Case("0.5B, half recomputed", "0.5B", (budget(16384), BLOCK, f"{MODEL}.recompute.num_layers=12")),
    Case("0.5B, reference", "0.5B", (budget(32768), KL)),
    Case("0.5B, critic", "0.5B", (budget(16384), *CRITIC)),
    Case("0.5B, long rows", "0.5B", (budget(32768),), rows=8, prompt=3840),
    Case("1.5B", "1.5B", (budget(16384),)),
    Case("1.5B, nothing recomputed", "1.5B", (budget(16384), KEEP)),
    Case("1.5B, nothing recomputed, not compiled", "1.5B", (budget(8192), KEEP, EAGER)),
    Case("1.5B, recomputed by memory", "1.5B", (budget(32768), AUTO)),
    Case("1.5B, reference, torch head", "1.5B", (budget(16384), KL, TORCH_HEAD)),
    Case("3B", "3B", (budget(16384),)),
    Case("3B, optimizer offloaded", "3B", (budget(16384), OFFLOAD)),
    Case("3B, small engine", "3B", (budget(8192), KEEP, f"{ROLLOUT}.gpu_memory_utilization=0.1")),
    Case("7B, LoRA", "7B", (budget(16384), *LORA)),
    Case("7B, LoRA, reference, torch head, not compiled", "7B", (budget(16384), *LORA, KL, TORCH_HEAD, EAGER)),
    Case("7B, LoRA, nothing recomputed", "7B", (budget(8192), *LORA, KEEP)),
)
TINY = (
    Case("tiny", "tiny", (budget(64),), rows=4, prompt=24, response=8),
    Case("tiny, reference, nothing recomputed", "tiny", (budget(64), KL, KEEP), rows=4, prompt=24, response=8),
    Case("tiny, a layer recomputed", "tiny", (budget(64), BLOCK, f"{MODEL}.recompute.num_layers=1"), 4, 24, 8),
)
COLUMNS = {
    "configuration": "{configuration}",
    "largest phase": "{phase}",
    "planned GiB": "{planned_gib:.3g}",
    "measured GiB": "{measured_gib:.3g}",
    "error": "{error:+.1%}",
    "planned to fit": "{planned_fits}",
    "fits": "{fits}",
    "other phases (planned / measured)": "{others}",
}
PHASES = {
    "gen": "rollout",
    "old_log_prob": "old log-probs",
    "ref": "reference",
    "values": "values",
    "update_critic": "update critic",
    "update_actor": "update actor",
    "update_weights": "weight sync",
}


def settings(case: Case, folder: Path, device: str) -> list[str]:
    return [
        f"{MODEL}.path={folder}",
        "algorithm.adv_estimator=grpo",
        f"data.train_batch_size={case.rows // 4}",
        f"data.max_prompt_length={case.prompt}",
        f"data.max_response_length={case.response}",
        "data.truncation=left",
        f"{ACTOR}.ppo_mini_batch_size={case.rows // 4}",
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ROLLOUT}.n=4",
        f"{ROLLOUT}.ignore_eos=true",
        f"{ROLLOUT}.max_num_seqs={case.rows}",
        "algorithm.rollout_correction.rollout_is=token",  # forces the old-log-prob phase
        "reward.num_workers=0",
        "trainer.logger=[]",
        f"trainer.device={device}",
        "trainer.total_training_steps=1",
        f"trainer.default_local_dir={folder.parent / 'run'}",
        *case.overrides,
    ]


def write_model(case: Case, folder: Path, device: str) -> None:
    from burnish.demo.tiny import make_tokenizer

    model = make(case.shape, device, torch.bfloat16 if device == "cuda" else torch.float32)
    tokenizer = make_tokenizer("0123456789+")
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()


def capacity_of(device: str) -> int:
    return torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 1 << 40


def plan_of(case: Case, folder: Path, device: str) -> tuple[TrainConfig, Plan]:
    from burnish.config import load
    from burnish.doctor.memory import Shapes, train_plan
    from burnish.doctor.shapes import shape_of

    cfg = load(settings(case, folder, device), given=["data.train_files"]).cfg
    shape = shape_of(config_of(case.shape).to_dict())
    return cfg, train_plan(cfg, Shapes(shape, critic=shape), capacity_of(device))


def measure(case: Case, folder: Path, device: str, context: int) -> dict:
    """Planned and measured bytes of every phase of one step."""
    from burnish.doctor.memory import OVERHEAD
    from burnish.loop.build import build

    write_model(case, folder, device)
    cfg, plan = plan_of(case, folder, device)
    overhead = OVERHEAD if device == "cpu" else 0  # planned for the CUDA context, which a CPU does not have
    planned = {phase.name: phase.bytes - overhead for phase in plan.phases}
    rows = [
        {"prompt": [{"role": "user", "content": "1" * case.prompt}], "data_source": "any", "extra_info": {"n": n}}
        for n in range(case.rows)
    ]
    meter = LiveBytes() if device == "cpu" else Allocator(context)
    measured: dict[str, int] = {}
    with meter:
        run = build(cfg, lambda solution_str: float(len(solution_str) % 7), rows)
        run.clock = run.rollout.clock = run.learner.clock = PeakClock(run.clock, measured, meter)
        fits = True
        try:
            run.sync_weights()
            run.schedule.step(run.step + 1)
        except torch.OutOfMemoryError:
            fits = False
        finally:
            run.close()
    return {"planned": planned, "measured": measured, "planned_fits": not plan.too_big, "fits": fits}


class PeakClock:
    """Wraps the run's clock and records the peak of every phase."""

    def __init__(self, clock, measured: dict[str, int], meter: LiveBytes | Allocator) -> None:
        self.clock, self.measured, self.meter = clock, measured, meter

    def __getattr__(self, name: str):
        return getattr(self.clock, name)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        with self.clock(name):
            self.meter.reset()
            yield
            if name in PHASES:
                self.measured[PHASES[name]] = max(self.measured.get(PHASES[name], 0), self.meter.peak_bytes())


def row_of(case: Case, result: dict) -> dict[str, Any]:
    """A row of the table: the largest phase, and planned / measured GiB of the others."""
    planned, measured = result["planned"], result["measured"]
    phase = max(measured, key=measured.get)
    others = [f"{name} {planned[name] / GIB:.3g} / {measured[name] / GIB:.3g}" for name in measured if name != phase]
    return {
        "configuration": case.name,
        "phase": phase,
        "planned_gib": planned[phase] / GIB,
        "measured_gib": measured[phase] / GIB,
        "error": planned[phase] / measured[phase] - 1,
        "planned_fits": "yes" if result["planned_fits"] else "no",
        "fits": "yes" if result["fits"] else "NO",
        "others": ", ".join(others),
    }


@dataclass
class Child:
    """A configuration in its own process; its output goes to files, so that no pipe fills up."""

    case: Case
    planned: int
    process: subprocess.Popen
    logs: Path

    @property
    def finished(self) -> bool:
        return self.process.poll() is not None

    def result(self) -> dict | str:
        """Its JSON output, or the last line of its errors."""
        output, errors = (self.logs.with_suffix(end).read_text() for end in (".out", ".err"))
        if self.process.returncode:
            print(errors[-4000:], file=sys.stderr)
            return (errors.strip().splitlines() or [f"status {self.process.returncode}"])[-1]
        return json.loads(output.strip().splitlines()[-1])


class Children:
    """Runs configurations in parallel: up to `jobs`, as long as their plans fit into `capacity` bytes."""

    def __init__(self, cases: Sequence[Case], jobs: int, capacity: int, device: str, arguments: list[str], logs: Path):
        sizes = {case: max(phase.bytes for phase in plan_of(case, logs, device)[1].phases) for case in cases}
        self.pending = sorted(cases, key=sizes.__getitem__)  # small ones first
        self.sizes, self.jobs, self.capacity, self.arguments, self.logs = sizes, jobs, capacity, arguments, logs
        self.running: list[Child] = []

    def start(self, case: Case) -> None:
        logs = self.logs / f"{len(list(self.logs.glob('*.out'))):02d}"
        command = [sys.executable, __file__, "--one", case.name, *self.arguments]
        with logs.with_suffix(".out").open("w") as out, logs.with_suffix(".err").open("w") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err)
        self.running.append(Child(case, self.sizes[case], process, logs))

    def _fits(self, case: Case) -> bool:
        planned = sum(child.planned for child in self.running)
        return not self.running or (len(self.running) < self.jobs and planned + self.sizes[case] <= self.capacity)

    def run_all(self) -> Iterator[Child]:
        """Yield each child when it has finished."""
        while self.pending or self.running:
            if self.pending and self._fits(self.pending[0]):
                self.start(self.pending.pop(0))
                continue
            for child in [child for child in self.running if child.finished]:
                self.running.remove(child)
                yield child
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill what still runs, to free the device."""
        for child in self.running:
            child.process.kill()

    def run_alone(self, case: Case) -> Child:
        self.pending, self.jobs = [case], 1
        (child,) = self.run_all()
        return child


def measure_all(children: Children) -> tuple[list[dict[str, Any]], list[str]]:
    """A row per configuration, printed as soon as it is known, and the names of those that failed."""
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    retry = []
    for child in children.run_all():
        result = child.result()
        if children.jobs > 1 and (isinstance(result, str) or not result["fits"]):
            retry.append(child.case)
        else:
            _record(child.case, result, rows, failed)
    for case in retry:
        _record(case, children.run_alone(case).result(), rows, failed)
    return rows, failed


def _record(case: Case, result: dict | str, rows: list[dict[str, Any]], failed: list[str]) -> None:
    if isinstance(result, str):
        print(f"| {case.name} | failed: {result} |", flush=True)
        failed.append(case.name)
        return
    rows.append(row_of(case, result))
    if result["planned_fits"] and not result["fits"]:
        failed.append(case.name)
    print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--only", nargs="+", default=[""], help="configurations whose name contains one of these texts")
    parser.add_argument("--without", nargs="+", default=[], help="except these (full names)")
    parser.add_argument("--jobs", type=int, default=1, help="configurations to run in parallel")
    parser.add_argument("--one", help="run this configuration in this process and print JSON")
    parser.add_argument("--context", type=int, default=0, help="internal: bytes of a CUDA context, for --one")
    parser.add_argument("--folder", help="where models are written, e.g. a memory disk")
    parser.add_argument("--logs", help="folder for the output and errors of each process")
    tables.add_option(parser)
    args = parser.parse_args()
    cases, device = (TINY, "cpu") if args.smoke else (CASES, "cuda")
    if args.one:
        (case,) = [case for case in cases if case.name == args.one]
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            print(json.dumps(measure(case, Path(folder) / "model", device, args.context)))
        return 0
    selected = [case for case in cases if any(text in case.name for text in args.only)]
    selected = [case for case in selected if case.name not in args.without]
    context = 0 if args.smoke else context_bytes()
    child_arguments = ["--smoke"] if args.smoke else [f"--context={context}"]
    child_arguments += ["--folder", args.folder] if args.folder else []
    print(tables.table(COLUMNS, []), end="", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(args.logs or folder)
        logs.mkdir(parents=True, exist_ok=True)
        capacity = int(SHARE * capacity_of(device))
        children = Children(selected, args.jobs, capacity, device, child_arguments, logs)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            rows, failed = measure_all(children)
        finally:
            children.stop()
    median = statistics.median(abs(row["error"]) for row in rows) if rows else 1.0
    print(f"\nmedian error {median:.1%} of {len(rows)}; failed: {', '.join(failed) or 'none'}")
    tables.save(args, "memory_oracle", COLUMNS, rows, full=selected == list(CASES))
    return 0 if not failed and (args.smoke or median <= 0.1) else 1


if __name__ == "__main__":
    sys.exit(main())
