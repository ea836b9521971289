"""Rules of `burnish sft`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


SFT_RULES: tuple[Callable[[SftConfig], Iterator[UserError]], ...] = (required_keys, intervals, optimizer, resuming)
