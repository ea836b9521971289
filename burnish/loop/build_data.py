"""The data of a run: prompts, their order, validation prompts, and generated rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.config.async_rules import is_async
from burnish.data.datagen import RowGenerator, load_row_generator
from burnish.data.dataset import PromptDataset
from burnish.data.load import load_train, load_val, train_sampler
from burnish.data.sampler import PromptSampler
from burnish.data.user_sampler import UserSampler
from burnish.errors import UserError
from burnish.models.vision.encoder import VisionEncoder
from burnish.reward.null_scorer import NullScorer
from burnish.reward.score import Scorer
from burnish.rollout.episode import Episode
from burnish.rollout.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from burnish.config import TrainConfig

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Data:
    """Prompts to train on and to validate with."""

    train: PromptDataset | None
    sampler: PromptSampler | UserSampler | None
    val: PromptDataset | None
    growth: RowGenerator | None = None  # rows generated during training

    def notices(self, *, full_batches: bool) -> list[str]:
        """What was left out. `full_batches`: steps take whole batches, so that an epoch may leave a rest."""
        told = [notice for data in self.datasets() for notice in data.notices]
        if self.sampler is None or (isinstance(self.sampler, PromptSampler) and not full_batches):
            return told
        return told + self.sampler.notices()

    def datasets(self) -> list[PromptDataset]:
        return [data for data in (self.train, self.val) if data is not None]

    @property
    def has_pictures(self) -> bool:
        """Whether the rows have columns of images or videos that are read."""
        return any(data.encoder.vision is not None and data.media_columns.expected for data in self.datasets())

    def fingerprints(self) -> dict[str, str | None]:
        """Hashes of the rows, by key."""
        datasets = {"data.train_files": self.train, "data.val_files": self.val}
        return {key: None if data is None else data.fingerprint for key, data in datasets.items()}

    def sources(self) -> set[str]:
        return {source for data in self.datasets() for source in data.data_sources()}

    def pass_rows_to(self, scorer: Scorer | NullScorer, episode: Episode) -> None:
        """Let batches carry rows of the data if the reward function or an agent reads them.

        UserError if the reward function requires a column that does not exist.
        """
        for data in self.datasets():
            if scorer.reads_rows:
                scorer.check_columns(data.column_names())
            data.with_rows = scorer.reads_rows or episode.scores

    def with_rows_for(self, toolbox: Toolbox) -> None:
        """The same for tools that read them."""
        for data in self.datasets() if toolbox.reads_rows else ():
            data.with_rows = True


def build_data(
    cfg: TrainConfig,
    tokenizer: Any,
    dataset: Rows | None,
    val_dataset: Rows | None,
    tools: Sequence[Any] = (),
    vision: VisionEncoder | None = None,
) -> Data:
    """The prompts; schemas of `tools` are part of them. `vision` reads their pictures."""
    seed = cfg.trainer.seed
    has_val = bool(cfg.data.val_files) or val_dataset is not None
    options: dict[str, Any] = {"run_seed": seed, "tools": tools, "vision": vision}
    val = load_val(cfg.data, tokenizer, rows=val_dataset, **options) if has_val else None
    if cfg.trainer.val_only:
        if val is None:
            raise UserError("there is no validation data", key="trainer.val_only", value=True)
        return Data(None, None, val)
    train = load_train(cfg.data, tokenizer, rows=dataset, **options)
    growth = load_row_generator(cfg.data, train) if cfg.data.datagen.path else None
    return Data(train, train_sampler(cfg.data, train, run_seed=seed), val, growth)


def total_steps(cfg: TrainConfig, data: Data) -> int:
    """trainer.total_training_steps, over as many epochs as they take; else total_epochs of full batches.

    Asynchronous schedules stop at rollout.total_rollout_steps prompts.
    """
    if data.sampler is None:
        return 0
    steps = cfg.trainer.total_training_steps or cfg.trainer.total_epochs * data.sampler.batches_per_epoch
    prompts = cfg.rollout.total_rollout_steps if is_async(cfg) else None
    return steps if prompts is None else min(steps, prompts // cfg.data.train_batch_size)
