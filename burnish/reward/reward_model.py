"""RewardModel: a frozen model that scores whole responses, read at the last token of each row."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from burnish.batch import Batch, Ragged
from burnish.errors import UserError
from burnish.reward.reward_model_input import RewardInput
from burnish.training.backend import Backend
from burnish.training.inference import compute_scores
from burnish.training.packing import MicroBatchSize

CLASS_KEY = "reward_model.model.custom_cls.path"


class RewardModel:
    """A score head on a backbone. Inputs longer than `max_length` lose their beginning: the score stands at the end."""

    def __init__(
        self,
        backend: Backend,
        inputs: RewardInput,
        micro_batch: MicroBatchSize,
        *,
        max_length: int | None = None,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        self.backend = backend
        self.inputs = inputs
        self.micro_batch = micro_batch.for_device(backend.device)
        self.max_length = max_length
        self.mean = mean
        self.std = std
        self.overlong = 0  # inputs whose beginning was cut, since the last `take`
        self.overlong_responses = 0  # of these, inputs whose response alone was too long

    def compute_scores(self, batch: Batch) -> list[float]:
        """A score for each row; NaN or infinite where the model fails."""
        rows = self._cut_to_length(batch, self.inputs.ids(batch))
        scores = compute_scores(self.backend, Ragged.of(rows), self.micro_batch)
        return ((scores - self.mean) / self.std).tolist()

    def take(self) -> dict[str, float]:
        """The numbers since the last call."""
        numbers = {
            "reward_model/overlong_inputs": float(self.overlong),
            "reward_model/overlong_responses": float(self.overlong_responses),
        }
        self.overlong = self.overlong_responses = 0
        return numbers if self.max_length is not None else {}

    def _cut_to_length(self, batch: Batch, rows: list[list[int]]) -> list[list[int]]:
        limit = self.max_length
        if limit is None:
            return rows
        long = [row for row, ids in enumerate(rows) if len(ids) > limit]
        self.overlong += len(long)
        self.overlong_responses += sum(self.inputs.response_length(batch, row) > limit for row in long)
        return [ids[-limit:] for ids in rows]


class CustomRewardModel:
    """A class of the user's own: `Class(path, device)` with `score(rows)`.

    A row is a dict with `messages` (None where the dataset gives tokens only), `response` (text), `prompt_ids`,
    `response_ids`, `data_source`, `ground_truth` and `extra_info`. `score` returns one number per row.
    """

    def __init__(self, made_by: type, path: str | None, device: Any, tokenizer: Any) -> None:
        self.name = made_by.__name__
        self.tokenizer = tokenizer
        try:
            self.model = made_by(path, device)
        except Exception as error:  # the class is a user's: it may raise anything
            raise UserError(f"{self.name}(path, device) raised {_told(error)}", key=CLASS_KEY) from error
        if not callable(getattr(self.model, "score", None)):
            raise UserError(f"{self.name} has no method score(rows)", key=CLASS_KEY)

    def compute_scores(self, batch: Batch) -> list[float]:
        """A score for each row; NaN where it is no number."""
        rows = self._rows(batch)
        try:
            scores = list(self.model.score(rows))
        except Exception as error:
            raise UserError(f"{self.name}.score raised {_told(error)}", key=CLASS_KEY) from error
        if len(scores) != len(rows):
            raise UserError(f"{self.name}.score gave {len(scores)} scores for {len(rows)} rows", key=CLASS_KEY)
        return [_number(score) for score in scores]

    def take(self) -> dict[str, float]:
        return {}

    def _rows(self, batch: Batch) -> list[dict[str, Any]]:
        responses = batch["responses"].lists()
        columns = {
            "messages": batch.get("raw_prompt") or [None] * len(batch),
            "response": self.tokenizer.batch_decode(responses, skip_special_tokens=True),
            "prompt_ids": batch["prompt_ids"].lists(),
            "response_ids": responses,
            **{name: batch[name] for name in ("data_source", "ground_truth", "extra_info")},
        }
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _number(score: Any) -> float:
    """Whatever is no number is a failure of that row, like one that is not finite."""
    try:
        value = score.item() if hasattr(score, "item") else score  # numpy and torch scalars
    except (ValueError, RuntimeError):
        return math.nan
    return float(value) if isinstance(value, Real) else math.nan


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
