"""A rough estimate of a step's duration, from the model's size and stated assumptions about the GPU.

Nothing is measured: generation is bound by memory bandwidth or arithmetic, everything else by arithmetic. The report
prints the assumptions next to the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from burnish.config import TrainConfig
from burnish.config.adapters import TrainedModelConfig
from burnish.config.ranks import num_ranks
from burnish.config.rules import has_critic
from burnish.doctor.arithmetic import max_sequence_length, responses_per_engine
from burnish.doctor.engine import EnginePlan
from burnish.doctor.gpus import Gpu, gpu_of_device
from burnish.doctor.memory import Shapes
from burnish.doctor.recompute import Recompute
from burnish.doctor.shapes import Shape

BANDWIDTH_USED = 0.6  # share of the memory bandwidth that decoding reaches
FORWARD_USED = 0.5  # share of the peak arithmetic that forward passes reach
UPDATE_USED = 0.4  # and updates


@dataclass(frozen=True)
class Estimate:
    """Seconds of each phase of a step, and what they assume."""

    seconds: dict[str, float]
    assumptions: tuple[str, ...]

    @property
    def step(self) -> float:
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """As `doctor --json` prints it."""
        return {
            "kind": "estimate",
            "step_seconds": round(self.step, 1),
            "phases": {name: round(seconds, 1) for name, seconds in self.seconds.items()},
            "assumptions": list(self.assumptions),
        }


def estimate_step(
    cfg: TrainConfig,
    shapes: Shapes,
    engine: EnginePlan,
    sequences_at_once: int,
    device: str | None,
    recompute: Mapping[str, Recompute] = MappingProxyType({}),
) -> Estimate:
    """Seconds of one step if every response has full length. `sequences_at_once` is per engine; `recompute` has the
    layers that the memory plan chose."""
    gpu, rollout = gpu_of_device(device), cfg.actor_rollout_ref.rollout
    num_responses = cfg.data.train_batch_size * rollout.n
    num_tokens = num_responses * max_sequence_length(rollout)
    rate = gpu.flops * num_ranks(cfg)
    policy, critic = shapes.policy, shapes.critic or shapes.policy
    seconds = {"generation": _generation(cfg, policy, engine, sequences_at_once, gpu)}

    def forward(shape: Shape) -> float:
        return 2 * shape.active_parameters * num_tokens / (rate * FORWARD_USED)

    def update(role: str, shape: Shape, model: TrainedModelConfig, epochs: int) -> float:
        share = recompute[role].share if role in recompute else float(model.enable_gradient_checkpointing)
        factor = 6 + 2 * share
        return epochs * factor * shape.active_parameters * num_tokens / (rate * UPDATE_USED)

    actor = cfg.actor_rollout_ref.actor
    seconds["log-probs"] = forward(policy)
    if actor.use_kl_loss or cfg.algorithm.use_kl_in_reward:
        seconds["reference"] = forward(shapes.reference or policy)
    if shapes.reward_model is not None:
        seconds["reward model"] = forward(shapes.reward_model)
    if has_critic(cfg):
        seconds["values"] = forward(critic)
        seconds["critic update"] = update("critic", critic, cfg.critic.model, cfg.critic.ppo_epochs)
    seconds["policy update"] = update("policy", policy, cfg.actor_rollout_ref.model, actor.ppo_epochs)
    assumptions = _assumptions(gpu, device, sequences_at_once)
    return Estimate(seconds, (*assumptions, "without the vision tower") if policy.tower is not None else assumptions)


def _generation(cfg: TrainConfig, shape: Shape, engine: EnginePlan, sequences_at_once: int, gpu: Gpu) -> float:
    """Decoding, sequences_at_once at a time, and the prompts' forward passes."""
    rollout = cfg.actor_rollout_ref.rollout
    num_responses = responses_per_engine(cfg)
    at_once = max(1, min(sequences_at_once, num_responses))
    length = max_sequence_length(rollout)
    response = max(1, min(rollout.response_length, length))
    cached = at_once * (length - response / 2) * engine.token_bytes
    bound_by_memory = (engine.weights + cached) / (gpu.bandwidth * BANDWIDTH_USED)
    bound_by_arithmetic = 2 * shape.active_parameters * at_once / (gpu.flops * FORWARD_USED)
    decoding = num_responses / at_once * response * max(bound_by_memory, bound_by_arithmetic)
    num_prompt_tokens = num_responses / rollout.n * max(0, length - response)  # responses of a prompt share its pass
    return decoding + 2 * shape.active_parameters * num_prompt_tokens / (gpu.flops * FORWARD_USED)


def _assumptions(gpu: Gpu, device: str | None, sequences_at_once: int) -> tuple[str, ...]:
    found = device is not None and gpu.name.lower() in device.lower()
    origin = "" if found else " (an assumption: the GPU of the run is not known here)"
    return (
        f"{gpu.name}: {gpu.flops / 1e12:.0f} TFLOP/s in bf16, {gpu.bandwidth / 1e12:.1f} TB/s{origin}",
        f"{BANDWIDTH_USED:.0%} of the bandwidth in decoding; {FORWARD_USED:.0%} of the arithmetic in forward passes,"
        f" {UPDATE_USED:.0%} in updates",
        f"every response has full length; {sequences_at_once:,} at once on an engine",
        "without attention over long contexts, communication, rewards, offloading and loading",
    )
