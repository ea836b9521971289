"""Recorder: the part of a run that writes: metrics, trajectories, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.batch import Batch
from burnish.log.folder import RunFolder, dump_rollouts
from burnish.log.logger import Loggers
from burnish.log.timeline import Span, Timeline
from burnish.log.tokens import TokenWriter
from burnish.loop.best import Best
from burnish.loop.experiment import Experiment
from burnish.loop.lease import Lease
from burnish.loop.saving import Saving
from burnish.redact import redact_text
from burnish.storage import disk_full
from burnish.training.checkpoint import Checkpoints
from burnish.training.external_checkpoints import ExternalCheckpoint
from burnish.training.mirror import Mirror

if TYPE_CHECKING:
    from burnish.config.optim import CheckpointConfig
    from burnish.config.trainer import TrainerConfig

MAX_UNDUMPED = 20  # steps whose trajectories are kept in memory while the disk refuses them


@dataclass
class Recorder:
    """Loggers, the run folder and checkpoints, and what was written so far."""

    trainer: TrainerConfig
    actor_checkpoint: CheckpointConfig
    critic_checkpoint: CheckpointConfig
    tokenizer: Any
    loggers: Loggers
    folder: RunFolder
    checkpoints: Checkpoints
    lease: Lease
    best: Best  # validation so far
    tokens: TokenWriter  # what every token was trained with, for the viewer
    timeline: Timeline
    mirror: Mirror | None = None  # copies of the checkpoints elsewhere
    max_prompt_length: int | None = None  # limits, for the clip ratio metrics
    max_response_length: int | None = None
    log_engine_stats: bool = True
    experiment: Experiment | None = None  # what the settings and files of the run are
    resume_from: Path | ExternalCheckpoint | None = None
    saving: Saving = field(default_factory=Saving)
    notices: list[str] = field(default_factory=list)  # logged when the loggers have started
    undumped: dict[int, list[dict]] = field(default_factory=dict)  # trajectories that the disk refused, by step
    num_restarts: int = 0  # after a worker died
    saved_step: int = 0  # of the newest checkpoint

    def fault_metrics(self) -> dict[str, float]:
        """Faults that the run survived; none, as a rule."""
        counts = {"training/restarts": self.num_restarts, "training/failed_saves": self.saving.failures}
        return {name: float(count) for name, count in counts.items() if count > 0}

    def dump_trajectories(self, step: int, batch: Batch) -> None:
        """Write the step's trajectories as readable JSON lines. What the disk refuses is tried again next step."""
        folder = self.trainer.rollout_data_dir or self.folder.rollouts
        self.undumped[step] = self.trajectory_records(batch)
        try:
            for waiting in list(self.undumped):
                dump_rollouts(folder, waiting, self.undumped[waiting])
                del self.undumped[waiting]
        except OSError as error:
            problem = f"cannot write the trajectories of step {step} to {folder} yet"
            self.loggers.note(f"{disk_full(error)}{problem}: {error}")
        while len(self.undumped) > MAX_UNDUMPED:
            oldest = min(self.undumped)
            del self.undumped[oldest]
            self.loggers.note(f"gave up writing the trajectories of step {oldest}")

    def record_step(self, step: int, batch: Batch, spans: list[Span], total_steps: int) -> None:
        """Write what `burnish view` shows of a step beside metrics and texts: its tokens, and when its phases ran."""
        self.tokens.record(step, batch)
        problem = self.tokens.take_problem()
        if problem is not None:
            self.loggers.note(problem)
        try:
            self.timeline.add(step, spans, total_steps)
        except OSError as error:
            self.loggers.note(f"{disk_full(error)}cannot write {self.timeline.path}: {error}")

    def trajectory_records(self, batch: Batch) -> list[dict]:
        """One readable record per trajectory, with the reward's extras."""
        inputs = self.tokenizer.batch_decode(batch["prompt_ids"].lists(), skip_special_tokens=False)
        scores = batch["token_level_scores"].sums().tolist()
        tokens, turns = self._token_records(batch), self._turn_records(batch)
        return [
            {
                **batch["reward_extras"][row],
                "input": inputs[row],
                "output": batch["response_text"][row],
                "gts": batch["ground_truth"][row],
                "score": scores[row],
                "uid": batch["uid"][row],
                "sample": batch["sample"][row],
                "finish_reason": batch["finish_reason"][row],
                "data_source": batch["data_source"][row],
                **_problem(batch["reward_problem"][row]),
                **tokens[row],
                **turns[row],
                **_overlong(batch, row),
            }
            for row in range(len(batch))
        ]

    def _token_records(self, batch: Batch) -> list[dict[str, list[dict]]]:
        """Every token with its log-prob and the likeliest alternatives, where rollout.logprobs asks for them."""
        if "top_log_probs" not in batch:
            return [{} for _ in range(len(batch))]

        def text(token: int) -> str:
            return self.tokenizer.decode([token])

        rows = zip(batch["responses"].lists(), batch["rollout_log_probs"].lists(), batch["top_log_probs"], strict=True)
        return [
            {
                "logprobs": [
                    {
                        "id": token,
                        "token": text(token),
                        "logprob": log_prob,
                        "top": [[text(i), value] for i, value in top],
                    }
                    for token, log_prob, top in zip(ids, log_probs, likeliest or [[]] * len(ids), strict=True)
                ]
            }
            for ids, log_probs, likeliest in rows
        ]

    def _turn_records(self, batch: Batch) -> list[dict[str, list[dict]]]:
        """The turns of each conversation: who wrote what, what it earned, how long a tool took."""
        if "turns" not in batch:
            return [{} for _ in range(len(batch))]
        return [
            {
                "turns": [
                    {
                        "role": turn.role,
                        "text": self.tokenizer.decode(ids[turn.start : turn.end], skip_special_tokens=False),
                        "reward": turn.reward,
                        "finish_reason": turn.finish_reason,
                        "tool_calls": list(turn.tool_calls),
                        "latency": turn.latency,
                    }
                    for turn in turns
                ]
            }
            for ids, turns in zip(batch["responses"].lists(), batch["turns"], strict=True)
        ]

    def close(self) -> None:
        self.tokens.close()
        self.loggers.close()


def _problem(problem: str | None) -> dict[str, str]:
    """Why a reward failed; its message may name a secret that it was given."""
    return {} if problem is None else {"problem": redact_text(str(problem))}


def _overlong(batch: Batch, row: int) -> dict[str, float | bool]:
    """The overlong penalty, where reward_model.overlong_buffer.log asks for it."""
    if "overlong_reward" not in batch:
        return {}
    points = float(batch["overlong_reward"][row])
    return {"overlong_reward": points, "overlong": points < 0}
