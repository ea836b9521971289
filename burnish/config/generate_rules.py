"""Rules of `burnish generate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from burnish.config.jobs import GenerateConfig
from burnish.config.pool_rules import check_one_machine
from burnish.config.rollout_rules import check_rollout
from burnish.errors import UserError


def required_keys(cfg: GenerateConfig) -> Iterator[UserError]:
    if not cfg.model.path:
        yield UserError("no model is set", key="model.path", hint="model.path=/path/to/model")
    if not cfg.data.path:
        yield UserError("no prompt file is set", key="data.path", hint="data.path=/path/prompts.parquet")


def sampling(cfg: GenerateConfig) -> Iterator[UserError]:
    """Several responses per prompt require sampling."""
    yield from check_rollout(cfg.rollout, "rollout")
    greedy = cfg.rollout.temperature == 0 or not cfg.rollout.do_sample
    if greedy and cfg.data.n_samples > 1:
        yield UserError(
            "greedy decoding gives identical responses",
            key="data.n_samples",
            value=cfg.data.n_samples,
            allowed="1",
            hint="data.n_samples=1, or rollout.temperature=1.0 rollout.do_sample=true",
        )


def lengths(cfg: GenerateConfig) -> Iterator[UserError]:
    """A prompt of maximum length leaves tokens for a response."""
    longest, limit = cfg.rollout.prompt_length, cfg.rollout.max_model_len
    if limit is not None and limit <= longest:
        yield UserError(
            f"a prompt of rollout.prompt_length={longest} tokens leaves no tokens for a response",
            key="rollout.max_model_len",
            value=limit,
            allowed=f"> {longest}",
            hint=f"rollout.max_model_len={longest + cfg.rollout.response_length}",
        )


def processes(cfg: GenerateConfig) -> Iterator[UserError]:
    """The launcher can start the engines' processes."""
    yield from check_one_machine(cfg.trainer.launcher, cfg.trainer.nnodes)


GENERATE_RULES: tuple[Callable[[GenerateConfig], Iterator[UserError]], ...] = (
    *(required_keys, sampling, lengths),
    processes,
)
