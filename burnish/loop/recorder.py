"""Recorder: the part of a run that writes: metrics, trajectories, checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.batch import Batch, Ragged
from burnish.log.folder import RunFolder
from burnish.log.logger import Loggers
from burnish.log.pictures import PictureWriter
from burnish.log.rollout_writer import RolloutWriter
from burnish.log.timeline import Span, Timeline
from burnish.log.tokens import TokenWriter
from burnish.log.validation import pick_rows
from burnish.loop.best import Best
from burnish.loop.experiment import Experiment
from burnish.loop.lease import Lease
from burnish.loop.restart import fault_metrics
from burnish.loop.saving import Saving
from burnish.models.model_input import Media, whole_runs
from burnish.redact import redact_text
from burnish.storage import disk_full
from burnish.training.checkpoint import Checkpoints
from burnish.training.external_checkpoints import ExternalCheckpoint
from burnish.training.mirror import Mirror

if TYPE_CHECKING:
    from burnish.config.optim import CheckpointConfig
    from burnish.config.trainer import TrainerConfig

# Columns of the batch that trajectories are written from.
TEXT_COLUMNS = frozenset(
    {
        "prompt_ids",
        "responses",
        "rollout_log_probs",
        "top_log_probs",
        "token_level_scores",
        "response_text",
        "reward_extras",
        "reward_problem",
        "ground_truth",
        "uid",
        "sample",
        "finish_reason",
        "data_source",
        "turns",
        "media",
        "overlong_reward",
    }
)
SHOWN = ("input", "output", "score")  # of a trajectory, in the tables of loggers


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
    texts: RolloutWriter  # trajectories as readable JSON lines
    tokens: TokenWriter  # what every token was trained with, for the viewer
    timeline: Timeline
    pictures: PictureWriter | None = None  # what trajectories show; None: they are not kept
    mirror: Mirror | None = None  # copies of the checkpoints elsewhere
    max_prompt_length: int | None = None  # limits, for the clip ratio metrics
    max_response_length: int | None = None
    log_engine_stats: bool = True
    experiment: Experiment | None = None  # what the settings and files of the run are
    resume_from: Path | ExternalCheckpoint | None = None
    saving: Saving = field(default_factory=Saving)
    notices: list[str] = field(default_factory=list)  # logged when the loggers have started
    num_restarts: int = 0  # after a worker died
    saved_step: int = 0  # of the newest checkpoint
    _texts_tokenizer: Any = None  # of the thread that writes texts

    def fault_metrics(self) -> dict[str, float]:
        return fault_metrics(self)

    def dump_trajectories(self, step: int, batch: Batch) -> None:
        """Queue the step's trajectories for writing as readable JSON lines."""
        if self._texts_tokenizer is None:  # a fast tokenizer refuses calls while another thread is in one
            self._texts_tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer = self._texts_tokenizer
        batch = Batch(**{name: _on_host(batch[name]) for name in batch if name in TEXT_COLUMNS})
        self.texts.record(step, lambda: trajectory_records(batch, tokenizer, self.pictures))
        self._report_texts()

    def log_samples(self, step: int, batch: Batch) -> None:
        """Some of the step's trajectories as a table, where trainer.log_train_generations asks for them."""
        count = self.trainer.log_train_generations
        if count > 0:
            records = trajectory_records(batch.select(pick_rows(len(batch), count)), self.tokenizer)
            shown = [[record[name] for name in SHOWN] for record in records]
            self.loggers.table("train_generations", step, SHOWN, shown)

    def flush(self) -> None:
        """Wait until the trajectories are written, as before a checkpoint: a resumed run does not write them again."""
        self.texts.wait()
        self._report_texts()

    def _report_texts(self) -> None:
        for problem in self.texts.take_problems():
            self.loggers.note(problem)
        unseen = None if self.pictures is None else self.pictures.take_problem()
        if unseen is not None:
            self.loggers.note(unseen)

    def record_step(
        self, step: int, batch: Batch, spans: list[Span], total_steps: int, workers: Mapping[str, Sequence[Span]]
    ) -> None:
        """Write what `burnish view` shows of a step beside metrics and texts: its tokens, and when its phases ran."""
        self.tokens.record(step, batch)
        problem = self.tokens.take_problem()
        if problem is not None:
            self.loggers.note(problem)
        try:
            self.timeline.add(step, spans, total_steps, workers)
        except OSError as error:
            self.loggers.note(f"{disk_full(error)}cannot write {self.timeline.path}: {error}")

    def close(self) -> None:
        self.tokens.close()
        self.texts.close()
        self._report_texts()
        self.loggers.close()


