"""The memory plan of `burnish doctor` against what a run really takes, phase by phase.

    python bench/memory_oracle.py                   # on a machine with a CUDA device: every configuration
    python bench/memory_oracle.py --only 0.5B 3B    # those whose name has one of these texts
    python bench/memory_oracle.py --jobs 4          # up to 4 at a time, where their plans fit beside each other
    python bench/memory_oracle.py --smoke           # the same code on a CPU, tiny models, bytes of all tensors counted

Each configuration is one step of `burnish train` in a process of its own, on a model with random weights, with prompts
and responses of full length. Measured is the highest number of bytes that PyTorch had given out in a phase, and what
lies beside it: the CUDA context, the engine's cache, the memory of its CUDA graphs; planned is the same phase's bytes.
The verdict is about the largest phase. Ends with status 1 if the median error exceeds 10 %, or a configuration that was
planned to fit did not; one that did not fit beside others is run again alone.
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
from typing import TYPE_CHECKING

import torch
from memory_meters import Allocator, LiveBytes, context_bytes
from shapes import config_of, make

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.doctor.memory import Plan

GIB = 1 << 30
SHARE = 0.85  # of the device, that configurations beside each other may fill by their plans
MODEL, ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout", "ref"))
KEEP = f"{MODEL}.enable_gradient_checkpointing=false"
KL = f"{ACTOR}.use_kl_loss=true"
TORCH_HEAD = f"{MODEL}.fused_kernel_options.impl_backend=torch"
EAGER = f"{ACTOR}.use_torch_compile=false"
LORA = (f"{MODEL}.lora_rank=32", f"{ACTOR}.fsdp_config.model_dtype=bf16")
OFFLOAD = f"{ACTOR}.fsdp_config.optimizer_offload=true"


def budget(tokens: int) -> str:
    return f"{ACTOR}.ppo_max_token_len_per_gpu={tokens}"


@dataclass(frozen=True)
class Case:
    """A configuration: a shape and what is asked of it."""

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
    Case("0.5B, reference", "0.5B", (budget(32768), KL)),
    Case("0.5B, critic", "0.5B", (budget(16384), *CRITIC)),
    Case("0.5B, long rows", "0.5B", (budget(32768),), rows=8, prompt=3840),
    Case("1.5B", "1.5B", (budget(16384),)),
    Case("1.5B, nothing recomputed", "1.5B", (budget(16384), KEEP)),
    Case("1.5B, nothing recomputed, not compiled", "1.5B", (budget(8192), KEEP, EAGER)),
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
)
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
        "algorithm.rollout_correction.rollout_is=token",  # old log-probs are then always read
        "reward.num_workers=0",
        "trainer.logger=[]",
        f"trainer.device={device}",
        "trainer.total_training_steps=1",
        f"trainer.default_local_dir={folder.parent / 'run'}",
        *case.overrides,
    ]


def write_model(case: Case, folder: Path, device: str) -> None:
    from burnish.demo.tiny import make_tokenizer

    made = make(case.shape, device, torch.bfloat16 if device == "cuda" else torch.float32)
    tokenizer = make_tokenizer("0123456789+")
    made.config.eos_token_id, made.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    del made
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


def one(case: Case, folder: Path, device: str, context: int) -> dict:
    """Planned and measured bytes of every phase of one step."""
    from burnish.doctor.memory import OVERHEAD
    from burnish.loop.build import build

    write_model(case, folder, device)
    cfg, plan = plan_of(case, folder, device)
    taken_away = OVERHEAD if device == "cpu" else 0  # a CPU has no CUDA context
    planned = {phase.name: phase.bytes - taken_away for phase in plan.phases}
    rows = [
        {"prompt": [{"role": "user", "content": "1" * case.prompt}], "data_source": "any", "extra_info": {"n": n}}
        for n in range(case.rows)
    ]
    meter = LiveBytes() if device == "cpu" else Allocator(context)
    measured: dict[str, int] = {}
    with meter:
        run = build(cfg, lambda solution_str: float(len(solution_str) % 7), rows)
        run.clock = Watch(run.clock, measured, meter)
        fits = True
        try:
            run.sync_weights()
            run.schedule.step(run.step + 1)
        except torch.OutOfMemoryError:
            fits = False
        finally:
            run.close()
    return {"planned": planned, "measured": measured, "planned_fits": not plan.too_big, "fits": fits}


class Watch:
    """The run's clock, which also notes the peak of every phase."""

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


def told(case: Case, found: dict) -> tuple[str, float]:
    """A line of the table, and the error of the largest phase."""
    phase = max(found["measured"], key=found["measured"].get)
    planned, measured = found["planned"][phase], found["measured"][phase]
    error = planned / measured - 1
    others = ", ".join(
        f"{name} {found['planned'][name] / GIB:.3g} / {number / GIB:.3g}"
        for name, number in found["measured"].items()
        if name != phase
    )
    fits = "yes" if found["fits"] else "NO"
    cells = [case.name, phase, f"{planned / GIB:.3g}", f"{measured / GIB:.3g}", f"{100 * error:+.0f} %"]
    cells += ["yes" if found["planned_fits"] else "no", fits, others]
    return f"| {' | '.join(cells)} |", error


