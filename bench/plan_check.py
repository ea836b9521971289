"""Measured phases of training steps on one GPU, for the planner's step-time model (fitted by bench/plan_fit.py).

    python bench/plan_check.py --results FOLDER                # on a CUDA device: setups to fit on, and to check
    python bench/plan_check.py --only check --results FOLDER   # those to check: two models, about 160 s
    python bench/plan_check.py --smoke                         # tiny, on a CPU

A session loads and compiles one model with random weights, so that responses have full length, and runs a short step
to warm up. Each of its setups then takes two steps of the training loop (generation, learning, weight sync); a row
holds timings of the second. Rows are printed and saved as they are measured; no setup starts after --budget seconds.
Exits with status 1 if a setup failed, was left out, or had short responses.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tables
import torch
from gpu_step import ACTOR, MODEL, ROLLOUT, reward, write_model

from burnish.config import load
from burnish.errors import UserError
from burnish.loop.build import build
from burnish.loop.run import Run
from burnish.loop.step import ScoredBatch, learn_and_sync
from burnish.training.packing import MicroBatchSize

TIMING = "timing_s/"
COLUMNS = {
    "setup": "{name}",
    "fit": "{fit}",
    "step s": "{step:.2f}",
    "gen s": "{gen:.2f}",
    "old log-probs s": "{old_log_prob:.2f}",
    "reference s": "{ref:.2f}",
    "values s": "{values:.2f}",
    "critic update s": "{update_critic:.2f}",
    "actor update s": "{update_actor:.2f}",
    "weight sync s": "{update_weights:.3f}",
}


@dataclass(frozen=True)
class Session:
    """A model that several setups are measured with."""

    shape: str
    fit: bool  # whether the coefficients are fitted on its setups
    prompt: int = 32  # characters of a question, which are about as many tokens
    ppo: bool = False  # a critic
    kl: bool = False  # a reference
    recompute: bool = False


@dataclass(frozen=True)
class Setup:
    """One batch to measure."""

    name: str
    session: Session
    prompts: int
    samples: int
    response: int
    tokens: int = 16_384  # of a micro-batch
    mini_batch: int | None = None  # prompts per update; None: all


SMALL_PPO = Session("0.5B", False, ppo=True, kl=True, recompute=True)
LARGE_KL = Session("1.5B", False, prompt=128, kl=True)
SETUPS = (
    Setup("0.5B GRPO 256x256", Session("0.5B", True), 32, 8, 256),
    Setup("1.5B GRPO 128x512, recomputed", Session("1.5B", True, recompute=True), 16, 8, 512, 8192),
    Setup("0.5B PPO 256x512", Session("0.5B", True, ppo=True, kl=True), 32, 8, 512),
    Setup("1.5B GRPO 256x256, long prompts, 2 updates", Session("1.5B", True, prompt=256), 32, 8, 256, mini_batch=16),
    Setup("0.5B PPO 512x256, recomputed, 2 updates", SMALL_PPO, 64, 8, 256, mini_batch=32),
    Setup("0.5B PPO 128x1024, recomputed", SMALL_PPO, 16, 8, 1024, 8192),
    Setup("0.5B PPO 64x512, recomputed", SMALL_PPO, 8, 8, 512),
    Setup("1.5B GRPO 256x384, KL", LARGE_KL, 32, 8, 384, 8192),
    Setup("1.5B GRPO 64x1024, KL", LARGE_KL, 8, 8, 1024),
    Setup("1.5B GRPO 128x256, KL, 2 updates", LARGE_KL, 16, 8, 256, mini_batch=8),
)
TINY_PPO, TINY = Session("tiny", True, ppo=True, kl=True), Session("tiny", False, prompt=16, recompute=True)
SMOKE = (
    Setup("tiny PPO", TINY_PPO, 4, 2, 12, 256),
    Setup("tiny PPO, 2 updates", TINY_PPO, 4, 2, 8, 256, mini_batch=2),
    Setup("tiny GRPO", TINY, 4, 2, 12, 256),
)
WARM_UP_PROMPTS, WARM_UP_RESPONSE = 4, 48


def overrides(setup: Setup, response: int | None = None) -> list[str]:
    """What the planner reads of a setup; paths and devices are apart."""
    session, longest = setup.session, response or setup.response
    recompute = str(session.recompute).lower()
    settings = [
        f"algorithm.adv_estimator={'gae' if session.ppo else 'grpo'}",
        f"data.train_batch_size={setup.prompts}",
        f"data.max_prompt_length={2 * session.prompt + 32}",
        f"data.max_response_length={longest}",
        f"{MODEL}.enable_gradient_checkpointing={recompute}",
        f"{ACTOR}.ppo_mini_batch_size={setup.mini_batch or setup.prompts}",
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_max_token_len_per_gpu={setup.tokens}",
        f"{ACTOR}.use_kl_loss={str(session.kl).lower()}",
        f"{ACTOR}.optim.lr=1e-6",
        f"{ROLLOUT}.n={setup.samples}",
        f"{ROLLOUT}.max_num_seqs={setup.prompts * setup.samples}",
        f"{ROLLOUT}.gpu_memory_utilization=0.3",
    ]
    if session.ppo:
        settings += [
            f"critic.ppo_mini_batch_size={setup.mini_batch or setup.prompts}",
            f"critic.ppo_max_token_len_per_gpu={setup.tokens}",
            f"critic.model.enable_gradient_checkpointing={recompute}",
            "critic.optim.lr=1e-6",
        ]
    return settings


def prompt_row(rng: random.Random, session: Session) -> dict[str, Any]:
    question = "".join(rng.choice("0123456789+=") for _ in range(session.prompt))
    prompt = [{"role": "user", "content": question}]
    return {"prompt": prompt, "data_source": "digits", "reward_model": {"ground_truth": ""}}


def open_run(setups: list[Setup], model: Path, folder: Path, device: str) -> Run:
    """A run that has room for each of the setups, its engine with the policy's weights."""
    largest = max(setups, key=lambda setup: setup.prompts * setup.samples)
    rng, session = random.Random(0), largest.session
    rows = [prompt_row(rng, session) for _ in range(largest.prompts)]
    settings = [
        *overrides(largest, max(setup.response for setup in setups)),
        f"{MODEL}.path={model}",
        f"trainer.device={device}",
        "trainer.total_training_steps=1000",
        "data.shuffle=false",
        f"trainer.default_local_dir={folder}",
        "trainer.logger=[file]",
    ]
    run = build(load(settings, given=["data.train_files"]).cfg, reward, rows)
    run.sync_weights()
    return run


