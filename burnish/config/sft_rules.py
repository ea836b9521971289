"""Rules of `burnish sft`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from burnish.config.pool_rules import check_one_machine, check_shardable
from burnish.config.ranks import is_single_process, num_ranks, sft_data_size
from burnish.config.sequence_rules import NAME, check_groups, check_shards
from burnish.config.sft import SftConfig
from burnish.errors import UserError

EVERY_EPOCH = "after_each_epoch"


def required_keys(cfg: SftConfig) -> Iterator[UserError]:
    if not cfg.model.partial_pretrain:
        key = "model.partial_pretrain"
        yield UserError("no model is set", key=key, hint=f"{key}=/path/to/model")
    if not cfg.data.train_files:
        key = "data.train_files"
        yield UserError("no training files are set", key=key, hint=f"{key}=/path/train.parquet")


def intervals(cfg: SftConfig) -> Iterator[UserError]:
    """An interval is a number of updates or after_each_epoch."""
    for name in ("save_freq", "test_freq"):
        value = getattr(cfg.trainer, name)
        if isinstance(value, str) and value != EVERY_EPOCH:
            key = f"trainer.{name}"
            yield UserError("not an interval", key=key, value=value, allowed=f"a number, or {EVERY_EPOCH}")


def optimizer(cfg: SftConfig) -> Iterator[UserError]:
    if len(cfg.optim.betas) != 2:
        key = "optim.betas"
        yield UserError("AdamW has two betas", key=key, value=cfg.optim.betas, hint=f"{key}=[0.9,0.95]")


def resuming(cfg: SftConfig) -> Iterator[UserError]:
    if cfg.trainer.resume_mode == "resume_path" and not cfg.trainer.resume_from_path:
        key = "trainer.resume_from_path"
        yield UserError("trainer.resume_mode=resume_path needs a folder", key=key, hint=f"{key}=/path/global_step_10")


def processes(cfg: SftConfig) -> Iterator[UserError]:
    """The launcher can start the ranks, and the model can be divided over them."""
    yield from check_one_machine(cfg.trainer.launcher, cfg.trainer.nnodes)
    yield from check_groups(num_ranks(cfg), cfg.ulysses_sequence_parallel_size, NAME)
    yield from check_shards(num_ranks(cfg), cfg.model.fsdp_config.fsdp_size, "model.fsdp_config.fsdp_size")
    if not is_single_process(cfg):
        yield from check_shardable(cfg.model, "model")


def batch_sizes(cfg: SftConfig) -> Iterator[UserError]:
    """Sizes over all ranks divide evenly over those that process different examples."""
    ranks = sft_data_size(cfg)
    for name in ("train_batch_size", "micro_batch_size"):
        size = getattr(cfg.data, name)
        if size is not None and size % ranks:
            yield UserError(
                f"{size} examples do not divide evenly over {ranks} data-parallel ranks",
                key=f"data.{name}",
                value=size,
                allowed=f"a multiple of {ranks}",
            )


SFT_RULES: tuple[Callable[[SftConfig], Iterator[UserError]], ...] = (
    *(required_keys, intervals, optimizer, resuming),
    *(processes, batch_sizes),
)
