"""TrainedRole: what policy, critic and SFT model share, a model with its optimizer and their state on disk."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from burnish.training.backend import Backend
from burnish.training.optim import Optimizer
from burnish.training.state import hub_weights, load_role, role_writer, write_hub


class TrainedRole:
    """Saves and loads itself: the loop never reaches through it for model or optimizer."""

    backend: Backend
    on_mini_batch: Callable[[int | None], None] | None = None  # called before each of an update, with None after it

    @property
    def optimizer(self) -> Optimizer:
        assert self.backend.optimizer is not None, "Backend.create_optimizer comes before the role"
        return self.backend.optimizer

    @property
    def device(self) -> str:
        return str(self.backend.device)

    def writer(
        self, contents: Collection[str], tokenizer: PreTrainedTokenizerBase | None = None, *, copy: bool = False
    ) -> Callable[[Path], None]:
        """A function that writes the state into a folder: with `copy` the state of now, else of when it is called."""
        return role_writer(self.backend, contents, tokenizer, copy=copy)

    def load(self, folder: Path, contents: Collection[str], *, key: str) -> None:
        """Load the parts that `contents` names. `key` is the config key that names them, for error messages."""
        load_role(folder, self.backend, contents, key=key)

    def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Write the model as a Hugging Face folder."""
        weights = hub_weights(self.backend)
        if self.backend.parallel.is_main:
            write_hub(folder, self.backend, tokenizer, weights)
