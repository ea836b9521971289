"""UserSampler: the order of the training prompts by a user's class (data.sampler), such as a curriculum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from burnish.batch import Batch
from burnish.data.custom import class_config
from burnish.data.dataset import PromptDataset
from burnish.data.user_state import pack_state, restore_state
from burnish.errors import UserError
from burnish.user_code import load_user_attribute

if TYPE_CHECKING:
    from burnish.config.data import DataConfig

PATH_KEY, NAME_KEY = "data.sampler.class_path", "data.sampler.class_name"


class UserSampler:
    """Batches of the indices that the user's sampler yields; one iteration of it is one epoch.

    Indices are drawn one by one and only when needed, so that `update` can change what comes next.
    """

    def __init__(self, sampler: Any, dataset: PromptDataset, batch_size: int, name: str = "the sampler") -> None:
        self.sampler = sampler
        self.dataset = dataset
        self.batch_size = batch_size
        self.name = name
        self.epoch = 0
        self.offset = 0  # indices drawn in this epoch
        self.recent: list[list[int]] = []  # [index, epoch] of this step's prompts, in order
        self.returned: list[list[int]] = []  # given back; they come next
        self._iterator: Iterator[Any] = iter(sampler)

    @property
    def batches_per_epoch(self) -> int:
        return self._epoch_length() // self.batch_size

    @property
    def epochs_done(self) -> int:
        return self.epoch + (self.offset >= self._epoch_length())

    def _epoch_length(self) -> int:
        return len(self.sampler) if hasattr(self.sampler, "__len__") else len(self.dataset)

    def next(self) -> tuple[list[int], int]:
        """The next full batch and its epoch. An incomplete batch at the end of an epoch is dropped."""
        batch: list[list[int]] = []
        skipped = 0
        while len(batch) < self.batch_size:
            index, epoch = self._next_index()
            if batch and batch[0][1] != epoch:
                batch, skipped = [], skipped + 1
            if skipped > 1:
                problem = f"one iteration of the sampler has fewer prompts than a batch ({self.batch_size})"
                raise UserError(problem, key=NAME_KEY, value=self.name)
            batch.append([index, epoch])
        self.recent = batch
        return [index for index, _ in batch], batch[0][1]

    def draw(self, count: int) -> tuple[list[int], list[int]]:
        """The next `count` prompts, each with its epoch."""
        drawn = [self._next_index() for _ in range(count)]
        self.recent = [*self.recent, *map(list, drawn)]
        return [index for index, _ in drawn], [epoch for _, epoch in drawn]

    def give_back(self, count: int) -> None:
        """Return the last `count` prompts unused; they come next."""
        kept = len(self.recent) - count
        self.recent, self.returned = self.recent[:kept], [*self.recent[kept:], *self.returned]

    def update(self, batch: Batch) -> None:
        """Pass the step's batch to the user's sampler, for example for a curriculum."""
        self.recent = []
        if hasattr(self.sampler, "update"):
            self.sampler.update(batch)

    def grow(self, num_rows: int) -> None:
        """Nothing to do: the user's sampler sees the new length of its data_source."""

    def notices(self) -> list[str]:
        """Notices for the start of the run."""
        if not hasattr(self.sampler, "update") or hasattr(self.sampler, "state_dict"):
            return []
        return [f"{NAME_KEY}={self.name} has update but no state_dict: its state is lost when the run resumes"]

    def _next_index(self) -> tuple[int, int]:
        if self.returned:
            index, epoch = self.returned.pop(0)
            return index, epoch
        empty = 0
        while True:
            for index in self._iterator:
                self.offset += 1
                return self._checked(index), self.epoch
            empty += 1
            if empty > 1:
                raise UserError("the sampler yields nothing", key=NAME_KEY, value=self.name)
            self.epoch, self.offset, self._iterator = self.epoch + 1, 0, iter(self.sampler)

    def _checked(self, index: Any) -> int:
        try:
            number = index.__index__()  # ints, and the integers of numpy and torch
        except (AttributeError, TypeError):
            number = -1
        if not 0 <= number < len(self.dataset):
            problem = f"the sampler yields {index!r}"
            allowed = f"whole numbers from 0 to {len(self.dataset) - 1}"
            raise UserError(problem, key=NAME_KEY, value=self.name, allowed=allowed)
        return number

    def state_dict(self) -> dict[str, Any]:
        names = ("epoch", "offset", "returned")
        return {**{name: getattr(self, name) for name in names}, "sampler": pack_state(self.sampler, NAME_KEY)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sampler's own state; without one, replay its epochs up to the saved position."""
        if "sampler" not in state:
            hint = "the settings of the checkpoint, or trainer.resume_mode=disable"
            raise UserError("the checkpoint is of another sampler", key=NAME_KEY, value=self.name, hint=hint)
        self.returned = [list(entry) for entry in state["returned"]]
        if restore_state(self.sampler, state["sampler"], NAME_KEY):
            self._iterator = iter(self.sampler)
            self.epoch, self.offset = state["epoch"], state["offset"]
            return
        for _ in range(state["epoch"]):
            for _ in self._iterator:
                pass
            self._iterator = iter(self.sampler)
        for _ in range(state["offset"]):
            next(self._iterator, None)
        self.epoch, self.offset = state["epoch"], state["offset"]


def load_user_sampler(cfg: DataConfig, dataset: PromptDataset) -> UserSampler:
    """Create the user's class as verl does: MySampler(data_source=..., data_config=...)."""
    path, name = cfg.sampler.class_path, cfg.sampler.class_name
    assert path is not None and name is not None  # config/data_rules.py requires both
    sampler_class = load_user_attribute(path, name, key=PATH_KEY)
    try:
        sampler = sampler_class(data_source=dataset, data_config=class_config(cfg))
        return UserSampler(sampler, dataset, cfg.train_batch_size, name)
    except UserError:
        raise
    except Exception as error:  # the user's code may raise anything
        problem = f"{name}(data_source=..., data_config=...) raised {type(error).__name__}: {error}"
        raise UserError(problem, key=PATH_KEY, value=path) from error
