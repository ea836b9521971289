"""The memory plan: what one GPU holds in each phase of a step, and which phases do not fit.

Bytes of weights, gradients, optimizer state, saved activations and logits are exact for the known families (tests count
the tensors). Temporaries inside a layer are an estimate, and several ranks are a formula.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from burnish.config import SftConfig, TrainConfig
from burnish.config.adapters import wants_adapter
from burnish.config.jobs import GenerateConfig
from burnish.config.ranks import largest_pool, num_ranks
from burnish.config.rules import has_critic
from burnish.doctor import activations as act
from burnish.doctor.activations import Itemsize, MicroBatch
from burnish.doctor.arithmetic import MicroBatching, responses_per_engine, sft_micro_batching, step_micro_batching
from burnish.doctor.engine import Concurrency, EnginePlan, engine_plan
from burnish.doctor.head import HeadPlan
from burnish.doctor.recompute import Recompute, fewest_recomputed
from burnish.doctor.roles import Role, default_itemsize, frozen_role, itemsize_of, precision, shards_of, trained_role
from burnish.doctor.shapes import Shape
from burnish.doctor.stages import Stages
from burnish.sizing import FLOAT32_BYTES as FLOAT
from burnish.sizing import GIB

OVERHEAD = 1 * GIB  # the CUDA context, library workspaces and allocator fragmentation: an assumption


@dataclass(frozen=True)
class Part:
    """One item of a phase's memory."""

    name: str
    role: str
    bytes: int


@dataclass
class Phase:
    """One phase of a step, at its peak."""

    name: str
    parts: list[Part] = field(default_factory=list)
    note: str = ""

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def add(self, name: str, role: str, num_bytes: int) -> None:
        if num_bytes > 0:
            self.parts.append(Part(name, role, num_bytes))


@dataclass
class Plan:
    """All phases of a step on one GPU with `capacity` bytes."""

    capacity: int
    phases: list[Phase]
    exact: bool = True
    notes: list[str] = field(default_factory=list)
    concurrency: Concurrency | None = None  # None without an engine
    recompute: dict[str, Recompute] = field(default_factory=dict)  # of the roles with recompute.method=auto

    @property
    def worst(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def too_big(self) -> list[Phase]:
        return [phase for phase in self.phases if phase.bytes > self.capacity]

    def to_json(self) -> dict[str, Any]:
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
            "recompute": {role: choice.to_json() for role, choice in self.recompute.items()},
            "sequences_at_once": None if self.concurrency is None else self.concurrency.at_once,
        }


@dataclass(frozen=True)
class Shapes:
    """The shapes of a run's models, where they are known."""

    policy: Shape
    reference: Shape | None = None  # None: the policy's
    critic: Shape | None = None  # None: the policy's
    reward_model: Shape | None = None


def train_plan(cfg: TrainConfig, shapes: Shapes, capacity: int) -> Plan:
    """The phases of one step of `burnish train`."""
    on_cpu = cfg.trainer.device == "cpu"
    policy = _policy(cfg, shapes.policy, on_cpu)
    critic = _critic(cfg, shapes.critic or shapes.policy, on_cpu) if has_critic(cfg) else None
    reference = _reference(cfg, shapes.reference or shapes.policy, on_cpu)
    reward_model = _reward_model(cfg, shapes.reward_model, on_cpu)
    rollout = cfg.actor_rollout_ref.rollout
    engine = engine_plan(rollout, shapes.policy, largest_pool(cfg), on_cpu, responses_per_engine(cfg))
    # A role with its own resource pool takes no memory where the others compute.
    separate = [reward_model] if cfg.reward_model.enable_resource_pool else []
    roles = [role for role in (policy, critic, reference, reward_model) if role is not None and role not in separate]
    separate_engine = cfg.rollout.n_gpus_per_node > 0
    step = _StepPlan(roles, None if separate_engine else engine, capacity)
    micro_batches = step_micro_batching(cfg, on_cpu)
    generation = _StepPlan([], engine, capacity) if separate_engine else step
    phases = [generation.rollout()]
    concurrency = Concurrency.of(engine, generation.cache, capacity)
    if reward_model is not None:
        scoring = _StepPlan([reward_model], None, capacity) if reward_model in separate else step
        phases.append(scoring.forward("reward model", reward_model, micro_batches.reward_model))
    phases.append(step.forward("old log-probs", policy, micro_batches.old_log_probs, entropy=True))
    if reference is not None or _uses_reference(cfg):
        phases.append(step.forward("reference", reference or policy, micro_batches.reference))
    if critic is not None:
        phases.append(step.forward("values", critic, micro_batches.values))
        phases.append(step.chosen_update("update critic", critic, micro_batches.update_critic))
    entropy = cfg.actor_rollout_ref.actor.entropy_coeff != 0
    phases.append(step.chosen_update("update actor", policy, micro_batches.update_actor, entropy=entropy))
    phases.append(step.weight_sync(policy))
    exact = all(shape.exact for shape in (shapes.policy, shapes.critic, shapes.reward_model) if shape is not None)
    notes = _notes(cfg, shapes, policy, engine) + step.recompute_notes()
    return Plan(capacity, phases, exact, notes, concurrency, step.recompute)


