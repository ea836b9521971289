"""What to change where memory does not suffice, cheapest first.

The order: less on each GPU at a time (micro-batches, recomputing, offloading), then shorter sequences, then a smaller
share for the engine, and last other models: adapters, four bits, more GPUs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from burnish.config import TrainConfig
from burnish.config.adapters import wants_adapter
from burnish.config.ranks import ranks
from burnish.config.rules import has_critic
from burnish.doctor.memory import GIB, Plan

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
MODEL = "actor_rollout_ref.model"
Change = tuple[str, Any]  # key, value
LEAST_SHARE = 0.3  # below this an engine has hardly any cache
SHORTEST = 128  # tokens: a shorter limit changes the task


@dataclass(frozen=True)
class Cure:
    """Keys to type, what they cost, and the worst phase with them and all cures before them in place."""

    changes: tuple[Change, ...]
    price: str
    bytes: int
    fits: bool

    @property
    def typed(self) -> str:
        return " ".join(f"{key}={_written(value)}" for key, value in self.changes)

    def text(self) -> str:
        return f"{self.typed}  ({self.price}; then {self.bytes / GIB:.1f} GiB)"


def cures(cfg: TrainConfig, plan_of: Callable[[TrainConfig], Plan]) -> list[Cure]:
    """The changes, one after the other, after which everything fits; what turns out not to be needed is left out."""
    first = plan_of(cfg)
    tried: list[tuple[tuple[Change, ...], str]] = []
    now, before = copy.deepcopy(cfg), first
    for propose, price in _order(first):
        for changes in propose(now, before):
            trial = changed(now, changes)
            plan = plan_of(trial)
            if before.too_big and _excess(plan) < _excess(before) * 0.995:
                tried.append((changes, price))
                now, before = trial, plan
    if not before.too_big:
        tried = _needed(cfg, plan_of, tried)
    return _told(cfg, plan_of, tried)


def _order(plan: Plan) -> list[tuple[Callable[[TrainConfig, Plan], Iterator[tuple[Change, ...]]], str]]:
    """The usual order; where only the rollout is too big, the engine's share comes first."""
    if _names(plan) == {"rollout"}:
        return sorted(STEPS, key=lambda step: step[0] is not smaller_share)
    return list(STEPS)


def _needed(cfg: TrainConfig, plan_of: Callable[[TrainConfig], Plan], tried: list) -> list:
    """Without those that nothing depends on, the dearest first."""
    for one in reversed(tried[:-1]):
        others = [other for other in tried if other is not one]
        if not plan_of(changed(cfg, *(changes for changes, _ in others))).too_big:
            tried = others
    return tried


def _told(cfg: TrainConfig, plan_of: Callable[[TrainConfig], Plan], tried: list) -> list[Cure]:
    found = []
    for number, (changes, price) in enumerate(tried, 1):
        plan = plan_of(changed(cfg, *(done for done, _ in tried[:number])))
        found.append(Cure(changes, price, plan.worst.bytes, not plan.too_big))
    return found


def changed(cfg: TrainConfig, *changes: tuple[Change, ...]) -> TrainConfig:
    """A copy with these keys set."""
    new = copy.deepcopy(cfg)
    for key, value in (change for several in changes for change in several):
        put(new, key, value)
    return new


def _excess(plan: Plan) -> int:
    return sum(phase.bytes - plan.capacity for phase in plan.too_big)


def put(cfg: Any, key: str, value: Any) -> None:
    """Set one key of a config."""
    *path, name = key.split(".")
    for part in path:
        cfg = getattr(cfg, part)
    setattr(cfg, name, value)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _names(plan: Plan) -> set[str]:
    return {phase.name for phase in plan.too_big}