def _on_host(column: Any) -> Any:
    return Ragged(column.flat.detach().cpu(), column.lengths) if isinstance(column, Ragged) else column


def trajectory_records(batch: Batch, tokenizer: Any, pictures: PictureWriter | None = None) -> list[dict]:
    """One readable record per trajectory, with the reward's extras; `pictures` writes what it shows."""
    prompts, media = batch["prompt_ids"].lists(), batch.get("media") or [()] * len(batch)
    shown = [without_repeats(ids, 0, row) for ids, row in zip(prompts, media, strict=True)]
    inputs = decoded(tokenizer, shown)
    scores = batch["token_level_scores"].sums().tolist()
    tokens, turns = _token_records(batch, tokenizer), _turn_records(batch, tokenizer)
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
            **_pictures(media[row], pictures),
            **_overlong(batch, row),
        }
        for row in range(len(batch))
    ]


def _token_records(batch: Batch, tokenizer: Any) -> list[dict[str, list[dict]]]:
    """Every token with its log-prob and the likeliest alternatives, where rollout.logprobs asks for them."""
    if "top_log_probs" not in batch:
        return [{} for _ in range(len(batch))]

    def text(token: int) -> str:
        return tokenizer.decode([token])

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


def _turn_records(batch: Batch, tokenizer: Any) -> list[dict[str, list[dict]]]:
    """The turns of each conversation: who wrote what, what it earned, how long a tool took."""
    if "turns" not in batch:
        return [{} for _ in range(len(batch))]
    starts, media = batch["prompt_ids"].lengths.tolist(), batch.get("media") or [()] * len(batch)
    rows = zip(batch["responses"].lists(), batch["turns"], starts, media, strict=True)
    shown = [
        without_repeats(ids[turn.start : turn.end], start + turn.start, pictures)
        for ids, turns, start, pictures in rows
        for turn in turns
    ]
    texts = iter(decoded(tokenizer, shown))
    return [
        {
            "turns": [
                {
                    "role": turn.role,
                    "text": next(texts),
                    "reward": turn.reward,
                    "finish_reason": turn.finish_reason,
                    "tool_calls": list(turn.tool_calls),
                    "latency": turn.latency,
                }
                for turn in turns
            ]
        }
        for turns in batch["turns"]
    ]


def decoded(tokenizer: Any, rows: Sequence[list[int]]) -> list[str]:
    """The texts of all rows, equal rows (the prompts of a group) decoded once. Where the tokenizer has a decoder for
    many rows, it works without Python's lock, so that a step need not wait for it."""
    if not rows:  # for which transformers' batch_decode returns a text
        return []
    distinct = list(dict.fromkeys(map(tuple, rows)))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or tokenizer.clean_up_tokenization_spaces:
        texts = tokenizer.batch_decode(list(map(list, distinct)), skip_special_tokens=False)
    else:
        texts = backend.decode_batch(list(map(list, distinct)), skip_special_tokens=False)
    found = dict(zip(distinct, texts, strict=True))
    return [found[tuple(row)] for row in rows]


def without_repeats(ids: list[int], start: int, media: Sequence[Media]) -> list[int]:
    """Tokens that stand at `start` of a row, with each picture as one token: hundreds of equal ones say nothing."""
    kept, end = [], 0
    for first, stop in whole_runs(media):
        first, stop = max(first - start, 0), min(stop - start, len(ids))
        if first < stop:
            kept += ids[end : first + 1]
            end = stop
    return kept + ids[end:]


def _pictures(media: Sequence[Media], pictures: PictureWriter | None) -> dict[str, list[dict]]:
    return {"media": pictures.record(media)} if media and pictures is not None else {}


def _problem(problem: str | None) -> dict[str, str]:
    """Why a reward failed; its message may name a secret that it was given."""
    return {} if problem is None else {"problem": redact_text(str(problem))}


def _overlong(batch: Batch, row: int) -> dict[str, float | bool]:
    """The overlong penalty, where reward_model.overlong_buffer.log asks for it."""
    if "overlong_reward" not in batch:
        return {}
    points = float(batch["overlong_reward"][row])
    return {"overlong_reward": points, "overlong": points < 0}