def one_step(run: Run, setup: Setup, number: int) -> dict[str, float]:
    """Timings and lengths of a step of the training loop with this setup's batch."""
    rollout, learner = run.rollout, run.learner
    rollout.n, rollout.sampling = setup.samples, replace(rollout.sampling, max_tokens=setup.response)
    micro_batch, mini_rows = MicroBatchSize(tokens=setup.tokens), (setup.mini_batch or setup.prompts) * setup.samples
    for role in (learner.policy, learner.critic):
        if role is not None:
            role.plan = replace(role.plan, mini_rows=mini_rows, micro_batch=micro_batch)
            role.inference_micro_batch = micro_batch
    if learner.reference is not None:
        learner.reference.micro_batch = micro_batch
    data, sampler = rollout.training_data()
    run.clock.take()
    with run.clock("step"):
        with run.clock("gen"):
            batch = rollout.collect(data.batch(*sampler.draw(setup.prompts)), number)
        learn_and_sync(rollout, learner, ScoredBatch(number, batch, 0))
    lengths = {name: float(batch[name].lengths.float().mean()) for name in ("prompt_ids", "responses")}
    return {**run.clock.take(), "prompt_tokens": lengths["prompt_ids"], "response_tokens": lengths["responses"]}


def measure(run: Run, setup: Setup, number: int) -> dict[str, Any]:
    first = one_step(run, setup, number)  # captures graphs of this batch size
    found = one_step(run, setup, number + 1)
    return {
        **asdict(setup),
        "session": None,
        **asdict(setup.session),
        **{name.removeprefix(TIMING): value for name, value in found.items()},
        "first_step": first[f"{TIMING}step"],
        "overrides": overrides(setup),
    }


class Measuring:
    """All setups, session by session."""

    def __init__(self, args: argparse.Namespace, device: str, full: bool) -> None:
        self.args, self.device, self.full = args, device, full
        self.rows: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.started = time.perf_counter()

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.started

    def run(self, setups: tuple[Setup, ...]) -> None:
        sessions = {setup.session: [other for other in setups if other.session == setup.session] for setup in setups}
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            models: dict[str, Path] = {}
            for session, members in sessions.items():
                if session.shape not in models:
                    models[session.shape] = Path(folder) / session.shape
                    write_model(models[session.shape], session.shape, self.device)
                with tempfile.TemporaryDirectory() as run_folder:
                    self._session(members, models[session.shape], Path(run_folder))
                gc.collect()
                if self.device == "cuda":
                    torch.cuda.empty_cache()

    def _session(self, setups: list[Setup], model: Path, folder: Path) -> None:
        started = time.perf_counter()
        try:
            run = open_run(setups, model, folder, self.device)
        except (RuntimeError, UserError) as error:
            self.problems.append(f"{setups[0].session}: {str(error)[:300]}")
            return
        try:
            prompts = min(WARM_UP_PROMPTS, setups[0].prompts)
            warm_up = replace(setups[0], prompts=prompts, mini_batch=prompts // 2, response=WARM_UP_RESPONSE)
            one_step(run, replace(warm_up, response=min(WARM_UP_RESPONSE, setups[0].response)), 1)
            print(f"{setups[0].session.shape}: ready after {time.perf_counter() - started:.0f} s", flush=True)
            for index, setup in enumerate(setups):
                self._setup(run, setup, 2 + 2 * index)
        finally:
            run.close()

    def _setup(self, run: Run, setup: Setup, number: int) -> None:
        if self.spent > self.args.budget:
            self.problems.append(f"{setup.name}: not measured, the budget of {self.args.budget:.0f} s is spent")
            return
        try:
            row = measure(run, setup, number)
        except (RuntimeError, UserError) as error:
            self.problems.append(f"{setup.name}: {str(error).splitlines()[0][:300]}")
            return
        self.rows.append(row)
        print(tables.table(COLUMNS, [row]).splitlines()[-1], flush=True)
        if self.device == "cuda" and row["response_tokens"] < 0.95 * setup.response:  # a tiny vocabulary ends early
            self.problems.append(f"{setup.name}: responses of {row['response_tokens']:.0f} tokens")
        tables.save(self.args, "plan_check", COLUMNS, self.rows, full=self.full)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--only", choices=["fit", "check"], help="setups to fit on, or those to check")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds after which no setup starts")
    tables.add_option(parser)
    args = parser.parse_args()
    setups, device = (SMOKE, "cpu") if args.smoke else (SETUPS, "cuda")
    if args.only is not None:
        setups = tuple(setup for setup in setups if setup.session.fit == (args.only == "fit"))
    print(tables.table(COLUMNS, []), end="", flush=True)
    measuring = Measuring(args, device, full=not args.smoke and args.only is None)
    measuring.run(setups)
    print("\n".join(f"WRONG: {problem}" for problem in measuring.problems) or "checked: all setups, lengths")
    return 1 if measuring.problems else 0


if __name__ == "__main__":
    sys.exit(main())
