"""Learner: what every role that learns has in common, a model with its optimizer and their state on disk."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from burnish.training.backend import Backend
from burnish.training.optim import Optimizer
from burnish.training.state import hub_weights, load_role, write_hub, writer_of


class Learner:
    """A role that learns. The loop asks it for its state; it never reaches through it for model or optimizer."""

    backend: Backend
    optimizer: Optimizer

    @property
    def device(self) -> str:
        return str(self.backend.device)

    def writer(
        self, contents: Collection[str], tokenizer: PreTrainedTokenizerBase | None = None, *, copy: bool = False
    ) -> Callable[[Path], None]:
        """What writes the state into a folder: with `copy` the state of now, else that of when it is called."""
        return writer_of(self.backend, self.optimizer, contents, tokenizer, copy=copy)

    def load(self, folder: Path, contents: Collection[str], *, key: str) -> None:
        """Read back what `contents` names. `key` is the config key that says what to load."""
        load_role(folder, self.backend, self.optimizer, contents, key=key)

    def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """The model as Hugging Face reads it."""
        weights = hub_weights(self.backend, self.optimizer)
        if self.backend.parallel.first:
            write_hub(folder, self.backend, tokenizer, weights)