def sft_plan(cfg: SftConfig, shape: Shape, capacity: int) -> Plan:
    """The one phase of `burnish sft`."""
    on_cpu = cfg.trainer.device == "cpu"
    world_size = cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node
    fsdp = cfg.model.fsdp_config
    shards = shards_of(cfg.model.strategy, world_size, fsdp, None, cfg.ulysses_sequence_parallel_size)
    logits, frozen = HeadPlan.of("torch", on_cpu), cfg.model.freeze_vision_tower
    role = trained_role(
        "model", shape, cfg.model, fsdp, shards, key="model", on_cpu=on_cpu, logits=logits, frozen_tower=frozen
    )
    step = _StepPlan([role], None, capacity)
    phase = step.chosen_update("update", role, sft_micro_batching(cfg, on_cpu))
    notes = _rank_notes(world_size) + step.recompute_notes()
    return Plan(capacity, [phase], shape.exact, notes, recompute=step.recompute)


def generate_plan(cfg: GenerateConfig, shape: Shape, capacity: int) -> Plan:
    """The one phase of `burnish generate`."""
    world_size = cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node
    num_responses = -(-cfg.data.batch_size * cfg.data.n_samples // max(1, world_size))
    engine = engine_plan(cfg.rollout, shape, world_size, cfg.trainer.device == "cpu", num_responses)
    step = _StepPlan([], engine, capacity)
    phases, notes = [step.rollout()], _rank_notes(world_size)
    return Plan(capacity, phases, shape.exact, notes, Concurrency.of(engine, step.cache, capacity))


def _policy(cfg: TrainConfig, shape: Shape, on_cpu: bool) -> Role:
    actor, model = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.model
    fsdp = actor.fsdp_config
    return trained_role(
        "policy",
        shape,
        model,
        fsdp,
        shards_of(actor.strategy, num_ranks(cfg), fsdp, actor.megatron, actor.ulysses_sequence_parallel_size),
        key="actor_rollout_ref.model",
        on_cpu=on_cpu,
        torch_dtype=model.torch_dtype,
        logits=HeadPlan.of(model.fused_kernel_options.impl_backend, on_cpu),
        ema=actor.ema_beta is not None,
        compiled=actor.use_torch_compile and not model.use_liger,
        frozen_tower=actor.freeze_vision_tower,
        stages=Stages.of(actor, shape.layers),
    )


def _critic(cfg: TrainConfig, shape: Shape, on_cpu: bool) -> Role:
    critic = cfg.critic
    fsdp = critic.model.fsdp_config
    return trained_role(
        "critic",
        shape,
        critic.model,
        fsdp,
        shards_of(critic.strategy, num_ranks(cfg), fsdp, critic.megatron, critic.ulysses_sequence_parallel_size),
        key="critic.model",
        on_cpu=on_cpu,
        head=False,
        compiled=critic.use_torch_compile,
        stages=Stages.of(critic, shape.layers),
    )


def _uses_reference(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.actor.use_kl_loss or cfg.algorithm.use_kl_in_reward


def _reference(cfg: TrainConfig, shape: Shape, on_cpu: bool) -> Role | None:
    """None without a KL term, and where the reference is the policy with its adapters disabled."""
    ref, policy = cfg.actor_rollout_ref.ref, cfg.actor_rollout_ref.model
    shared = wants_adapter(policy) and not (ref.model.path or ref.model.override_config)
    if not _uses_reference(cfg) or shared:
        return None
    return frozen_role(
        "reference",
        shape,
        ref.fsdp_config,
        shards_of(ref.strategy, num_ranks(cfg), ref.fsdp_config, ref.megatron, ref.ulysses_sequence_parallel_size),
        precision(ref.fsdp_config, policy.torch_dtype, on_cpu),
        on_cpu=on_cpu,
        logits=HeadPlan.of(policy.fused_kernel_options.impl_backend, on_cpu),
        compiled=ref.use_torch_compile,
    )


def _reward_model(cfg: TrainConfig, shape: Shape | None, on_cpu: bool) -> Role | None:
    config = cfg.reward_model
    if not config.enable or shape is None:
        return None
    fsdp = config.model.fsdp_config
    itemsize = itemsize_of(fsdp.mixed_precision.param_dtype, default_itemsize(on_cpu))
    shards = shards_of(config.strategy, num_ranks(cfg), fsdp, config.megatron, config.ulysses_sequence_parallel_size)
    return frozen_role(
        "reward model",
        shape,
        fsdp,
        shards,
        Itemsize(itemsize, itemsize),
        on_cpu=on_cpu,
        head=False,
        compiled=config.use_torch_compile,
    )


def _notes(cfg: TrainConfig, shapes: Shapes, policy: Role, engine: EnginePlan) -> list[str]:
    notes = ["worst case: every response has full length", *_rank_notes(num_ranks(cfg))]
    if cfg.rollout.n_gpus_per_node > 0:
        notes.append("the engine has its own GPUs: the rollout phase is that of one of them")
    if cfg.reward_model.enable and shapes.reward_model is None:
        notes.append("the reward model is not in the plan: its shape is unknown (--shape sets the policy's)")
    if shapes.policy.experts:
        notes.append("mixture of experts: activations are an estimate, because they depend on the routing")
    if shapes.policy.tower is not None:
        notes.append("vision: an upper bound, as if every token of a prompt were a picture's")
    if policy.has_adapters:
        notes.append("adapters: saved activations are an upper bound (those of full training)")
    return [*notes, *engine.notes]


def _rank_notes(world_size: int) -> list[str]:
    divided = f"{world_size} ranks: weights, gradients and optimizer state are divided by formula"
    return [divided] if world_size > 1 else []


class _StepPlan:
    """Plans the phases of a step for the roles and the engine that share one GPU."""

    def __init__(self, roles: list[Role], engine: EnginePlan | None, capacity: int) -> None:
        self.roles = roles
        self.engine = engine
        self.capacity = capacity
        self.cache = 0  # bytes of the KV cache, set by `rollout`
        self.recompute: dict[str, Recompute] = {}

    def _start(
        self, name: str, active: Role | None = None, *, updating: bool = False, generating: bool = False
    ) -> Phase:
        """A phase with what is on the GPU throughout: all of the active role, and what the others do not offload."""
        phase = Phase(name)
        for role in self.roles:
            is_active = active is not None and role.name == active.name
            if is_active or not role.offload:
                phase.add("weights", role.name, role.weights)
            on_gpu = not role.updates_on_cpu if is_active and updating else not role.offload_optimizer
            phase.add("optimizer", role.name, role.optimizer if on_gpu else 0)
            phase.add("moving average", role.name, role.ema)
        engine = self.engine
        if engine is not None and (generating or engine.keeps_weights):
            phase.add("weights", "engine", engine.weights)
            phase.add("CUDA graphs", "engine", engine.decode_state)
            phase.add("weight checksums", "engine", engine.checksum_layout)
        if engine is not None and engine.keeps_cache and not generating:
            phase.add("KV cache", "engine", self.cache)
            phase.add("logits buffer", "engine", engine.logits_buffer)
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
        phase.add("logits buffer", "engine", engine.logits_buffer)
        return phase

    def forward(self, name: str, role: Role, micro_batches: MicroBatching, *, entropy: bool = False) -> Phase:
        """A forward pass without gradients."""
        batch = micro_batches.largest(role.shards.tokens)
        phase, shape, itemsize = self._start(name, role), role.shape, role.itemsize
        # Autocast caches the cast weights of trained parameters for the whole pass, and casts frozen ones one by one.
        # A compiled layer frees its copies at its end.
        num_cast_layers = 0
        if role.casts_weights:
            num_cast_layers = 1 if role.kernels.compiled else shape.layers if role.num_trained else 0
        phase.add("gathered weights", role.name, role.gathered)
        layers = act.forward_temporaries(shape, itemsize, batch, role.kernels)
        layers += num_cast_layers * act.layer_weight_copies(shape, itemsize)
        phase.add("vision tower", role.name, tower_activations(role, batch, training=False))
        if not role.head:
            phase.add("activations", role.name, layers)
            return phase
        head = batch.num_response_tokens * itemsize.compute * shape.hidden
        head += role.logits.logits(shape.vocab, batch.num_response_tokens, itemsize.compute, entropy=entropy)
        head += itemsize.compute * shape.embedding if role.casts_weights else 0
        if head > layers:
            phase.add("logits", role.name, head)
        else:
            phase.add("activations", role.name, layers)
        return phase

    def chosen_update(self, name: str, role: Role, micro_batches: MicroBatching, *, entropy: bool = False) -> Phase:
        """`update`, with the fewest recomputed layers that fit if the role leaves them to the plan."""
        if role.chooses_recompute:
            plan = partial(self.update, name, micro_batches=micro_batches, entropy=entropy)
            role, choice = fewest_recomputed(role, lambda candidate: plan(candidate).bytes, self.capacity)
            self.recompute[role.name] = choice
        return self.update(name, role, micro_batches, entropy=entropy)

    def recompute_notes(self) -> list[str]:
        return [f"{role} (recompute.method=auto): {choice.text}" for role, choice in self.recompute.items()]

    def update(self, name: str, role: Role, micro_batches: MicroBatching, *, entropy: bool = False) -> Phase:
        """Forward and backward of one micro-batch, beside the accumulated gradients of those before it.

        With a single micro-batch, gradients appear while activations are freed, so the peak is either before the first
        gradient or in the last layer of the backward pass.
        """
        phase, batch = self._start(name, role, updating=True), micro_batches.largest(role.shards.tokens)
        kept = role.stages.kept(micro_batches.count)
        peak, gradients = update_peak(role, batch, entropy=entropy, kept=kept), role.gradients
        if micro_batches.count == 1:
            end = end_of_backward(role, batch)
            if sum(peak.values()) > sum(end.values()) + gradients:
                gradients = 0
            else:
                peak = end
        phase.add("gradients", role.name, gradients)
        phase.add("gathered weights", role.name, role.gathered)
        phase.add("vision tower", role.name, tower_activations(role, batch, training=True))
        for part, num_bytes in peak.items():
            phase.add(part, role.name, num_bytes)
        return phase

    def weight_sync(self, policy: Role) -> Phase:
        phase = self._start("weight sync", policy, generating=True)
        # Adapters are merged into one matrix at a time, in float32; other weights are copied as they are.
        shape = policy.shape
        largest = max(shape.embedding, *(linear.weights for linear in (*shape.attention(), *shape.mlp())))
        phase.add("merged matrix", policy.name, FLOAT * largest if policy.has_adapters else 0)
        phase.add("gathered weights", policy.name, policy.gathered)
        phase.add("weight comparison", "engine", 0 if self.engine is None else self.engine.checksum_temporaries)
        phase.add("rounding to 8 bits", "engine", 0 if self.engine is None else self.engine.rounding)
        return phase


def tower_activations(role: Role, batch: MicroBatch, *, training: bool) -> int:
    """Bytes that the vision tower takes for the prompts of a micro-batch: what training it saves, else the features
    and the temporaries of computing them."""
    tower, compute = role.shape.tower, role.itemsize.compute
    if tower is None:
        return 0
    num_tokens = batch.num_tokens - batch.num_response_tokens
    if training and role.trains_tower:
        return tower.saved(num_tokens, role.itemsize.weights, compute, recomputed=role.num_recomputed > 0)
    return tower.temporaries(num_tokens, compute)


def end_of_backward(role: Role, batch: MicroBatch) -> dict[str, int]:
    """Bytes of activations when the backward pass is in the first layer."""
    shape, itemsize, kernels = role.shape, role.itemsize, role.kernels
    num_layers = role.recompute_group if role.num_recomputed else 1
    layers = num_layers * act.saved_by_layer(shape, itemsize, batch, kernels)
    outside = act.saved_outside_layers(shape, itemsize, batch, head=role.head)
    return {"activations": outside + layers + act.backward_temporaries(shape, itemsize, batch, kernels)}


def update_peak(role: Role, batch: MicroBatch, *, entropy: bool = False, kept: float = 1.0) -> dict[str, int]:
    """Bytes of activations and logits at the peak: at the end of the layers, in a layer's backward, or in the head.

    `kept`: micro-batches whose activations exist at once.
    """
    shape, itemsize, kernels = role.shape, role.itemsize, role.kernels
    saved = act.saved_activations(
        shape, itemsize, batch, role.num_recomputed, head=role.head, group=role.recompute_group, kernels=kernels
    )
    if role.activations_on_cpu:
        saved = act.saved_outside_layers(shape, itemsize, batch, head=role.head)
    saved = round(saved * kept)
    layer_copies = act.layer_weight_copies(shape, itemsize) if role.casts_weights else 0
    saved_copies = (shape.layers - role.num_recomputed) * layer_copies
    recomputed = 0
    # The first layers are recomputed last. In one stage, the layers behind them have freed as much by then.
    if role.num_recomputed == shape.layers or (role.num_recomputed and role.stages.size > 1):
        recomputed = role.recompute_group * (act.saved_by_layer(shape, itemsize, batch, kernels) + layer_copies)
    head_copy = itemsize.compute * shape.embedding if role.casts_weights and role.head else 0
    holds_head_gradient = role.head and shape.tied and not role.has_adapters
    candidates = [
        {
            "activations": saved + act.forward_temporaries(shape, itemsize, batch, kernels),
            # Autocast caches a copy of every matrix until the pass ends; a compiled layer keeps only what it saves.
            "weight copies": max(saved_copies, layer_copies) if kernels.compiled else shape.layers * layer_copies,
        },
        {
            "activations": saved + recomputed + act.backward_temporaries(shape, itemsize, batch, kernels),
            "weight copies": saved_copies,
            # A compiled layer returns the gradients of all its weights at its end.
            "layer gradients": itemsize.weights * shape.layer if kernels.compiled and not role.has_adapters else 0,
            # A tied head's gradient stays until the embedding's is added to it.
            "head gradient": itemsize.weights * shape.embedding if holds_head_gradient else 0,
        },
    ]
    if role.head:
        logits = role.logits.logits(shape.vocab, batch.num_response_tokens, itemsize.compute, entropy=entropy)
        gradient = 0 if role.has_adapters else role.logits.gradient(shape, itemsize)
        cast = itemsize.weights * shape.embedding if gradient and itemsize.weights != FLOAT else 0
        candidates.append(
            {
                "activations": saved,
                "weight copies": saved_copies + head_copy,
                "logits and head gradient": gradient + max(logits, cast),
            }
        )
    return max(candidates, key=lambda peak: sum(peak.values()))
