"""Kill a run at random times until it is complete, and compare it with an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from burnish.demo.tiny import make_model, make_tokenizer
from burnish.training.checkpoint import TRAINER

COMMAND = Path(__file__).with_name("command.py")
STEPS = 4
# Times, and the work of an engine: what a journal answers is not generated again.
TIMING = (
    "timing_",
    "perf/",
    "rollout/draft_",
    "rollout/decode_occupancy",
    "rollout/prefill_",
    "rollout/evicted_sessions",
)
GRPO = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=true")
PPO = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.type=adaptive",
    "critic.optim.lr=1e-3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.shuffle=true",
)
ASYNC_SAVE = ("actor_rollout_ref.actor.checkpoint.async_save=true",)
REWARD = """
def compute_score(solution_str):
    return {"score": solution_str.count("7") / max(1, len(solution_str)), "length": len(solution_str)}
"""


@dataclass(frozen=True)
class Instant:
    """The `entry`-th time a phase is entered, plus this share of its usual duration."""

    phase: str
    entry: int
    share: float = 0.0


@dataclass
class CommandResult:
    """Exit status (-9: killed), output, and the seconds of each phase in order."""

    status: int
    printed: str
    phases: list[tuple[str, float]] = field(default_factory=list)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # a short run may have ended before
        os.kill(pid, signal.SIGKILL)


class Task:
    """A tiny model, data and a reward in a folder, and the arguments of the command that trains on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_model(folder / "model", make_tokenizer("0123456789+"), hidden=16, layers=2, seed=0)
        for name, numbers in (("train", range(12)), ("val", range(12, 15))):
            rows = [{"prompt": [{"role": "user", "content": f"{n}+{n}"}], "data_source": "sums"} for n in numbers]
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "reward.py").write_text(REWARD)

    def arguments(self, run: Path, *overrides: str) -> list[str]:
        return [
            "train",
            f"actor_rollout_ref.model.path={self.folder / 'model'}",
            f"data.train_files={self.folder / 'train.jsonl'}",
            f"data.val_files={self.folder / 'val.jsonl'}",
            "data.train_batch_size=4",
            "data.max_prompt_length=16",
            "data.max_response_length=6",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "actor_rollout_ref.rollout.n=2",
            f"custom_reward_function.path={self.folder / 'reward.py'}",
            "reward.num_workers=1",
            "trainer.device=cpu",
            "trainer.logger=[console,file]",
            f"trainer.default_local_dir={run}",
            "trainer.save_freq=1",
            "trainer.test_freq=2",
            "trainer.best_metric_key=auto",
            "trainer.max_actor_ckpt_to_keep=2",
            f"trainer.total_training_steps={STEPS}",
            *overrides,
        ]


