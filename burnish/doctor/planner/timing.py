"""Step-time model: seconds of every phase of a step in a layout."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from burnish.config import TrainConfig
from burnish.config.adapters import wants_adapter
from burnish.config.async_rules import is_async
from burnish.config.rules import has_critic
from burnish.doctor.arithmetic import max_sequence_length
from burnish.doctor.gpus import Cluster
from burnish.doctor.memory import Shapes
from burnish.doctor.planner import features
from burnish.doctor.planner.calibration import Calibration
from burnish.doctor.planner.features import Part, Terms
from burnish.doctor.planner.layout import ALL, KEEP, Layout, uses_reference
from burnish.doctor.planner.links import LINE_SHARE, LINK_LATENCY, broadcast_seconds, exposed
from burnish.doctor.planner.traffic import Passes, traffic
from burnish.doctor.shapes import Shape
from burnish.sizing import COMPILED_FAMILIES

ROLLOUT, REWARD, OLD_LOG_PROBS, REFERENCE, VALUES = "rollout", "reward model", "old log-probs", "reference", "values"
CRITIC, ACTOR, SYNC, OTHER, OFFLOAD = "update critic", "update actor", "weight sync", "other", "offload"
MOMENTS = 2  # of AdamW, per parameter
HALF, FLOAT = 2, 4  # bytes


@dataclass(frozen=True)
class Workload:
    """What one step has to do: sequences of one length, the longest that the config allows unless measured."""

    prompts: int
    samples: int
    prompt: float
    response: float

    @property
    def rows(self) -> int:
        return self.prompts * self.samples

    @property
    def length(self) -> float:
        return self.prompt + self.response

    @staticmethod
    def of(cfg: TrainConfig) -> Workload:
        rollout = cfg.actor_rollout_ref.rollout
        length = max_sequence_length(rollout)
        response = max(1, min(rollout.response_length, length))
        return Workload(cfg.data.train_batch_size, rollout.n, max(0, length - response), response)


@dataclass
class StepTime:
    """Seconds of a step and of its phases."""

    phases: dict[str, float]
    step: float
    mfu: float  # of the whole step on all GPUs
    update_mfu: float  # of the policy's update on the GPUs that train
    communication: dict[str, float] = field(default_factory=dict)  # by kind, also where computation hides it
    bubble: float = 0.0  # share of the update in which a pipeline's rank waits

    def to_json(self) -> dict[str, Any]:
        return {
            "step_seconds": round(self.step, 3),
            "phases": {name: round(seconds, 3) for name, seconds in self.phases.items()},
            "mfu": round(self.mfu, 4),
            "update_mfu": round(self.update_mfu, 4),
            "communication_seconds": {kind: round(seconds, 3) for kind, seconds in self.communication.items()},
            "bubble": round(self.bubble, 4),
        }


def terms_of(
    cfg: TrainConfig, shapes: Shapes, work: Workload, layout: Layout, cluster: Cluster, at_once: int
) -> dict[str, Terms]:
    """What one rank computes in each phase, without communication."""
    gpu, policy, critic = cluster.gpu, shapes.policy, shapes.critic or shapes.policy
    actor, rows = cfg.actor_rollout_ref.actor, work.rows / layout.data
    itemsize = HALF
    per_engine = max(1.0, work.rows / layout.num_engines)
    found = {
        ROLLOUT: features.rollout(
            policy,
            gpu,
            rows=per_engine,
            prompts=per_engine / work.samples,
            at_once=at_once,
            prompt=work.prompt,
            response=work.response,
            itemsize=itemsize,
            tensor=layout.engine_tensor,
        )
    }
    part = _part(work, rows, layout, 1)
    if shapes.reward_model is not None:
        found[REWARD] = features.forward(shapes.reward_model, gpu, part, head=False)
    if computes_old_log_probs(cfg):
        found[OLD_LOG_PROBS] = features.forward(policy, gpu, part)
    if uses_reference(cfg):
        found[REFERENCE] = features.forward(shapes.reference or policy, gpu, part)
    divided = layout.shard * layout.tensor * layout.pipeline
    if has_critic(cfg):
        found[VALUES] = features.forward(critic, gpu, part, head=False)
        updates = num_updates(cfg, cfg.critic)
        found[CRITIC] = features.update(
            critic,
            gpu,
            _part(work, rows * cfg.critic.ppo_epochs, layout, updates),
            recompute=cfg.critic.model.enable_gradient_checkpointing,
            trained=critic.backbone / divided,
            updates=updates,
            adapters=wants_adapter(cfg.critic.model),
            head=False,
        )
    updates = num_updates(cfg, actor)
    adapters = wants_adapter(cfg.actor_rollout_ref.model)
    found[ACTOR] = features.update(
        policy,
        gpu,
        _part(work, rows * actor.ppo_epochs, layout, updates),
        recompute=cfg.actor_rollout_ref.model.enable_gradient_checkpointing,
        trained=0 if adapters else policy.parameters / divided,
        updates=updates,
        adapters=adapters,
    )
    found[SYNC] = features.weight_sync(policy, gpu, itemsize)
    found[OTHER] = Counter({features.HOST_TOKENS: work.rows * work.response, features.STEP: 1.0})
    return found


def computes_old_log_probs(cfg: TrainConfig) -> bool:
    """As the loop decides: not where one update of current weights gives them as well."""
    correction, actor = cfg.algorithm.rollout_correction, cfg.actor_rollout_ref.actor
    if (
        correction.rollout_is is not None
        or correction.rollout_rs
        or correction.rollout_token_veto_threshold is not None
    ):
        return True
    if correction.bypass_mode:
        return False
    return cfg.algorithm.use_kl_in_reward or is_async(cfg) or num_updates(cfg, actor) > 1


def num_updates(cfg: TrainConfig, role: Any) -> int:
    return role.ppo_epochs * max(1, -(-cfg.data.train_batch_size // max(1, role.ppo_mini_batch_size)))


def _part(work: Workload, rows: float, layout: Layout, updates: int) -> Part:
    """What one rank computes of the last stage, which has the head."""
    batches = micro_batches(rows * work.length, layout, updates)
    return Part(rows, work.length, work.response, batches, layout.tensor, layout.context, layout.pipeline)


def micro_batches(tokens: float, layout: Layout, updates: int) -> int:
    """Of a group of ranks that share sequences, in all updates."""
    return updates * max(1, math.ceil(tokens / updates / (layout.micro_batch_tokens * layout.context)))


def step_time(
    cfg: TrainConfig,
    shapes: Shapes,
    layout: Layout,
    cluster: Cluster,
    at_once: int,
    calibration: Calibration,
    work: Workload | None = None,
) -> StepTime:
    """Seconds of a step of this config, to which the layout was applied. `at_once`: sequences of an engine."""
    work = work or Workload.of(cfg)
    all_terms = terms_of(cfg, shapes, work, layout, cluster, at_once)
    compiled = layout.ranks == 1 and shapes.policy.family in COMPILED_FAMILIES  # ranks do not compile
    compiled = compiled and cfg.actor_rollout_ref.actor.use_torch_compile
    phases: dict[str, float] = {}
    communication: Counter[str] = Counter()
    for name, terms in all_terms.items():
        if not compiled and name not in (ROLLOUT, SYNC, OTHER):
            terms = terms + Counter({features.ELEMENTWISE: terms[features.ELEMENTWISE] * (calibration.eager - 1)})
        phases[name] = calibration.seconds(terms)
        if layout.ranks > 1 and name in _ROLES:
            phases[name] += _distributed(cfg, shapes, work, layout, cluster, name, phases[name], communication)
    phases[ROLLOUT] += _engine_sums(shapes.policy, work, layout, cluster, at_once)
    phases[SYNC] += _sync(shapes.policy, layout, cluster)
    moved = _offloaded(cfg, shapes, layout, cluster)
    if moved:
        phases[OFFLOAD] = moved
    step = _whole(phases, layout)
    flops = features.model_flops(shapes.policy, work.rows, work.length, work.response)
    flops *= cfg.actor_rollout_ref.actor.ppo_epochs
    peak = cluster.gpu.flops
    return StepTime(
        phases,
        step,
        flops / (step * peak * layout.num_gpus),
        flops / (phases[ACTOR] * peak * layout.ranks),
        dict(communication),
        _bubble(cfg, work, layout),
    )


# Phases that run a model over ranks: (which model, training)
_ROLES = {OLD_LOG_PROBS, REFERENCE, REWARD, VALUES, CRITIC, ACTOR}


def _distributed(
    cfg: TrainConfig,
    shapes: Shapes,
    work: Workload,
    layout: Layout,
    cluster: Cluster,
    name: str,
    computing: float,
    communication: Counter[str],
) -> float:
    """Seconds that a pipeline's bubble and communication add to a phase."""
    shape = {
        REFERENCE: shapes.reference,
        REWARD: shapes.reward_model,
        VALUES: shapes.critic,
        CRITIC: shapes.critic,
    }.get(name) or shapes.policy
    training, role = name in (CRITIC, ACTOR), cfg.critic if name == CRITIC else cfg.actor_rollout_ref.actor
    updates = num_updates(cfg, role) if training else 1
    epochs = role.ppo_epochs if training else 1
    tokens = epochs * work.rows / layout.data * work.length
    count = micro_batches(tokens, layout, updates)
    recompute = cfg.critic.model if name == CRITIC else cfg.actor_rollout_ref.model
    passes = Passes(
        [math.ceil(tokens / count)] * count,
        round(epochs * work.rows / layout.data * work.response),
        training,
        HALF,
        FLOAT,
        FLOAT,
        training and recompute.enable_gradient_checkpointing,
        head=name not in (VALUES, CRITIC, REWARD),
    )
    # The last stage has the head; the first one waits for it.
    flows = traffic(shape, layout, passes, layout.pipeline - 1)
    bubble = computing * (layout.pipeline - 1) / (layout.virtual * count / updates)
    found = exposed(flows, computing, layout, cluster)
    communication.update(found.by_kind)
    return bubble + found.seconds


