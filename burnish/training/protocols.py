"""Protocols of the roles that the loop calls. A local role and its handle in another process satisfy the same one.

Methods `start_...` return a function that waits for the result: worker processes begin at once, a local role when it is
waited for. The rollout engine's protocol is burnish.rollout.engine.Engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import Tensor

from burnish.batch import Batch, Ragged

if TYPE_CHECKING:
    from burnish.training.policy import UpdateResult

Result = TypeVar("Result")
Pending = Callable[[], Result]


class TrainableRole(Protocol):
    """A role with an optimizer, which checkpoints itself."""

    @property
    def device(self) -> str: ...

    def writer(self, contents: Collection[str], tokenizer: Any = None, *, copy: bool = False) -> Callable[[Path], None]:
        """A function that writes the state into a folder: with `copy` the state of now, else of when it is called."""
        ...

    def load(self, folder: Path, contents: Collection[str], *, key: str) -> None:
        """Load the parts that `contents` names. `key` is the config key that names them, for error messages."""
        ...

    def export(self, folder: Path, tokenizer: Any) -> None:
        """Write the model as a Hugging Face folder."""
        ...


class PolicyRole(TrainableRole, Protocol):
    """The trained language model."""

    def updates_once(self, num_rows: int) -> bool:
        """Whether a step is one update without dropout: its log-probs are then also the old ones."""
        ...

    def start_log_probs(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        """old_log_probs and entropys, and sum_pi_squared where the advantage estimator needs it."""
        ...

    def start_exact_kl(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        """exact_kl: KL to the reference over the whole vocabulary."""
        ...

    def start_update(self, batch: Batch, step: int) -> Pending[UpdateResult]: ...

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """What Engine.load_weights takes."""
        ...


class CriticRole(TrainableRole, Protocol):
    """The value model."""

    def start_values(self, batch: Batch) -> Pending[dict[str, Ragged]]: ...

    def start_update(self, batch: Batch, step: int) -> Pending[UpdateResult]: ...


class ReferenceRole(Protocol):
    """The frozen policy of the start."""

    def start_log_probs(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        """ref_log_prob."""
        ...


class SftRole(TrainableRole, Protocol):
    """The model of supervised fine-tuning."""

    def compute_log_probs(self, batch: Batch) -> Ragged: ...

    def update(self, batch: Batch, step: int) -> dict[str, float]: ...


class RewardModelRole(Protocol):
    """A model that scores responses."""

    def compute_scores(self, batch: Batch) -> list[float]:
        """A score for each row; NaN or infinite where the model fails."""
        ...

    def take(self) -> dict[str, float]:
        """Metrics since the last call."""
        ...