@dataclass
class Child:
    """A configuration in a process of its own; what it says lies in files, so that no pipe fills up."""

    case: Case
    planned: int
    process: subprocess.Popen
    logs: Path

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def found(self) -> dict | str:
        """Its numbers, or the error it ended with."""
        said, complained = (self.logs.with_suffix(end).read_text() for end in (".out", ".err"))
        if self.process.returncode:
            print(complained[-4000:], file=sys.stderr)
            return (complained.strip().splitlines() or [f"status {self.process.returncode}"])[-1]
        return json.loads(said.strip().splitlines()[-1])


class Children:
    """Runs configurations, up to `jobs` at a time and as many as fit on the device by their plans."""

    def __init__(self, cases: Sequence[Case], jobs: int, room: int, device: str, arguments: list[str], logs: Path):
        sizes = {case: max(phase.bytes for phase in plan_of(case, logs, device)[1].phases) for case in cases}
        self.waiting = sorted(cases, key=sizes.__getitem__)  # small ones first
        self.sizes, self.jobs, self.room, self.arguments, self.logs = sizes, jobs, room, arguments, logs
        self.running: list[Child] = []

    def start(self, case: Case) -> None:
        logs = self.logs / f"{len(list(self.logs.glob('*.out'))):02d}"
        command = [sys.executable, __file__, "--one", case.name, *self.arguments]
        with logs.with_suffix(".out").open("w") as out, logs.with_suffix(".err").open("w") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err)
        self.running.append(Child(case, self.sizes[case], process, logs))

    def _has_room(self, case: Case) -> bool:
        taken = sum(child.planned for child in self.running)
        return not self.running or (len(self.running) < self.jobs and taken + self.sizes[case] <= self.room)

    def ended(self) -> Iterator[Child]:
        """Each as it ends."""
        while self.waiting or self.running:
            if self.waiting and self._has_room(self.waiting[0]):
                self.start(self.waiting.pop(0))
                continue
            for child in [child for child in self.running if child.over]:
                self.running.remove(child)
                yield child
            time.sleep(0.1)

    def stop(self) -> None:
        """Nobody waits for these any more, and the next would find the device taken."""
        for child in self.running:
            child.process.kill()

    def alone(self, case: Case) -> Child:
        """Once more, with nobody beside it."""
        self.waiting, self.jobs = [case], 1
        (child,) = self.ended()
        return child


def measure_all(children: Children) -> tuple[list[float], list[str]]:
    """Prints a line for each as it ends; errors, and the names of those that are broken."""
    errors: list[float] = []
    broken: list[str] = []
    again = []
    for child in children.ended():
        result = child.found()
        if children.jobs > 1 and (isinstance(result, str) or not result["fits"]):
            again.append(child.case)
        else:
            _report(child.case, result, errors, broken)
    for case in again:
        _report(case, children.alone(case).found(), errors, broken)
    return errors, broken


def _report(case: Case, result: dict | str, errors: list[float], broken: list[str]) -> None:
    if isinstance(result, str):
        print(f"| {case.name} | failed: {result} |", flush=True)
        broken.append(case.name)
        return
    line, error = told(case, result)
    errors.append(abs(error))
    if result["planned_fits"] and not result["fits"]:
        broken.append(case.name)
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--only", nargs="+", default=[""], help="configurations whose name has one of these texts")
    parser.add_argument("--without", nargs="+", default=[], help="but not these (whole names)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--one", help="this configuration, in this process; prints JSON")
    parser.add_argument("--context", type=int, default=0, help="bytes of a CUDA context, for --one")
    parser.add_argument("--folder", help="where models are written; a memory disk is fast")
    parser.add_argument("--logs", help="where each process's output and errors stay")
    args = parser.parse_args()
    cases, device = (TINY, "cpu") if args.smoke else (CASES, "cuda")
    if args.one:
        (case,) = [case for case in cases if case.name == args.one]
        with tempfile.TemporaryDirectory(dir=args.folder) as place:
            print(json.dumps(one(case, Path(place) / "model", device, args.context)))
        return 0
    wanted = [case for case in cases if any(text in case.name for text in args.only)]
    chosen = [case for case in wanted if not any(text == case.name for text in args.without)]
    context = 0 if args.smoke else context_bytes()  # this process's own stays, too
    passed_on = ["--smoke"] if args.smoke else [f"--context={context}"]
    passed_on += ["--folder", args.folder] if args.folder else []
    print(
        "| configuration | largest phase | planned GiB | measured GiB | error | planned to fit | fits | other phases |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        logs = Path(args.logs or place)
        logs.mkdir(parents=True, exist_ok=True)
        room = int(SHARE * capacity_of(device))
        children = Children(chosen, args.jobs, room, device, passed_on, logs)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            errors, broken = measure_all(children)
        finally:
            children.stop()
    print(
        f"\nmedian error {100 * statistics.median(errors or [1.0]):.1f} % of {len(errors)}; broken: {broken or 'none'}"
    )
    return 0 if not broken and (args.smoke or statistics.median(errors) <= 0.1) else 1


if __name__ == "__main__":
    sys.exit(main())
