"""async_training and rollout: what follows from them for other keys, and what does not go with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from burnish.config.ranks import has_engine_pool, num_ranks
from burnish.config.root import TrainConfig
from burnish.errors import UserError

SECTION = "async_training"
CORRECTION = "algorithm.rollout_correction"
# Whoever sets one of these has decided about the gap between engine and trainer.
DECIDES = (
    *(f"{CORRECTION}.{name}" for name in ("rollout_is", "rollout_rs", "rollout_token_veto_threshold", "bypass_mode")),
    "actor_rollout_ref.actor.tis_imp_ratio_cap",
)


def is_async(cfg: TrainConfig) -> bool:
    """Does the engine generate while the policy learns?"""
    return cfg.async_training.mode != "sync"


def uses_queue(cfg: TrainConfig) -> bool:
    """Does it run ahead by as much as time allows, rather than by one batch?"""
    return cfg.async_training.mode == "queue"


def shares_one_device(cfg: TrainConfig) -> bool:
    """Do engine and policy share one device?"""
    return num_ranks(cfg) == 1 and not has_engine_pool(cfg)


def step_counts_prompts(cfg: TrainConfig) -> bool:
    """Is a step so many prompts, rather than so many mini-batches?"""
    asked, mini = cfg.async_training.require_batches, cfg.actor_rollout_ref.actor.ppo_mini_batch_size
    return cfg.data.train_batch_size != asked * mini


def follow(cfg: TrainConfig, given: Collection[str]) -> list[str]:
    """Fill in what follows from generating ahead; the lines say what and why. `given` are the keys that were set."""
    if not is_async(cfg):
        return []
    mode = f"{SECTION}.mode={cfg.async_training.mode}"
    return [*_step_size(cfg), *_lengths(cfg), *_correction(cfg, given, mode), *_no_rest(cfg, given, mode)]


def _step_size(cfg: TrainConfig) -> Iterator[str]:
    """verl's fully asynchronous programs count a step in mini-batches."""
    if uses_queue(cfg) and cfg.data.train_batch_size == 0:
        asked, mini = cfg.async_training.require_batches, cfg.actor_rollout_ref.actor.ppo_mini_batch_size
        cfg.data.train_batch_size = asked * mini
        yield f"data.train_batch_size={asked * mini}: {SECTION}.require_batches={asked} mini-batches of {mini} prompts."


def _lengths(cfg: TrainConfig) -> Iterator[str]:
    """The engine's own counts are those of the run: whatever is generated is learnt."""
    if cfg.rollout.total_epochs is not None:
        cfg.trainer.total_epochs = cfg.rollout.total_epochs
        yield f"trainer.total_epochs={cfg.rollout.total_epochs}: rollout.total_epochs counts the engine's passes."
    if cfg.rollout.test_freq > 0:
        every = cfg.async_training.trigger_parameter_sync_step if uses_queue(cfg) else 1
        cfg.trainer.test_freq = cfg.rollout.test_freq * every
        yield (
            f"trainer.test_freq={cfg.trainer.test_freq}: rollout.test_freq={cfg.rollout.test_freq} counts weight"
            f" transfers, one every {every} step(s)."
        )


def _correction(cfg: TrainConfig, given: Collection[str], mode: str) -> Iterator[str]:
    """Responses come from older weights than those that learn from them: importance weights are on by default."""
    asked, correction = cfg.async_training, cfg.algorithm.rollout_correction
    decided = next((key for key in DECIDES if key in given), None)
    if asked.use_rollout_log_probs and not asked.compute_prox_log_prob:
        if f"{CORRECTION}.bypass_mode" not in given:
            correction.bypass_mode = True
            yield f"{CORRECTION}.bypass_mode=true: {SECTION}.use_rollout_log_probs takes ratios against the engine's."
    elif decided is None:
        correction.rollout_is = "token"
        yield (
            f"{CORRECTION}.rollout_is=token: with {mode} responses come from older weights, so each token's loss is"
            f" weighted by the ratio of trainer to engine probability, at most {correction.rollout_is_threshold}"
            f" ({CORRECTION}.rollout_is=null turns it off)."
        )


def _no_rest(cfg: TrainConfig, given: Collection[str], mode: str) -> Iterator[str]:
    rollout = cfg.actor_rollout_ref.rollout
    if rollout.free_cache_engine:
        rollout.free_cache_engine = False
        if "actor_rollout_ref.rollout.free_cache_engine" in given:
            yield f"actor_rollout_ref.rollout.free_cache_engine=false: with {mode} the engine never rests."


def generating_ahead(cfg: TrainConfig) -> Iterator[UserError]:
    """Keys that contradict each other, or what a queue cannot keep in order."""
    if not is_async(cfg):
        return
    asked, bypass = cfg.async_training, cfg.algorithm.rollout_correction.bypass_mode
    if asked.use_rollout_log_probs and not asked.compute_prox_log_prob and not bypass:
        yield UserError(
            f"takes the engine's log-probs as the old ones, {CORRECTION}.bypass_mode=false the trainer's",
            key=f"{SECTION}.use_rollout_log_probs",
            value=True,
            hint=f"{SECTION}.use_rollout_log_probs=false",
        )
    prompts, needed = cfg.rollout.total_rollout_steps, cfg.data.train_batch_size
    if prompts is not None and prompts < needed:
        key = "rollout.total_rollout_steps"
        yield UserError(
            f"is less than the {needed} prompts of one step", key=key, value=prompts, allowed=f">= {needed}"
        )
    for key, value in (
        ("data.sampler.class_path", cfg.data.sampler.class_path),
        ("data.datagen.path", cfg.data.datagen.path),
    ):
        if uses_queue(cfg) and value:
            problem = f"changes the prompts after every step, and {SECTION}.mode=queue draws them at no fixed time"
            yield UserError(problem, key=key, value=value, hint=f"{SECTION}.mode=one_step_off")


def ahead_remarks(cfg: TrainConfig) -> Iterator[str]:
    """What generating ahead means in one process."""
    if not is_async(cfg):
        return
    asked = cfg.async_training
    if shares_one_device(cfg):
        yield f"{SECTION}.mode={asked.mode}: engine and policy share one device and work on it side by side."
    if uses_queue(cfg):
        yield (
            f"{SECTION}.mode={asked.mode}: which weights sample which batch is a matter of time, so that no two runs"
            f" are the same to the last bit ({SECTION}.mode=one_step_off always gives the same)."
        )
    if uses_queue(cfg) and 0 < asked.staleness_threshold * asked.trigger_parameter_sync_step < 1:
        yield (
            f"{SECTION}.staleness_threshold={asked.staleness_threshold:g} of {asked.trigger_parameter_sync_step} steps"
            " is less than one batch: no batch is generated with older weights than those of its own steps."
        )