class Commands:
    """Runs commands one after the other in forks of one process (bench/command.py)."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "output.txt"
        self.process = subprocess.Popen(
            [sys.executable, str(COMMAND)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        assert self._next()[0] == "ready"

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def run(
        self,
        arguments: Sequence[str],
        *,
        at: Instant | None = None,
        do: Callable[[int], object] = kill,
        usual: Mapping[str, float] | None = None,
        inject: str | None = None,
    ) -> CommandResult:
        """Run one command. `do` is called with its pid at `at`; `usual` are the usual seconds of each phase."""
        self.output.unlink(missing_ok=True)
        request = {"arguments": list(arguments), "output": str(self.output), "inject": inject}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        entered: Counter[str] = Counter()
        since: dict[str, float] = {}
        phases: list[tuple[str, float]] = []
        pid = 0
        try:
            while True:
                event, value, seconds = self._next()
                if event == "pid":
                    pid = int(value)
                elif event == "status":
                    return CommandResult(int(value), self.output.read_text(errors="replace"), phases)
                elif event == "enter":
                    entered[value] += 1
                    since[value] = seconds
                    if at is not None and (value, entered[value]) == (at.phase, at.entry):
                        time.sleep(at.share * (usual or {}).get(value, 0.0))
                        do(pid)
                elif value in since:
                    phases.append((value, seconds - since.pop(value)))
        except BaseException:  # a test's time limit, say: the next command must not wait for this one
            self._end(pid)
            raise

    def _end(self, pid: int) -> None:
        """Kill a command that nobody waits for any more, and drop the rest of its events."""
        while not pid:
            event, value, _ = self._next()
            pid = int(value) if event == "pid" else 0
        kill(pid)
        while self._next()[0] != "status":
            pass

    def _next(self) -> tuple[str, str, float]:
        words = self.process.stdout.readline().split()
        assert words, "bench/command.py has ended"
        return words[0], words[1] if len(words) > 2 else "", float(words[-1])


class Baseline:
    """An undisturbed run: the reference for others, and the usual duration of its phases."""

    def __init__(self, commands: Commands, task: Task, folder: Path, settings: Sequence[str]) -> None:
        self.commands, self.task, self.folder, self.settings = commands, task, folder, settings
        result = commands.run(task.arguments(folder, *settings))
        assert result.status == 0, result.printed
        self.counts = Counter(phase for phase, _ in result.phases)
        self.usual = {name: fmean(s for phase, s in result.phases if phase == name) for name in self.counts}

    def random_instant(self, rng: random.Random, phases: Sequence[str] = ()) -> Instant:
        """A random instant in the first half of the run: a resumed run has fewer phases left."""
        phase = rng.choice(sorted(phases or self.counts))
        return Instant(phase, rng.randint(1, max(1, self.counts[phase] // 2)), rng.random())

    def run(self, folder: Path, **options: Any) -> CommandResult:
        return self.commands.run(self.task.arguments(folder, *self.settings), usual=self.usual, **options)


@dataclass
class Tally:
    """Kills, completed runs, and their differences from the baseline."""

    kills: Counter[str] = field(default_factory=Counter)  # by phase
    runs: int = 0
    differences: list[str] = field(default_factory=list)


def kill_repeatedly(baseline: Baseline, kills: int, seed: int, ignore: Sequence[str] = ()) -> Tally:
    """Kill runs at random times and resume them, until `kills` kills have happened and all runs are complete.

    `ignore` lists what may differ.
    """
    rng, tally = random.Random(seed), Tally()
    while tally.kills.total() < kills:
        folder = baseline.folder.with_name(f"{baseline.folder.name}_killed_{tally.runs}")
        while True:
            at = baseline.random_instant(rng) if tally.kills.total() < kills else None
            result = baseline.run(folder, at=at)
            if result.status == 0:
                break
            assert result.status == -signal.SIGKILL, result.printed
            tally.kills[at.phase] += 1
        tally.runs += 1
        tally.differences += [f"{folder.name}: {line}" for line in differences(baseline.folder, folder, ignore)]
    return tally


def differences(one: Path, other: Path, ignore: Sequence[str] = ()) -> list[str]:
    """Differences between two runs: state, order of samples, responses, and every metric that is not a time.

    `ignore` lists metrics that count the fault, settings it needs, and `checkpoints` where not all could be written.
    """
    lines = []
    for name, read in COMPARED.items():
        try:
            a, b = (
                {k: v for k, v in read(run).items() if not k.endswith(tuple(ignore) or "?")} for run in (one, other)
            )
        except OSError as error:
            lines.append(f"{name}: {error}")
            continue
        if not a:
            lines.append(f"{name}: missing")
        elif a != b:
            keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
            lines.append(f"{name}: {', '.join(map(str, keys[:4]))}")
    return lines


def state(run: Path) -> dict[str, object]:
    """Hashes of the files of the last checkpoint (weights, optimizers), and every value of its trainer.json (counters,
    sampler, KL controller, settings), so that a setting in which two runs differ on purpose can be ignored by name."""
    last = run / f"global_step_{(run / 'latest_checkpointed_iteration.txt').read_text()}"
    files = json.loads((last / "manifest.json").read_text())["files"]
    # .metadata, torch's index of the shards, contains a random id.
    hashes = {
        f"{last.name}/{name}": fact["sha256"]
        for name, fact in files.items()
        if name != TRAINER and not name.endswith(".metadata")
    }
    trainer = json.loads((last / TRAINER).read_text())
    return hashes | {f"{last.name}/{TRAINER}{key}": value for key, value in leaves(trainer)}


def leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Values of nested JSON objects, with the path that leads to each."""
    if not isinstance(value, dict) or not value:
        yield key, value
        return
    for name, part in value.items():
        yield from leaves(part, f"{key} {name}")


def metrics(run: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    numbers = {f"line {i}, step {line['step']}": None for i, line in enumerate(lines)}
    for line in lines:
        numbers |= {f"{line['step']} {k}": v for k, v in line["data"].items() if not k.startswith(TIMING)}
    return numbers


def rollouts(run: Path) -> dict[str, Any]:
    """Every sample of every step, without the seconds that tools took."""
    samples = {}
    for path in sorted((run / "rollouts").glob("[0-9]*.jsonl")):
        samples[path.name] = lines = [json.loads(line) for line in path.read_text().splitlines()]
        for turn in [turn for line in lines for turn in line.get("turns", ())]:
            turn["latency"] = None
    return samples


def checkpoints(run: Path) -> dict[str, object]:
    """Names of the checkpoints at the end, and the best one."""
    names = sorted(path.name for path in run.glob("global_step_*"))
    best = run / "best_checkpointed_iteration.txt"
    return {"checkpoints": names, "best": best.read_text() if best.exists() else None}


COMPARED = {"state": state, "metrics": metrics, "rollouts": rollouts, "checkpoints": checkpoints}