def _bubble(cfg: TrainConfig, work: Workload, layout: Layout) -> float:
    actor = cfg.actor_rollout_ref.actor
    updates = num_updates(cfg, actor)
    tokens = actor.ppo_epochs * work.rows / layout.data * work.length
    waiting = (layout.pipeline - 1) * updates / (layout.virtual * micro_batches(tokens, layout, updates))
    return waiting / (1 + waiting)


def _engine_sums(policy: Shape, work: Workload, layout: Layout, cluster: Cluster, at_once: int) -> float:
    """Seconds of the two all-reduces per layer by which the GPUs of an engine add up their parts."""
    size = layout.engine_tensor
    if size == 1:
        return 0.0
    rows = max(1.0, work.rows / layout.num_engines)
    _, steps = features.rounds(rows, at_once, work.response)
    tokens = rows * work.response + rows / work.samples * work.prompt
    num_bytes = 2 * (size - 1) / size * tokens * policy.hidden * HALF
    return 2 * policy.layers * (steps * LINK_LATENCY + num_bytes / (cluster.gpu.link * LINE_SHARE))


def _sync(policy: Shape, layout: Layout, cluster: Cluster) -> float:
    """Gathering the weights on every rank that passes them on, and sending them to engines elsewhere."""
    num_bytes, seconds = policy.parameters * FLOAT, 0.0
    if layout.shard * layout.tensor * layout.pipeline > 1:
        rate = cluster.gpu.link if layout.ranks <= cluster.per_machine else cluster.gpu.network
        seconds += num_bytes / (rate * LINE_SHARE)
    return seconds + (broadcast_seconds(num_bytes, layout, cluster) if layout.is_apart else 0.0)