def small_micro_batches(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    """Rows down to one, a token budget down to the longest row."""
    longest = cfg.actor_rollout_ref.rollout.prompt_length + cfg.actor_rollout_ref.rollout.response_length
    for phase, section, role, names in _passes(cfg):
        if phase not in _names(plan):
            continue
        dynamic, rows, budget = (getattr(role, name) for name in names)
        if dynamic or rows is None:
            if budget > longest:
                yield ((f"{section}.{names[2]}", longest),)
        elif rows > 1:
            yield ((f"{section}.{names[1]}", 1),)


def _passes(cfg: TrainConfig) -> list[tuple[str, str, Any, tuple[str, str, str]]]:
    """(phase, section, its config, names of: by tokens, rows, tokens)."""
    whole = cfg.actor_rollout_ref
    ppo = ("use_dynamic_bsz", "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu")
    reading = ("log_prob_use_dynamic_bsz", "log_prob_micro_batch_size_per_gpu", "log_prob_max_token_len_per_gpu")
    values = ("use_dynamic_bsz", "forward_micro_batch_size_per_gpu", "forward_max_token_len_per_gpu")
    judge = ("use_dynamic_bsz", "micro_batch_size_per_gpu", "forward_max_token_len_per_gpu")
    return [
        ("update actor", ACTOR, whole.actor, ppo),
        ("update critic", "critic", cfg.critic, ppo),
        ("old log-probs", ROLLOUT, whole.rollout, reading),
        ("reference", REF, whole.ref, reading),
        ("values", "critic", cfg.critic, values),
        ("reward model", "reward_model", cfg.reward_model, judge),
    ]


def recompute(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    for phase, section, model in (
        ("update actor", MODEL, cfg.actor_rollout_ref.model),
        ("update critic", "critic.model", cfg.critic.model),
    ):
        if phase in _names(plan) and not model.enable_gradient_checkpointing:
            yield ((f"{section}.enable_gradient_checkpointing", True),)


def offload_frozen(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    if not cfg.actor_rollout_ref.ref.fsdp_config.param_offload:
        yield ((f"{REF}.fsdp_config.param_offload", True),)
    if cfg.reward_model.enable and not cfg.reward_model.model.fsdp_config.param_offload:
        yield (("reward_model.model.fsdp_config.param_offload", True),)


def offload_optimizers(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    yield ((f"{ACTOR}.fsdp_config.optimizer_offload", True),)
    if has_critic(cfg):
        yield (("critic.model.fsdp_config.optimizer_offload", True),)


def offload_weights(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    yield ((f"{ACTOR}.fsdp_config.param_offload", True),)
    if has_critic(cfg):
        yield (("critic.model.fsdp_config.param_offload", True),)


def update_on_cpu(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    if "update actor" in _names(plan):
        yield ((f"{ACTOR}.fsdp_config.offload_policy", True),)
    if "update critic" in _names(plan) and has_critic(cfg):
        yield (("critic.model.fsdp_config.offload_policy", True),)


def shorter(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    """Half the response, then half the prompt. The engine's limits follow."""
    rollout = cfg.actor_rollout_ref.rollout
    for name, follows in (("max_response_length", "response_length"), ("max_prompt_length", "prompt_length")):
        half = getattr(rollout, follows) // 2
        if half >= SHORTEST:
            yield ((f"data.{name}", half), (f"{ROLLOUT}.{follows}", half))


def smaller_share(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    """Less for the engine; also fewer sequences at once, whose logits count."""
    rollout = cfg.actor_rollout_ref.rollout
    if "rollout" not in _names(plan):
        return
    for share in (0.5, 0.4, LEAST_SHARE):
        if rollout.gpu_memory_utilization > share:
            yield ((f"{ROLLOUT}.gpu_memory_utilization", share),)
    if rollout.max_num_seqs > 256:
        yield ((f"{ROLLOUT}.max_num_seqs", 256),)


def half_the_bits(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    """A frozen reference needs no float32 weights; the policy's updates would suffer, so its adapters come first."""
    if cfg.actor_rollout_ref.ref.fsdp_config.model_dtype in ("fp32", "float32"):
        yield ((f"{REF}.fsdp_config.model_dtype", "bf16"),)


def adapters(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    if not wants_adapter(cfg.actor_rollout_ref.model):
        yield ((f"{MODEL}.lora_rank", 32), (f"{MODEL}.lora_alpha", 32.0))
    if has_critic(cfg) and not wants_adapter(cfg.critic.model):
        yield (("critic.model.lora_rank", 32), ("critic.model.lora_alpha", 32.0))


def four_bits(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    if wants_adapter(cfg.actor_rollout_ref.model) and not cfg.actor_rollout_ref.model.load_in_4bit:
        yield ((f"{MODEL}.load_in_4bit", True),)


def more_gpus(cfg: TrainConfig, plan: Plan) -> Iterator[tuple[Change, ...]]:
    for number in (2, 4, 8):
        if cfg.trainer.n_gpus_per_node < number and ranks(cfg) < number:
            yield (("trainer.n_gpus_per_node", number),)
    tensor = cfg.actor_rollout_ref.rollout.tensor_model_parallel_size
    if "rollout" in _names(plan) and tensor < ranks(cfg) and ranks(cfg) % (2 * tensor) == 0:
        yield ((f"{ROLLOUT}.tensor_model_parallel_size", 2 * tensor),)


STEPS: tuple[tuple[Callable[[TrainConfig, Plan], Iterator[tuple[Change, ...]]], str], ...] = (
    (small_micro_batches, "slower passes, the same gradients"),
    (recompute, "about a third more time in updates"),
    (half_the_bits, "the reference is read in bf16 anyway"),
    (offload_frozen, "copies between phases"),
    (offload_optimizers, "copies around each update phase"),
    (offload_weights, "copies between phases"),
    (shorter, "shorter answers: look at how many are cut off"),
    (smaller_share, "fewer responses at once"),
    (update_on_cpu, "updates on the CPU: much slower"),
    (adapters, "trains adapters, not all weights"),
    (four_bits, "frozen weights in 4 bits"),
    (more_gpus, "several processes"),
)
