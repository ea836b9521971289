"""Load the training and validation prompts of the `data` section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.config.data import DataConfig
from burnish.data.custom import load_custom_rows
from burnish.data.dataset import PromptDataset
from burnish.data.default_source import DefaultSourceRows
from burnish.data.files import ListRows, Rows, join_rows
from burnish.data.find import Finder
from burnish.data.handlers import HandledRows
from burnish.data.mix import MixedRows
from burnish.data.pictures import VisionEncoder
from burnish.data.sampler import PromptSampler, epoch_order
from burnish.data.user_sampler import UserSampler, load_user_sampler
from burnish.seeding import derive_seed
from burnish.storage import local_path


@dataclass(frozen=True)
class Source:
    """The files of the training or the validation set, and how to read them."""

    files: list[str]
    key: str
    split: str
    max_samples: int
    shuffle: bool
    probs: list[float] | None = None


def load_train(
    cfg: DataConfig,
    tokenizer: Any,
    *,
    run_seed: int,
    rows: Sequence[Mapping[str, Any]] | None = None,
    processor: Any = None,
    tools: Sequence[Any] = (),
    vision: VisionEncoder | None = None,
) -> PromptDataset:
    """The training prompts: `rows` if given, else data.custom_cls, else data.train_files."""
    source = Source(
        cfg.train_files, "data.train_files", cfg.train_split, cfg.train_max_samples, cfg.shuffle, cfg.train_probs
    )
    return _load(cfg, tokenizer, source, order_seed(cfg, run_seed), rows, processor, tools, vision)


def load_val(
    cfg: DataConfig,
    tokenizer: Any,
    *,
    run_seed: int,
    rows: Sequence[Mapping[str, Any]] | None = None,
    processor: Any = None,
    tools: Sequence[Any] = (),
    vision: VisionEncoder | None = None,
) -> PromptDataset:
    """The validation prompts: `rows` if given, else data.custom_cls, else data.val_files."""
    source = Source(cfg.val_files, "data.val_files", cfg.val_split, cfg.val_max_samples, cfg.validation_shuffle)
    return _load(cfg, tokenizer, source, order_seed(cfg, run_seed), rows, processor, tools, vision)


def train_sampler(cfg: DataConfig, dataset: PromptDataset, *, run_seed: int) -> PromptSampler | UserSampler:
    """The order of the training prompts: by seed, or by data.sampler."""
    if cfg.sampler.class_path:
        return load_user_sampler(cfg, dataset)
    return PromptSampler(len(dataset), cfg.train_batch_size, cfg.shuffle, order_seed(cfg, run_seed))


def order_seed(cfg: DataConfig, run_seed: int) -> int:
    """data.seed, or the run's seed where it is not set, so that the order is always reproducible."""
    return run_seed if cfg.seed is None else cfg.seed


def select_rows(num_rows: int, max_samples: int | None, shuffle: bool, seed: int) -> list[int]:
    """At most `max_samples` ascending row numbers, drawn by the seed with `shuffle`, else the first. None, -1: all."""
    if max_samples is None or max_samples < 0 or max_samples >= num_rows:
        return list(range(num_rows))
    return sorted(epoch_order(num_rows, shuffle, derive_seed("max samples", seed), epoch=0)[:max_samples])


def _load(
    cfg: DataConfig,
    tokenizer: Any,
    source: Source,
    seed: int,
    rows: Sequence[Mapping[str, Any]] | None,
    processor: Any,
    tools: Sequence[Any],
    vision: VisionEncoder | None,
) -> PromptDataset:
    max_samples = source.max_samples
    loaded: Rows
    if rows is not None:
        loaded = ListRows(rows)
    elif cfg.custom_cls.path:
        files = [local_path(file, key=source.key, use_shm=cfg.use_shm) for file in source.files]
        loaded, took_samples = load_custom_rows(cfg, files, tokenizer, processor, max_samples)
        max_samples = -1 if took_samples else max_samples
    else:
        loaded = _file_rows(cfg, tokenizer, source, seed)
    selected = select_rows(len(loaded), max_samples, source.shuffle, seed)
    return PromptDataset(loaded, tokenizer, cfg, selected=selected, key=source.key, tools=tools, vision=vision)


def _file_rows(cfg: DataConfig, tokenizer: Any, source: Source, seed: int) -> Rows:
    """The rows of all names, with the handler and a data source applied; concatenated or mixed."""
    finder = Finder(source.key, source.split, cfg.use_shm, tuple(cfg.additional_keys), tokenizer)
    parts: list[Rows] = [finder.rows(name) for name in source.files]
    if cfg.handler.name is not None:
        kept = tuple(filter(None, (cfg.reward_fn_key, cfg.image_key, cfg.video_key)))
        parts = [HandledRows(part, cfg.handler, cfg.prompt_key, kept) for part in parts]
    if cfg.reward_fn_key == DataConfig.reward_fn_key:  # a column that the user named must exist
        column = cfg.reward_fn_key
        parts = [part if column in part.kinds else DefaultSourceRows(part, column) for part in parts]
    if source.probs is not None:
        return MixedRows(parts, source.probs, seed, source.key)
    return join_rows(parts, source.key)
