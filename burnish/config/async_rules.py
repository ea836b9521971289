"""async_training.*: values of other keys that it implies, rules and notices."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from burnish.config.ranks import has_engine_pool, num_ranks
from burnish.config.root import TrainConfig
from burnish.errors import UserError

SECTION = "async_training"
CORRECTION = "algorithm.rollout_correction"
# If one of these is set, importance weights are not turned on automatically.
CORRECTION_KEYS = (
    *(f"{CORRECTION}.{name}" for name in ("rollout_is", "rollout_rs", "rollout_token_veto_threshold", "bypass_mode")),
    "actor_rollout_ref.actor.tis_imp_ratio_cap",
)


def is_async(cfg: TrainConfig) -> bool:
    """Whether generation and training overlap."""
    return cfg.async_training.mode != "sync"


def uses_queue(cfg: TrainConfig) -> bool:
    """Whether a queue of batches separates generation from training."""
    return cfg.async_training.mode == "queue"


def shares_one_device(cfg: TrainConfig) -> bool:
    """Whether engine and policy share one device."""
    return num_ranks(cfg) == 1 and not has_engine_pool(cfg)


def step_counts_prompts(cfg: TrainConfig) -> bool:
    """Whether data.train_batch_size sets the step size, and not async_training.require_batches."""
    return cfg.data.train_batch_size != cfg.async_training.require_batches * _mini_batch_size(cfg)


def _mini_batch_size(cfg: TrainConfig) -> int:
    return cfg.actor_rollout_ref.actor.ppo_mini_batch_size


def apply_async(cfg: TrainConfig, set_keys: Collection[str]) -> list[str]:
    """Set the keys that asynchronous training implies, and return a notice for each."""
    if not is_async(cfg):
        return []
    mode = f"{SECTION}.mode={cfg.async_training.mode}"
    return [*_step_size(cfg), *_lengths(cfg), *_correction(cfg, set_keys, mode), *_keep_cache(cfg, set_keys, mode)]


def _step_size(cfg: TrainConfig) -> Iterator[str]:
    """verl's fully asynchronous trainer counts a step in mini-batches."""
    if uses_queue(cfg) and cfg.data.train_batch_size == 0:
        num, size = cfg.async_training.require_batches, _mini_batch_size(cfg)
        cfg.data.train_batch_size = num * size
        yield f"data.train_batch_size={num * size}: {SECTION}.require_batches={num} mini-batches of {size} prompts."


def _lengths(cfg: TrainConfig) -> Iterator[str]:
    """The engine's epochs and validation interval apply to the whole run: every generated batch is trained on."""
    if cfg.rollout.total_epochs is not None:
        cfg.trainer.total_epochs = cfg.rollout.total_epochs
        yield f"trainer.total_epochs={cfg.rollout.total_epochs}: set by rollout.total_epochs."
    if cfg.rollout.test_freq > 0:
        every = cfg.async_training.trigger_parameter_sync_step if uses_queue(cfg) else 1
        cfg.trainer.test_freq = cfg.rollout.test_freq * every
        yield (
            f"trainer.test_freq={cfg.trainer.test_freq}: rollout.test_freq={cfg.rollout.test_freq} counts weight"
            f" syncs, one every {every} step(s)."
        )


def _correction(cfg: TrainConfig, set_keys: Collection[str], mode: str) -> Iterator[str]:
    """Responses are sampled with older weights, so importance weights are on by default."""
    section, correction = cfg.async_training, cfg.algorithm.rollout_correction
    if section.use_rollout_log_probs and not section.compute_prox_log_prob:
        if f"{CORRECTION}.bypass_mode" not in set_keys:
            correction.bypass_mode = True
            yield f"{CORRECTION}.bypass_mode=true: implied by {SECTION}.use_rollout_log_probs."
    elif not any(key in set_keys for key in CORRECTION_KEYS):
        correction.rollout_is = "token"
        yield (
            f"{CORRECTION}.rollout_is=token: with {mode} responses come from older weights, so each token's loss is"
            f" weighted by the ratio of trainer to engine probability, at most {correction.rollout_is_threshold}"
            f" ({CORRECTION}.rollout_is=null disables it)."
        )


def _keep_cache(cfg: TrainConfig, set_keys: Collection[str], mode: str) -> Iterator[str]:
    rollout = cfg.actor_rollout_ref.rollout
    if rollout.free_cache_engine:
        rollout.free_cache_engine = False
        if "actor_rollout_ref.rollout.free_cache_engine" in set_keys:
            yield f"actor_rollout_ref.rollout.free_cache_engine=false: with {mode} the engine is never idle."


def async_training(cfg: TrainConfig) -> Iterator[UserError]:
    """Contradicting keys, and samplers whose order a queue cannot preserve."""
    if not is_async(cfg):
        return
    section, bypass = cfg.async_training, cfg.algorithm.rollout_correction.bypass_mode
    if section.use_rollout_log_probs and not section.compute_prox_log_prob and not bypass:
        yield UserError(
            f"conflicts with {CORRECTION}.bypass_mode=false, which uses the trainer's old log-probs",
            key=f"{SECTION}.use_rollout_log_probs",
            value=True,
            hint=f"{SECTION}.use_rollout_log_probs=false",
        )
    prompts, needed = cfg.rollout.total_rollout_steps, cfg.data.train_batch_size
    if prompts is not None and prompts < needed:
        key = "rollout.total_rollout_steps"
        yield UserError(f"less than the {needed} prompts of one step", key=key, value=prompts, allowed=f">= {needed}")
    for key, value in (
        ("data.sampler.class_path", cfg.data.sampler.class_path),
        ("data.datagen.path", cfg.data.datagen.path),
    ):
        if uses_queue(cfg) and value:
            problem = f"may change the prompts after every step, but {SECTION}.mode=queue draws prompts ahead of steps"
            yield UserError(problem, key=key, value=value, hint=f"{SECTION}.mode=one_step_off")


def async_remarks(cfg: TrainConfig) -> Iterator[str]:
    if not is_async(cfg):
        return
    section = cfg.async_training
    if shares_one_device(cfg):
        yield f"{SECTION}.mode={section.mode}: engine and policy share one device and compute concurrently."
    if uses_queue(cfg):
        yield (
            f"{SECTION}.mode={section.mode}: runs are not reproducible bit by bit, since timing decides which weights"
            f" sample which batch ({SECTION}.mode=one_step_off is reproducible)."
        )
    if uses_queue(cfg) and 0 < section.staleness_threshold * section.trigger_parameter_sync_step < 1:
        yield (
            f"{SECTION}.staleness_threshold={section.staleness_threshold:g} x"
            f" trigger_parameter_sync_step={section.trigger_parameter_sync_step} is less than one batch: no batch is"
            " generated with stale weights."
        )
