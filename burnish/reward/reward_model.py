"""RewardModel: a frozen model that scores responses at the last token of each sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """A backbone with a score head. Inputs longer than `max_length` are truncated on the left."""

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
        self.num_overlong = 0  # truncated inputs since the last `take`
        self.num_overlong_responses = 0  # those whose response alone was too long

    def compute_scores(self, batch: Batch) -> list[float]:
        """One score per row; NaN or infinite if the model fails."""
        ids = self.inputs.ids(batch)
        rows = self._truncate(batch, ids)
        scores = compute_scores(self.backend, Ragged.of(rows), self.micro_batch, **self._media(batch, ids, rows))
        return ((scores - self.mean) / self.std).tolist()

    def take(self) -> dict[str, float]:
        """Metrics since the last call."""
        numbers = {
            "reward_model/overlong_inputs": float(self.num_overlong),
            "reward_model/overlong_responses": float(self.num_overlong_responses),
        }
        self.num_overlong = self.num_overlong_responses = 0
        return numbers if self.max_length is not None else {}

    def _media(self, batch: Batch, ids: Sequence[Sequence[int]], kept: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The images of each row, at their places in what is kept of it."""
        if not any(batch.get("media") or ()):
            return {}
        media = []
        for row, whole, rest in zip(self.inputs.media(batch), ids, kept, strict=True):
            cut = len(whole) - len(rest)
            if any(item.offset < cut for item in row):
                raise UserError(
                    f"an input of {len(whole)} tokens is too long, and cutting it would cut an image",
                    key="reward_model.max_length",
                    value=self.max_length,
                )
            media.append(tuple(item.at(item.offset - cut) for item in row))
        return {"media": media}

    def _truncate(self, batch: Batch, rows: list[list[int]]) -> list[list[int]]:
        limit = self.max_length
        if limit is None:
            return rows
        long = [row for row, ids in enumerate(rows) if len(ids) > limit]
        self.num_overlong += len(long)
        self.num_overlong_responses += sum(self.inputs.response_length(batch, row) > limit for row in long)
        return [ids[-limit:] for ids in rows]


class CustomRewardModel:
    """A user's class: `Class(path, device)` with a method `score(rows)`.

    A row is a dict with `messages` (None if the dataset provides tokens only), `response` (text), `prompt_ids`,
    `response_ids`, `data_source`, `ground_truth` and `extra_info`. `score` returns one number per row.
    """

    def __init__(self, model_class: type, path: str | None, device: Any, tokenizer: Any) -> None:
        self.name = model_class.__name__
        self.tokenizer = tokenizer
        try:
            self.model = model_class(path, device)
        except Exception as error:  # user code may raise anything
            raise UserError(f"{self.name}(path, device) raised {_describe(error)}", key=CLASS_KEY) from error
        if not callable(getattr(self.model, "score", None)):
            raise UserError(f"{self.name} has no method score(rows)", key=CLASS_KEY)

    def compute_scores(self, batch: Batch) -> list[float]:
        """One score per row; NaN if it is not a number."""
        rows = self._rows(batch)
        try:
            scores = list(self.model.score(rows))
        except Exception as error:
            raise UserError(f"{self.name}.score raised {_describe(error)}", key=CLASS_KEY) from error
        if len(scores) != len(rows):
            raise UserError(f"{self.name}.score returned {len(scores)} scores for {len(rows)} rows", key=CLASS_KEY)
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
    """Convert to float; NaN, which counts as a failure of the row, if that is not possible."""
    try:
        value = score.item() if hasattr(score, "item") else score  # numpy and torch scalars
    except (ValueError, RuntimeError):
        return math.nan
    return float(value) if isinstance(value, Real) else math.nan


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