def _offloaded(cfg: TrainConfig, shapes: Shapes, layout: Layout, cluster: Cluster) -> float:
    """Optimizer state to the GPU and back for an update; weights for every phase that uses them."""
    if layout.offload == KEEP:
        return 0.0
    divided = layout.shard * layout.tensor * layout.pipeline
    trained = [(shapes.policy.parameters, 3 if computes_old_log_probs(cfg) else 2)]
    if has_critic(cfg):
        trained.append(((shapes.critic or shapes.policy).backbone, 2))
    num_bytes = 0.0
    for parameters, uses in trained:
        num_bytes += 2 * MOMENTS * FLOAT * parameters
        num_bytes += 2 * FLOAT * parameters * uses if layout.offload == ALL else 0
    if uses_reference(cfg):
        num_bytes += 2 * FLOAT * (shapes.reference or shapes.policy).parameters
    return num_bytes / divided / (cluster.gpu.host * LINE_SHARE)


def _whole(phases: dict[str, float], layout: Layout) -> float:
    """Phases one after the other; apart and asynchronous, engines and ranks work side by side between syncs."""
    total = sum(phases.values())
    if not (layout.is_apart and layout.mode != "sync"):
        return total
    return max(phases[ROLLOUT], total - phases[ROLLOUT] - phases[SYNC]) + phases[SYNC]
