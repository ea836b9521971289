"""The training and validation prompts that the `data` section asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.address import address
from burnish.data.custom import load_custom_rows
from burnish.data.dataset import PromptDataset
from burnish.data.files import ListRows, Rows, read_files
from burnish.data.sampler import PromptSampler, epoch_order

if TYPE_CHECKING:
    from burnish.config.data import DataConfig


def load_train(
    cfg: DataConfig,
    tokenizer: Any,
    *,
    run_seed: int,
    rows: Sequence[Mapping[str, Any]] | None = None,
    processor: Any = None,
) -> PromptDataset:
    """The training prompts: `rows` where given, else data.custom_cls, else data.train_files."""
    source = (cfg.train_files, "data.train_files", cfg.train_max_samples, cfg.shuffle)
    return _load(cfg, tokenizer, source, order_seed(cfg, run_seed), rows, processor)


def load_val(
    cfg: DataConfig,
    tokenizer: Any,
    *,
    run_seed: int,
    rows: Sequence[Mapping[str, Any]] | None = None,
    processor: Any = None,
) -> PromptDataset:
    """The validation prompts: `rows` where given, else data.custom_cls, else data.val_files."""
    source = (cfg.val_files, "data.val_files", cfg.val_max_samples, cfg.validation_shuffle)
    return _load(cfg, tokenizer, source, order_seed(cfg, run_seed), rows, processor)


def train_sampler(cfg: DataConfig, num_rows: int, *, run_seed: int) -> PromptSampler:
    """The order of the training prompts."""
    return PromptSampler(num_rows, cfg.train_batch_size, cfg.shuffle, order_seed(cfg, run_seed))


def order_seed(cfg: DataConfig, run_seed: int) -> int:
    """data.seed, or the run's own where it is not set: the order is never left to chance."""
    return run_seed if cfg.seed is None else cfg.seed


def pick(num_rows: int, max_samples: int | None, shuffle: bool, seed: int) -> list[int]:
    """At most `max_samples` row numbers, rising: chosen by the seed, or the first ones. None or -1: all."""
    if max_samples is None or max_samples < 0 or max_samples >= num_rows:
        return list(range(num_rows))
    return sorted(epoch_order(num_rows, shuffle, address("max samples", seed), epoch=0)[:max_samples])


def _load(
    cfg: DataConfig,
    tokenizer: Any,
    source: tuple[list[str], str, int, bool],
    seed: int,
    rows: Sequence[Mapping[str, Any]] | None,
    processor: Any,
) -> PromptDataset:
    files, key, max_samples, shuffle = source
    found: Rows
    if rows is not None:
        found = ListRows(rows)
    elif cfg.custom_cls.path:
        found, took_samples = load_custom_rows(cfg, files, tokenizer, processor, max_samples)
        max_samples = -1 if took_samples else max_samples
    else:
        found = read_files(files, key)
    picked = pick(len(found), max_samples, shuffle, seed)
    return PromptDataset(found, tokenizer, cfg, picked=picked, key=key)
