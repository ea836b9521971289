"""The memory plan: what one GPU holds in each phase of a step, and which phases do not fit.

Byte counts of weights, gradients, optimizer state, kept activations and the head's logits are exact for the known
families (tests count them); what is alive for a moment inside a layer is an estimate. Several ranks are a formula.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from burnish.config import SftConfig, TrainConfig
from burnish.config.adapters import wants_adapter
from burnish.config.jobs import GenerateConfig
from burnish.config.ranks import num_ranks
from burnish.config.rules import has_critic
from burnish.doctor import activations as act
from burnish.doctor.activations import Pass, Width
from burnish.doctor.arithmetic import Micro, cuts, sft_cut
from burnish.doctor.engine import EnginePlan, engine_plan
from burnish.doctor.head import HeadPlan
from burnish.doctor.roles import Role, frozen, precision, spread_of, taught, width_of
from burnish.doctor.shapes import Shape

GIB = 1 << 30
OVERHEAD = 1 * GIB  # the CUDA context, libraries' workspaces and holes between tensors: an assumption


@dataclass(frozen=True)
class Part:
    """Some bytes and what they are."""

    name: str
    role: str
    bytes: int


@dataclass
class Phase:
    """One phase of a step, at its worst moment."""

    name: str
    parts: list[Part] = field(default_factory=list)
    note: str = ""

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def add(self, name: str, role: str, number: int) -> None:
        if number > 0:
            self.parts.append(Part(name, role, number))


@dataclass
class Plan:
    """All phases of a step on one GPU of `capacity` bytes."""

    capacity: int
    phases: list[Phase]
    exact: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def worst(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def too_big(self) -> list[Phase]:
        return [phase for phase in self.phases if phase.bytes > self.capacity]

    def plain(self) -> dict[str, Any]:
        """As `doctor --json` prints it."""
        return {
            "capacity": self.capacity,
            "fits": not self.too_big,
            "exact_shapes": self.exact,
            "phases": [
                {
                    "phase": phase.name,
                    "bytes": phase.bytes,
                    "fits": phase.bytes <= self.capacity,
                    "note": phase.note,
                    "parts": [{"part": part.name, "role": part.role, "bytes": part.bytes} for part in phase.parts],
                }
                for phase in self.phases
            ],
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Shapes:
    """The models of a run, where they are known."""

    policy: Shape
    reference: Shape | None = None  # None is the policy's
    critic: Shape | None = None
    reward_model: Shape | None = None


def train_plan(cfg: TrainConfig, shapes: Shapes, capacity: int) -> Plan:
    """The phases of one step of `burnish train`."""
    on_cpu = cfg.trainer.device == "cpu"
    policy = _policy(cfg, shapes.policy, on_cpu)
    critic = _critic(cfg, shapes.critic or shapes.policy, on_cpu) if has_critic(cfg) else None
    reference = _reference(cfg, shapes.reference or shapes.policy, policy, on_cpu)
    judge = _judge(cfg, shapes.reward_model, on_cpu)
    engine = engine_plan(cfg.actor_rollout_ref.rollout, shapes.policy, num_ranks(cfg), on_cpu)
    # Roles with devices of their own are not there when others work.
    apart = [judge] if cfg.reward_model.enable_resource_pool else []
    together = [role for role in (policy, critic, reference, judge) if role is not None and role not in apart]
    alone = cfg.rollout.n_gpus_per_node > 0
    step = _Step(together, None if alone else engine, capacity)
    cut, actor = cuts(cfg, on_cpu), cfg.actor_rollout_ref.actor
    entropy = actor.entropy_coeff != 0
    phases = [(_Step([], engine, capacity) if alone else step).rollout()]
    if judge is not None:
        scoring = _Step([judge], None, capacity) if judge in apart else step
        phases.append(scoring.reading("reward model", judge, cut.reward_model.largest(judge.spread.tokens)))
    phases.append(step.reading("old log-probs", policy, cut.old_log_probs.largest(policy.spread.tokens), entropy=True))
    if reference is not None or _wants_reference(cfg):
        role = reference or policy
        phases.append(step.reading("reference", role, cut.reference.largest(role.spread.tokens)))
    if critic is not None:
        phases.append(step.reading("values", critic, cut.values.largest(critic.spread.tokens)))
        phases.append(step.updating("update critic", critic, cut.update_critic))
    phases.append(step.updating("update actor", policy, cut.update_actor, entropy=entropy))
    phases.append(step.weight_sync(policy))
    known = [shapes.policy, shapes.critic or shapes.policy, shapes.reward_model or shapes.policy]
    return Plan(capacity, phases, all(shape.exact for shape in known), _notes(cfg, shapes, policy, engine))


def sft_plan(cfg: SftConfig, shape: Shape, capacity: int) -> Plan:
    """Supervised training has one phase."""
    on_cpu = cfg.trainer.device == "cpu"
    count = cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node
    fsdp = cfg.model.fsdp_config
    spread = spread_of(cfg.model.strategy, count, fsdp, None, cfg.ulysses_sequence_parallel_size)
    logits = HeadPlan.of("torch", on_cpu)
    role = taught("model", shape, cfg.model, fsdp, spread, key="model", on_cpu=on_cpu, logits=logits)
    step = _Step([role], None, capacity)
    phases = [step.updating("update", role, sft_cut(cfg, on_cpu))]
    return Plan(capacity, phases, shape.exact, _spread_notes(count))


def generate_plan(cfg: GenerateConfig, shape: Shape, capacity: int) -> Plan:
    """Generation has an engine and nothing else."""
    count = cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node
    engine = engine_plan(cfg.rollout, shape, count, cfg.trainer.device == "cpu")
    return Plan(capacity, [_Step([], engine, capacity).rollout()], shape.exact, _spread_notes(count))


def _policy(cfg: TrainConfig, shape: Shape, on_cpu: bool) -> Role:
    actor, model = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.model
    sequence = actor.ulysses_sequence_parallel_size
    return taught(
        "policy",
        shape,
        model,
        actor.fsdp_config,
        spread_of(actor.strategy, num_ranks(cfg), actor.fsdp_config, actor.megatron, sequence),
        key="actor_rollout_ref.model",
        on_cpu=on_cpu,
        torch_dtype=model.torch_dtype,
        logits=HeadPlan.of(model.fused_kernel_options.impl_backend, on_cpu),
        average=actor.ema_beta is not None,
        compiled=actor.use_torch_compile and not model.use_liger,
    )


def _critic(cfg: TrainConfig, shape: Shape, on_cpu: bool) -> Role:
    critic = cfg.critic
    fsdp = critic.model.fsdp_config
    return taught(
        "critic",
        shape,
        critic.model,
        fsdp,
        spread_of(critic.strategy, num_ranks(cfg), fsdp, critic.megatron, critic.ulysses_sequence_parallel_size),
        key="critic.model",
        on_cpu=on_cpu,
        head=False,
    )


def _wants_reference(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.actor.use_kl_loss or cfg.algorithm.use_kl_in_reward


def _reference(cfg: TrainConfig, shape: Shape, policy: Role, on_cpu: bool) -> Role | None:
    """None where there is none, or where it is the policy without its adapters."""
    own, ref = cfg.actor_rollout_ref.ref.model, cfg.actor_rollout_ref.ref
    shared = wants_adapter(cfg.actor_rollout_ref.model) and not (own.path or own.override_config)
    if not _wants_reference(cfg) or shared:
        return None
    spread = spread_of(ref.strategy, num_ranks(cfg), ref.fsdp_config, ref.megatron, ref.ulysses_sequence_parallel_size)
    width = precision(ref.fsdp_config, cfg.actor_rollout_ref.model.torch_dtype, on_cpu)
    logits = HeadPlan.of(cfg.actor_rollout_ref.model.fused_kernel_options.impl_backend, on_cpu)
    return frozen(
        *("reference", shape, ref.fsdp_config, spread, width),
        on_cpu=on_cpu,
        logits=logits,
        compiled=ref.use_torch_compile,
    )


def _judge(cfg: TrainConfig, shape: Shape | None, on_cpu: bool) -> Role | None:
    judge = cfg.reward_model
    if not judge.enable or shape is None:
        return None
    fsdp = judge.model.fsdp_config
    number = width_of(fsdp.mixed_precision.param_dtype, 4 if on_cpu else 2)
    spread = spread_of(judge.strategy, num_ranks(cfg), fsdp, judge.megatron, judge.ulysses_sequence_parallel_size)
    return frozen("reward model", shape, fsdp, spread, Width(number, number), on_cpu=on_cpu, head=False)


def _notes(cfg: TrainConfig, shapes: Shapes, policy: Role, engine: EnginePlan) -> list[str]:
    notes = ["the worst case: every response has full length", *_spread_notes(num_ranks(cfg))]
    if cfg.rollout.n_gpus_per_node > 0:
        notes.append("the engine has GPUs of its own: the rollout is planned for one of them")
    if cfg.reward_model.enable and shapes.reward_model is None:
        notes.append("the reward model's shape is not known, so it is not in the plan: --shape does not reach it")
    if shapes.policy.experts:
        notes.append("a mixture of experts is estimated: its experts' activations depend on the routing")
    if shapes.policy.vision:
        notes.append("the vision part of the model is not in the plan")
    if policy.adapted:
        notes.append("with adapters, kept activations are those of full training: an upper bound")
    return [*notes, *engine.notes]


def _spread_notes(count: int) -> list[str]:
    return [f"{count} ranks: weights, gradients and optimizer state are divided by formula"] if count > 1 else []


class _Step:
    """The phases of a step around the roles that share the GPU."""

    def __init__(self, roles: list[Role], engine: EnginePlan | None, capacity: int) -> None:
        self.roles = roles
        self.engine = engine
        self.capacity = capacity
        self.cache = 0  # bytes of the engine's, once the rollout is planned

    def _start(self, name: str, busy: Role | None = None, *, updating: bool = False, generating: bool = False) -> Phase:
        """A phase with what lies on the GPU whoever works: what is not offloaded, and all of the busy role."""
        phase = Phase(name)
        for role in self.roles:
            if role is busy or not role.offload:
                phase.add("weights", role.name, role.weights)
            on_gpu = not role.updates_on_cpu if role is busy and updating else not role.offload_optimizer
            phase.add("optimizer", role.name, role.optimizer if on_gpu else 0)
            phase.add("moving average", role.name, role.average)
        engine = self.engine
        if engine is not None and (generating or engine.stays):
            phase.add("weights", "engine", engine.weights)
            phase.add("CUDA graphs", "engine", engine.lasting)
            phase.add("digests of weights", "engine", engine.digest_layout)
        if engine is not None and engine.keeps_cache and not generating:
            phase.add("KV cache", "engine", self.cache)
            phase.add("room for logits", "engine", engine.room)
        phase.add("CUDA context and workspaces", "", OVERHEAD)
        return phase

    def rollout(self) -> Phase:
        engine = self.engine
        assert engine is not None
        phase = self._start("rollout", generating=True)
        phase.add("activations", "engine", engine.activations)
        phase.add("logits", "engine", engine.logits)
        self.cache, phase.note = engine.cache(self.capacity, self.capacity - phase.bytes)
        phase.add("KV cache", "engine", self.cache)
        phase.add("room for logits", "engine", engine.room)
        return phase

    def reading(self, name: str, role: Role, rows: Pass, *, entropy: bool = False) -> Phase:
        """A forward pass without gradients."""
        phase, shape, width = self._start(name, role), role.shape, role.width
        copied = 0  # a frozen model's matrices are converted one by one
        if role.copies and (role.trained or role.making.compiled):  # a compiled layer's copies go with its program
            copied = (1 if role.making.compiled else shape.layers) * act.layer_weight_copies(shape, width)
        phase.add("gathered weights", role.name, role.gathered)
        layers = act.forward_space(shape, width, rows, role.making) + copied
        if not role.head:
            phase.add("activations", role.name, layers)
            return phase
        last = rows.responses * width.compute * shape.hidden
        head = last + role.logits.logits(shape.vocab, rows.responses, width.compute, entropy=entropy)
        head += width.compute * shape.embedding if role.copies else 0
        if head > layers:
            phase.add("logits", role.name, head)
        else:
            phase.add("activations", role.name, layers)
        return phase

    def updating(self, name: str, role: Role, cut: Micro, *, entropy: bool = False) -> Phase:
        """Forward and backward of one micro-batch, with the gradients of those before it. Where there is only one,
        gradients come while activations go: most is there before the first of them, or at the last layer."""
        phase, rows = self._start(name, role, updating=True), cut.largest(role.spread.tokens)
        moment, gradients = worst_moment(role, rows, entropy=entropy), role.gradients
        if cut.count == 1:
            last = last_moment(role, rows)
            if sum(moment.values()) > sum(last.values()) + gradients:
                gradients = 0
            else:
                moment = last
        phase.add("gradients", role.name, gradients)
        phase.add("gathered weights", role.name, role.gathered)
        for part, number in moment.items():
            phase.add(part, role.name, number)
        return phase

    def weight_sync(self, policy: Role) -> Phase:
        phase = self._start("weight sync", policy, generating=True)
        # Adapters are merged into one matrix at a time, in float32; other weights are copied as they are.
        shape = policy.shape
        largest = max(shape.embedding, *(one.weights for one in (*shape.attention(), *shape.mlp())))
        phase.add("one matrix, whole", policy.name, 4 * largest if policy.adapted else 0)
        phase.add("gathered weights", policy.name, policy.gathered)
        phase.add("sums of weights", "engine", 0 if self.engine is None else self.engine.digest_space)
        return phase


def last_moment(role: Role, rows: Pass) -> dict[str, int]:
    """Bytes of activations when the backward pass is in the layer that came first."""
    shape, width, making = role.shape, role.width, role.making
    layer = act.kept_by_layer(shape, width, rows, making) * (role.group if role.recomputed else 1)
    outside = act.kept_outside_layers(shape, width, rows, head=role.head)
    return {"activations": outside + layer + act.backward_space(shape, width, rows, making)}


def worst_moment(role: Role, rows: Pass, *, entropy: bool = False) -> dict[str, int]:
    """Bytes of activations and logits when there are most: after the layers, in the head, or in a layer's backward."""
    shape, width, making = role.shape, role.width, role.making
    kept = act.kept(shape, width, rows, role.recomputed, head=role.head, group=role.group, making=making)
    if role.activations_on_cpu:
        kept = act.kept_outside_layers(shape, width, rows, head=role.head)
    copies = act.layer_weight_copies(shape, width) if role.copies else 0
    lasting = (shape.layers - role.recomputed) * copies
    again = act.kept_by_layer(shape, width, rows, making) + copies if role.recomputed else 0
    head_copy = width.compute * shape.embedding if role.copies and role.head else 0
    moments = [
        {
            "activations": kept + act.forward_space(shape, width, rows, making),
            # Autocast keeps a copy of every matrix until the pass ends; a compiled layer only what it keeps.
            "weight copies": max(lasting, copies) if making.compiled else shape.layers * copies,
        },
        {
            "activations": kept + again * role.group + act.backward_space(shape, width, rows, making),
            "weight copies": lasting,
            # A compiled layer hands out the gradients of all its weights at its end.
            "a layer's gradients": width.kept * shape.layer if making.compiled and not role.adapted else 0,
            # Where head and embedding are one, its gradient waits for the embedding's.
            "the head's gradient": width.kept * shape.embedding if role.head and shape.tied and not role.adapted else 0,
        },
    ]
    if role.head:
        logits = role.logits.logits(shape.vocab, rows.responses, width.compute, entropy=entropy)
        gradient = 0 if role.adapted else role.logits.gradient(shape, width)
        cast = width.kept * shape.embedding if gradient and width.kept != act.FLOAT else 0
        moments.append(
            {
                "activations": kept,
                "weight copies": lasting + head_copy,
                "logits and the head's gradient": gradient + max(logits, cast),
            }
        )
    return max(moments, key=lambda moment: sum(moment.values()))
