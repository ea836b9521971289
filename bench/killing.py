"""Kill a run at random instants until it is done, and compare it with one that nobody touched."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from burnish.demo.tiny import make_model, make_tokenizer

COMMAND = Path(__file__).with_name("command.py")
STEPS = 4
TIMES = ("timing_", "perf/")
GRPO = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=true")
PPO = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.type=adaptive",
    "critic.optim.lr=1e-3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.shuffle=true",
)
BESIDE = ("actor_rollout_ref.actor.checkpoint.async_save=true",)
REWARD = """
def compute_score(solution_str):
    return {"score": solution_str.count("7") / max(1, len(solution_str)), "length": len(solution_str)}
"""


@dataclass(frozen=True)
class Instant:
    """The so-many-th time that a phase is entered, and then this share of the time it usually takes."""

    phase: str
    entry: int
    share: float = 0.0


@dataclass
class Ended:
    """How a command ended: exit status (-9 killed), what it printed, and seconds of each phase, in order."""

    status: int
    printed: str
    phases: list[tuple[str, float]] = field(default_factory=list)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


class Task:
    """A tiny model, data and a reward in a folder, and the command that trains on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_model(folder / "model", make_tokenizer("0123456789+"), hidden=16, layers=2, seed=0)
        for name, numbers in (("train", range(12)), ("val", range(12, 15))):
            rows = [{"prompt": [{"role": "user", "content": f"{n}+{n}"}], "data_source": "sums"} for n in numbers]
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "reward.py").write_text(REWARD)

    def arguments(self, run: Path, *more: str) -> list[str]:
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
            *more,
        ]


class Commands:
    """Runs commands one after the other in forks of one prepared process."""

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
        harm: str | None = None,
    ) -> Ended:
        """One command from start to end. `do` gets its pid at that instant; `usual` are the usual seconds of phases."""
        self.output.unlink(missing_ok=True)
        order = {"arguments": list(arguments), "output": str(self.output), "harm": harm}
        print(json.dumps(order), file=self.process.stdin, flush=True)
        entered: Counter[str] = Counter()
        since: dict[str, float] = {}
        phases: list[tuple[str, float]] = []
        pid = 0
        while True:
            what, about, when = self._next()
            if what == "pid":
                pid = int(about)
            elif what == "status":
                return Ended(int(about), self.output.read_text(errors="replace"), phases)
            elif what == "enter":
                entered[about] += 1
                since[about] = when
                if at is not None and (about, entered[about]) == (at.phase, at.entry):
                    time.sleep(at.share * (usual or {}).get(about, 0.0))
                    do(pid)
            elif about in since:
                phases.append((about, when - since.pop(about)))

    def _next(self) -> tuple[str, str, float]:
        words = self.process.stdout.readline().split()
        assert words, "the process that forks commands is gone"
        return words[0], words[1] if len(words) > 2 else "", float(words[-1])


class Untouched:
    """A run that nobody harms: what others are compared with, and how long its phases take."""

    def __init__(self, commands: Commands, task: Task, folder: Path, settings: Sequence[str]) -> None:
        self.commands, self.task, self.folder, self.settings = commands, task, folder, settings
        ended = commands.run(task.arguments(folder, *settings))
        assert ended.status == 0, ended.printed
        self.counts = Counter(phase for phase, _ in ended.phases)
        self.usual = {name: fmean(s for phase, s in ended.phases if phase == name) for name in self.counts}

    def instant(self, chance: random.Random, phases: Sequence[str] = ()) -> Instant:
        """Any instant of any phase; early ones, since a run that goes on has fewer left."""
        phase = chance.choice(sorted(phases or self.counts))
        return Instant(phase, chance.randint(1, max(1, self.counts[phase] // 2)), chance.random())

    def run(self, folder: Path, **how: Any) -> Ended:
        return self.commands.run(self.task.arguments(folder, *self.settings), usual=self.usual, **how)


@dataclass
class Tally:
    """Of runs that were killed again and again."""

    kills: Counter[str] = field(default_factory=Counter)  # by phase
    runs: int = 0
    differences: list[str] = field(default_factory=list)


def kill_until(whole: Untouched, kills: int, seed: int, but: Sequence[str] = ()) -> Tally:
    """Runs that are killed at random instants and started again, until there were so many kills and all are done.

    `but` is what may differ.
    """
    chance, tally = random.Random(seed), Tally()
    while tally.kills.total() < kills:
        folder = whole.folder.with_name(f"{whole.folder.name}_killed_{tally.runs}")
        while True:
            at = whole.instant(chance) if tally.kills.total() < kills else None
            ended = whole.run(folder, at=at)
            if ended.status == 0:
                break
            assert ended.status == -signal.SIGKILL, ended.printed
            tally.kills[at.phase] += 1
        tally.runs += 1
        tally.differences += [f"{folder.name}: {line}" for line in differences(whole.folder, folder, but)]
    return tally


def differences(one: Path, other: Path, but: Sequence[str] = ()) -> list[str]:
    """What differs between two runs: state, order of samples, responses, every number that is no time.

    `but` are metrics that tell of the harm, and checkpoints' names where not all could be written.
    """
    found = []
    for what, look in LOOKS.items():
        try:
            a, b = ({k: v for k, v in look(run).items() if not k.endswith(tuple(but) or "?")} for run in (one, other))
        except OSError as error:
            found.append(f"{what}: {error}")
            continue
        if not a:
            found.append(f"{what}: there is none")
        elif a != b:
            keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
            found.append(f"{what}: {', '.join(map(str, keys[:4]))}")
    return found


def state(run: Path) -> dict[str, str]:
    """Hashes of every file of the last checkpoint: weights, optimizers, counters, sampler, KL controller."""
    last = run / f"global_step_{(run / 'latest_checkpointed_iteration.txt').read_text()}"
    files = json.loads((last / "manifest.json").read_text())["files"]
    # .metadata is torch's index of the shards; it holds a new random id each time.
    return {f"{last.name}/{name}": fact["sha256"] for name, fact in files.items() if not name.endswith(".metadata")}


def metrics(run: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    numbers = {f"line {i}, step {line['step']}": None for i, line in enumerate(lines)}
    for line in lines:
        numbers |= {f"{line['step']} {k}": v for k, v in line["data"].items() if not k.startswith(TIMES)}
    return numbers


def rollouts(run: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((run / "rollouts").glob("[0-9]*.jsonl"))}


def kept(run: Path) -> dict[str, object]:
    """Which checkpoints are there at the end, and which one is the best."""
    names = sorted(path.name for path in run.glob("global_step_*"))
    best = run / "best_checkpointed_iteration.txt"
    return {"checkpoints": names, "best": best.read_text() if best.exists() else None}


LOOKS = {"state": state, "metrics": metrics, "rollouts": rollouts, "checkpoints": kept}
