"""The memory plan of `burnish doctor` against what a run really takes, phase by phase.

    python bench/memory_oracle.py                   # on a machine with a CUDA device: every configuration
    python bench/memory_oracle.py --only 0.5B       # those whose name has this text
    python bench/memory_oracle.py --smoke           # the same code on a CPU, tiny models, bytes of all tensors counted

Each configuration is one step of `burnish train` in a process of its own, on a model with random weights, with prompts
and responses of full length. Measured is the highest number of bytes that PyTorch had given out in a phase, and what
the CUDA context takes beside it; planned is the same phase's bytes. The verdict is about the largest phase. Ends with
status 1 if the median error exceeds 10 %, or a configuration that was planned to fit did not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from shapes import make
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

GIB = 1 << 30
MODEL, ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout", "ref"))
KEEP = f"{MODEL}.enable_gradient_checkpointing=false"
KL = f"{ACTOR}.use_kl_loss=true"
TRITON = f"{MODEL}.fused_kernel_options.impl_backend=triton"
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


CASES = (
    Case("0.5B", "0.5B", (budget(16384),)),
    Case("0.5B, nothing recomputed", "0.5B", (budget(8192), KEEP)),
    Case("0.5B, nothing recomputed, Triton", "0.5B", (budget(16384), KEEP, TRITON)),
    Case("0.5B, reference", "0.5B", (budget(16384), KL)),
    Case(
        "0.5B, critic", "0.5B", (budget(16384), "algorithm.adv_estimator=gae", "critic.ppo_max_token_len_per_gpu=16384")
    ),
    Case("0.5B, long rows", "0.5B", (budget(32768),), rows=8, prompt=3840),
    Case("1.5B", "1.5B", (budget(16384),)),
    Case("1.5B, nothing recomputed", "1.5B", (budget(8192), KEEP)),
    Case("1.5B, reference, Triton", "1.5B", (budget(16384), KL, TRITON)),
    Case("3B", "3B", (budget(16384),)),
    Case("3B, optimizer offloaded", "3B", (budget(16384), OFFLOAD)),
    Case("3B, small engine", "3B", (budget(8192), f"{ROLLOUT}.gpu_memory_utilization=0.1")),
    Case("7B, LoRA", "7B", (budget(16384), *LORA)),
    Case("7B, LoRA, nothing recomputed", "7B", (budget(4096), *LORA, KEEP, TRITON)),
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


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensors that live, for a machine whose allocator does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor)
        return made

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, storage._cdata)

    def _gone(self, number: int) -> None:
        self.now -= self.seen.pop(number, 0)


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


def one(case: Case, folder: Path, device: str) -> dict:
    """Planned and measured bytes of every phase of one step."""
    from burnish.config import load
    from burnish.doctor.memory import OVERHEAD, Shapes, train_plan
    from burnish.doctor.shapes import find_shape
    from burnish.loop.build import build

    write_model(case, folder, device)
    cfg = load(settings(case, folder, device), given=["data.train_files"]).cfg
    capacity = torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 1 << 40
    shape = find_shape(str(folder)).shape
    plan = train_plan(cfg, Shapes(shape, critic=shape), capacity)
    taken_away = OVERHEAD if device == "cpu" else 0  # a CPU has no CUDA context
    planned = {phase.name: phase.bytes - taken_away for phase in plan.phases}
    rows = [
        {"prompt": [{"role": "user", "content": "1" * case.prompt}], "data_source": "any", "extra_info": {"n": n}}
        for n in range(case.rows)
    ]
    meter = LiveBytes() if device == "cpu" else None
    measured: dict[str, int] = {}
    with contextlib.nullcontext() if meter is None else meter:
        run = build(cfg, lambda solution_str: float(len(solution_str) % 7), rows)
        run.clock = Watch(run.clock, measured, meter)
        fits = True
        try:
            run.send_weights()
            run.pace.step(run)
        except torch.OutOfMemoryError:
            fits = False
        finally:
            run.close()
    return {"planned": planned, "measured": measured, "planned_fits": not plan.too_big, "fits": fits}


class Watch:
    """The run's clock, which also notes the peak of every phase."""

    def __init__(self, clock, measured: dict[str, int], meter: LiveBytes | None) -> None:
        self.clock, self.measured, self.meter = clock, measured, meter

    def __getattr__(self, name: str):
        return getattr(self.clock, name)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        with self.clock(name):
            _reset(self.meter)
            yield
            if name in PHASES:
                self.measured[PHASES[name]] = max(self.measured.get(PHASES[name], 0), _peak(self.meter))


def _reset(meter: LiveBytes | None) -> None:
    if meter is None:
        torch.cuda.reset_peak_memory_stats()
    else:
        meter.peak = meter.now


def _peak(meter: LiveBytes | None) -> int:
    if meter is not None:
        return meter.peak
    free, total = torch.cuda.mem_get_info()
    beside = total - free - torch.cuda.memory_reserved()  # the context, and libraries' own memory
    return torch.cuda.max_memory_allocated() + beside


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--only", default="", help="configurations whose name has this text")
    parser.add_argument("--one", help="this configuration, in this process; prints JSON")
    parser.add_argument("--folder", help="where models are written; a memory disk is fast")
    args = parser.parse_args()
    cases, device = (TINY, "cpu") if args.smoke else (CASES, "cuda")
    if args.one:
        (case,) = [case for case in cases if case.name == args.one]
        with tempfile.TemporaryDirectory(dir=args.folder) as place:
            print(json.dumps(one(case, Path(place) / "model", device)))
        return 0
    print(
        "| configuration | largest phase | planned GiB | measured GiB | error | planned to fit | fits | other phases |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    errors, broken = [], []
    for case in cases:
        if args.only not in case.name:
            continue
        command = [sys.executable, __file__, "--one", case.name, *(["--smoke"] if args.smoke else [])]
        done = subprocess.run(
            [*command, *(["--folder", args.folder] if args.folder else [])], capture_output=True, text=True
        )
        if done.returncode:
            print(f"| {case.name} | failed: {done.stderr.strip().splitlines()[-1]} |", flush=True)
            print(done.stderr[-4000:], file=sys.stderr)
            broken.append(case.name)
            continue
        found = json.loads(done.stdout.strip().splitlines()[-1])
        line, error = told(case, found)
        errors.append(abs(error))
        if found["planned_fits"] and not found["fits"]:
            broken.append(case.name)
        print(line, flush=True)
    print(
        f"\nmedian error {100 * statistics.median(errors or [1.0]):.1f} % of {len(errors)}; broken: {broken or 'none'}"
    )
    return 0 if not broken and (args.smoke or statistics.median(errors) <= 0.1) else 1


if __name__ == "__main__":
    sys.exit(main())
