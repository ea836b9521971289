"""Config changes that save GPU memory, cheapest first, for `burnish doctor` and for out-of-memory errors.

The order: smaller micro-batches, recomputation and offloading; shorter sequences; a smaller memory fraction for the
engine; and last LoRA, 4-bit weights and more GPUs.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from burnish.config.adapters import chooses_recompute, wants_adapter
from burnish.config.ranks import num_ranks
from burnish.config.rules import has_critic
from burnish.config.values import written_as

if TYPE_CHECKING:
    from burnish.config.root import TrainConfig

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
MODEL = "actor_rollout_ref.model"
Change = tuple[str, Any]  # key, value
Propose = Callable[["TrainConfig", set[str]], Iterator[tuple[Change, ...]]]  # for these phases
MIN_MEMORY_FRACTION = 0.3  # below this an engine has hardly any KV cache
MIN_LENGTH = 128  # tokens; a lower limit changes the task


def next_change(cfg: TrainConfig, phase: str) -> tuple[str, str] | None:
    """The next override to try after this phase ran out of memory, and its cost; None if there is none left."""
    first = {smaller_share} if phase == "rollout" else set()
    for propose, cost in sorted(STEPS, key=lambda step: step[0] not in first):
        for changes in propose(cfg, {phase}):
            if changed(cfg, changes) != cfg:
                return typed(changes), cost
    return None


def typed(changes: tuple[Change, ...]) -> str:
    """The changes as overrides."""
    return " ".join(f"{key}={written_as(value)}" for key, value in changes)


def changed(cfg: TrainConfig, *changes: tuple[Change, ...]) -> TrainConfig:
    """A copy of the config with these changes."""
    new = copy.deepcopy(cfg)
    for key, value in itertools.chain(*changes):
        set_key(new, key, value)
    return new


def set_key(cfg: Any, key: str, value: Any) -> None:
    """Set one key of a config."""
    *path, name = key.split(".")
    for part in path:
        cfg = getattr(cfg, part)
    setattr(cfg, name, value)


def small_micro_batches(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    """Micro-batches of one sequence, or a token budget of one sequence of maximum length."""
    longest = cfg.actor_rollout_ref.rollout.prompt_length + cfg.actor_rollout_ref.rollout.response_length
    for phase, section, role, names in _passes(cfg):
        if phase not in phases:
            continue
        dynamic, size, budget = (getattr(role, name) for name in names)
        if dynamic or size is None:
            if budget > longest:
                yield ((f"{section}.{names[2]}", longest),)
        elif size > 1:
            yield ((f"{section}.{names[1]}", 1),)


def _passes(cfg: TrainConfig) -> list[tuple[str, str, Any, tuple[str, str, str]]]:
    """(phase, section, its config, names of the keys: dynamic batch size, micro-batch size, token budget)."""
    whole = cfg.actor_rollout_ref
    ppo = ("use_dynamic_bsz", "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu")
    log_probs = ("log_prob_use_dynamic_bsz", "log_prob_micro_batch_size_per_gpu", "log_prob_max_token_len_per_gpu")
    values = ("use_dynamic_bsz", "forward_micro_batch_size_per_gpu", "forward_max_token_len_per_gpu")
    scores = ("use_dynamic_bsz", "micro_batch_size_per_gpu", "forward_max_token_len_per_gpu")
    return [
        ("update actor", ACTOR, whole.actor, ppo),
        ("update critic", "critic", cfg.critic, ppo),
        ("old log-probs", ROLLOUT, whole.rollout, log_probs),
        ("reference", REF, whole.ref, log_probs),
        ("values", "critic", cfg.critic, values),
        ("reward model", "reward_model", cfg.reward_model, scores),
    ]


def recompute(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    for phase, section, model in (
        ("update actor", MODEL, cfg.actor_rollout_ref.model),
        ("update critic", "critic.model", cfg.critic.model),
    ):
        if phase in phases and not model.enable_gradient_checkpointing:
            yield ((f"{section}.enable_gradient_checkpointing", True),)
        elif phase in phases and chooses_recompute(model) and model.recompute.num_layers is not None:
            yield ((f"{section}.recompute.method", None),)


def _uses_reference(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.actor.use_kl_loss or cfg.algorithm.use_kl_in_reward


def offload_frozen(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    if _uses_reference(cfg) and not cfg.actor_rollout_ref.ref.fsdp_config.param_offload:
        yield ((f"{REF}.fsdp_config.param_offload", True),)
    if cfg.reward_model.enable and not cfg.reward_model.model.fsdp_config.param_offload:
        yield (("reward_model.model.fsdp_config.param_offload", True),)


def offload_optimizers(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    yield ((f"{ACTOR}.fsdp_config.optimizer_offload", True),)
    if has_critic(cfg):
        yield (("critic.model.fsdp_config.optimizer_offload", True),)


def offload_weights(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    yield ((f"{ACTOR}.fsdp_config.param_offload", True),)
    if has_critic(cfg):
        yield (("critic.model.fsdp_config.param_offload", True),)


def update_on_cpu(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    if "update actor" in phases:
        yield ((f"{ACTOR}.fsdp_config.offload_policy", True),)
    if "update critic" in phases and has_critic(cfg):
        yield (("critic.model.fsdp_config.offload_policy", True),)


def shorter(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    """Half the response length, then half the prompt length."""
    rollout = cfg.actor_rollout_ref.rollout
    for name, follows in (("max_response_length", "response_length"), ("max_prompt_length", "prompt_length")):
        half = getattr(rollout, follows) // 2
        if half >= MIN_LENGTH:
            yield ((f"data.{name}", half), (f"{ROLLOUT}.{follows}", half))


def smaller_share(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    """A smaller memory fraction for the engine; fewer concurrent sequences, which saves logits."""
    rollout = cfg.actor_rollout_ref.rollout
    if "rollout" not in phases:
        return
    for share in (0.5, 0.4, MIN_MEMORY_FRACTION):
        if rollout.gpu_memory_utilization > share:
            yield ((f"{ROLLOUT}.gpu_memory_utilization", share),)
    if rollout.max_num_seqs > 256:
        yield ((f"{ROLLOUT}.max_num_seqs", 256),)


def bf16_reference(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    """Only the reference: bf16 weights would lose small updates of the policy."""
    if _uses_reference(cfg) and cfg.actor_rollout_ref.ref.fsdp_config.model_dtype in ("fp32", "float32"):
        yield ((f"{REF}.fsdp_config.model_dtype", "bf16"),)


def adapters(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    if not wants_adapter(cfg.actor_rollout_ref.model):
        yield ((f"{MODEL}.lora_rank", 32), (f"{MODEL}.lora_alpha", 32.0))
    if has_critic(cfg) and not wants_adapter(cfg.critic.model):
        yield (("critic.model.lora_rank", 32), ("critic.model.lora_alpha", 32.0))


def quantize(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    if wants_adapter(cfg.actor_rollout_ref.model) and not cfg.actor_rollout_ref.model.load_in_4bit:
        yield ((f"{MODEL}.load_in_4bit", True),)


def more_gpus(cfg: TrainConfig, phases: set[str]) -> Iterator[tuple[Change, ...]]:
    for number in (2, 4, 8):
        if cfg.trainer.n_gpus_per_node < number and num_ranks(cfg) < number:
            yield (("trainer.n_gpus_per_node", number),)


STEPS: tuple[tuple[Propose, str], ...] = (
    (small_micro_batches, "slower, same gradients"),
    (recompute, "about a third more time in updates"),
    (bf16_reference, "the reference computes in bf16 anyway"),
    (offload_frozen, "copies between phases"),
    (offload_optimizers, "copies around each update phase"),
    (offload_weights, "copies between phases"),
    (shorter, "shorter responses: check how many are truncated"),
    (smaller_share, "fewer responses at once"),
    (update_on_cpu, "updates on the CPU: much slower"),
    (adapters, "trains LoRA adapters instead of all weights"),
    (quantize, "frozen weights in 4 bits"),
    (more_gpus, "more processes"),
)
