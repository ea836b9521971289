"""The training and validation prompts that the `data` section asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.config.data import DataConfig
from burnish.data.custom import load_custom_rows
from burnish.data.dataset import PromptDataset
from burnish.data.files import ListRows, Rows, join_rows
from burnish.data.find import Finder
from burnish.data.handlers import HandledRows
from burnish.data.mix import MixedRows
from burnish.data.named import NamedRows
from burnish.data.sampler import PromptSampler, epoch_order
from burnish.data.user_sampler import UserSampler, load_user_sampler
from burnish.seeding import derive_seed
from burnish.storage import local_path


@dataclass(frozen=True)
class Wanted:
    """One of the two sets of prompts: its files and how they are read."""

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
) -> PromptDataset:
    """The training prompts: `rows` where given, else data.custom_cls, else data.train_files."""
    wanted = Wanted(
        cfg.train_files, "data.train_files", cfg.train_split, cfg.train_max_samples, cfg.shuffle, cfg.train_probs
    )
    return _load(cfg, tokenizer, wanted, order_seed(cfg, run_seed), rows, processor)


def load_val(
    cfg: DataConfig,
    tokenizer: Any,
    *,
    run_seed: int,
    rows: Sequence[Mapping[str, Any]] | None = None,
    processor: Any = None,
) -> PromptDataset:
    """The validation prompts: `rows` where given, else data.custom_cls, else data.val_files."""
    wanted = Wanted(cfg.val_files, "data.val_files", cfg.val_split, cfg.val_max_samples, cfg.validation_shuffle)
    return _load(cfg, tokenizer, wanted, order_seed(cfg, run_seed), rows, processor)


def train_sampler(cfg: DataConfig, dataset: PromptDataset, *, run_seed: int) -> PromptSampler | UserSampler:
    """The order of the training prompts: by seed, or by data.sampler."""
    if cfg.sampler.class_path:
        return load_user_sampler(cfg, dataset)
    return PromptSampler(len(dataset), cfg.train_batch_size, cfg.shuffle, order_seed(cfg, run_seed))


def order_seed(cfg: DataConfig, run_seed: int) -> int:
    """data.seed, or the run's own where it is not set: the order is never left to chance."""
    return run_seed if cfg.seed is None else cfg.seed


def pick(num_rows: int, max_samples: int | None, shuffle: bool, seed: int) -> list[int]:
    """At most `max_samples` row numbers, rising: chosen by the seed, or the first ones. None or -1: all."""
    if max_samples is None or max_samples < 0 or max_samples >= num_rows:
        return list(range(num_rows))
    return sorted(epoch_order(num_rows, shuffle, derive_seed("max samples", seed), epoch=0)[:max_samples])


def _load(
    cfg: DataConfig,
    tokenizer: Any,
    wanted: Wanted,
    seed: int,
    rows: Sequence[Mapping[str, Any]] | None,
    processor: Any,
) -> PromptDataset:
    max_samples = wanted.max_samples
    found: Rows
    if rows is not None:
        found = ListRows(rows)
    elif cfg.custom_cls.path:
        files = [local_path(file, key=wanted.key, use_shm=cfg.use_shm) for file in wanted.files]
        found, took_samples = load_custom_rows(cfg, files, tokenizer, processor, max_samples)
        max_samples = -1 if took_samples else max_samples
    else:
        found = _file_rows(cfg, tokenizer, wanted, seed)
    picked = pick(len(found), max_samples, wanted.shuffle, seed)
    return PromptDataset(found, tokenizer, cfg, picked=picked, key=wanted.key)


def _file_rows(cfg: DataConfig, tokenizer: Any, wanted: Wanted, seed: int) -> Rows:
    """The rows of all names, each through the handler and with a data source; in order, or mixed."""
    finder = Finder(wanted.key, wanted.split, cfg.use_shm, tuple(cfg.additional_keys), tokenizer)
    parts: list[Rows] = [finder.rows(name) for name in wanted.files]
    if cfg.handler.name is not None:
        parts = [HandledRows(part, cfg.handler, cfg.prompt_key, (cfg.reward_fn_key,)) for part in parts]
    if cfg.reward_fn_key == DataConfig.reward_fn_key:  # a column of another name was asked for, and must be there
        parts = [part if cfg.reward_fn_key in part.kinds else NamedRows(part, cfg.reward_fn_key) for part in parts]
    if wanted.probs is not None:
        return MixedRows(parts, wanted.probs, seed, wanted.key)
    return join_rows(parts, wanted.key)
