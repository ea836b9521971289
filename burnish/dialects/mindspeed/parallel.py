"""Devices, parallel sizes, recomputation, offloading, experts. Only the expert-balancing loss changes results."""

from __future__ import annotations

import math

from burnish.dialects.mindspeed.roles import ACTOR, REF, ROLLOUT, Role, is_sharded, trained_roles, uses_reference
from burnish.dialects.mindspeed.translator import Setting, Translator

NPUS_PER_NODE = 8
TENSOR_SIZE = "tensor_model_parallel_size"
_SIZES = (
    TENSOR_SIZE,
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "context_parallel_size",
)
_REPLICA_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
# Passed on as overrides of the transformer config; the run reports why they have no effect, if they have none.
_LAYOUT = ("context_parallel_algo", "num_layer_list", "num_layers_per_virtual_pipeline_stage", "noop_layers")
_STAGES, _CHUNK, _NO_OPS = _SIZES[1], *_LAYOUT[2:]
_FLAGS = ("moe_tp_extend_ep",)
_LORA_WHY = (
    "LoRA does not support tensor parallelism: FSDP shards the layers over all ranks instead, with the same results"
)
_SINGLE_RANK = "each model replica is on one rank"
# Megatron's load balancing type -> aux_loss_scope; None has no loss.
_BALANCING = {"aux_loss": "layer", "seq_aux_loss": "sequence", "noaux_tc": None, "none": None, "sinkhorn": None}


def translate_layout(t: Translator) -> None:
    _devices(t)
    if is_sharded(t):
        largest = next(
            role.section[name] for role in trained_roles(t) for name in _SIZES if (role.section.value(name) or 1) > 1
        )
        t.set(largest, f"{ACTOR}.strategy", "megatron", "models are sharded over ranks as in Megatron")
    for role in trained_roles(t):
        _sizes(t, role)
        _recompute(t, role)
        _memory(t, role)
    _experts(t)
    _offloads(t)


def _devices(t: Translator) -> None:
    rl, integrated = t.rl, t.rl["use_integrated_worker"]
    actor = rl["actor_resource"]
    count = (actor.value or {}).get("num_npus")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        t.refuse(Setting(f"{actor.theirs}.num_npus", count, True), "must be a positive number of devices")
    elif isinstance(count, int):
        setting = Setting(f"{actor.theirs}.num_npus", count, actor.explicit)
        replica_size = math.prod(t.actor.value(name) or 1 for name in _REPLICA_SIZES)
        if count % replica_size:
            why = f"a model replica takes tensor x pipeline x context parallel = {replica_size} devices"
            t.refuse(setting, f"{why}: write a multiple of it, as in MindSpeed RL")
        else:
            _nodes(t, setting)
    t.handled.add(actor.theirs)
    for name in (actor.value or {}).keys() - {"num_npus"}:
        t.refuse(Setting(f"{actor.theirs}.{name}", actor.value[name], True), "a resource has num_npus only")
    t.inert(integrated, "policy, engine and reference share devices; their placement does not change results")
    for name, role in (("reference_resource", "the reference"), ("reward_resource", "a reward model")):
        if not integrated.value:
            t.inert(rl[name], "placement does not change results")
        elif rl.value(name) is not None:
            t.refuse(rl[name], f"{role} has no separate devices with use_integrated_worker: remove this key")
    t.inert(rl["critic_resource"], "the critic shares the policy's devices; results are the same")
    if rl.value("vit_resource") is not None:
        t.inert(rl["vit_resource"], "the vision tower is part of the policy, and shares its devices")


def _nodes(t: Translator, total: Setting) -> None:
    """Split the total number of devices into equal nodes of at most 8, the size of an Ascend server."""
    per_node = next(size for size in range(NPUS_PER_NODE, 0, -1) if total.value % size == 0)
    nodes = total.value // per_node
    why = "" if nodes == 1 else f"{total.value} devices as {nodes} nodes of {per_node}"
    t.set(total, "trainer.n_gpus_per_node", per_node, why)
    t.set(total, "trainer.nnodes", nodes, why) if nodes > 1 else None


def _sizes(t: Translator, role: Role) -> None:
    section, sharded = role.section, is_sharded(t)
    has_lora = section is t.actor and section.value("lora_target_modules")
    # Placement that does not change results: FSDP shards the same weights over the same devices.
    replaced = {TENSOR_SIZE: _LORA_WHY} if has_lora else {}
    flags = {"sequence_parallel": "sequence_parallel", "use_distributed_optimizer": "use_distributed_optimizer"}
    for name, ours in {**{name: name for name in _SIZES}, **flags}.items():
        if not sharded:
            t.inert(section[name], _SINGLE_RANK)
            continue
        for key in role.parallel:
            if name in replaced and (section.value(name) or 1) > 1:
                t.set(section[name], f"{key}.megatron.{ours}", 1, replaced[name])
            else:
                t.set(section[name], f"{key}.megatron.{ours}")
    for name in (*_LAYOUT, *_FLAGS):
        setting = section[name]
        if name in (_CHUNK, _NO_OPS) and setting.value and (section.value(_STAGES) or 1) > 1:
            _stages(t, role, setting)
        elif not setting.explicit or not setting.value or not sharded:
            t.inert(setting, _SINGLE_RANK if not sharded else "empty: same as not set")
        else:
            for key in role.parallel:
                t.set(setting, f"{key}.megatron.override_transformer_config.{name}")


def _stages(t: Translator, role: Role, setting: Setting) -> None:
    """Layers per chunk as a number of chunks, and stages with layers that do nothing as numbers of real layers."""
    section, stages = role.section, role.section.value(_STAGES)
    num_layers = section.value("num_layers")
    if not isinstance(num_layers, int) or num_layers % stages:
        t.refuse(setting, f"needs num_layers, a multiple of {_STAGES} = {stages}")
        return
    each = num_layers // stages
    if setting.theirs.endswith(_CHUNK):
        size = setting.value
        if not isinstance(size, int) or size < 1 or each % size:
            t.refuse(setting, f"must divide the {each} layers of a stage")
            return
        for key in role.parallel:
            name = f"{key}.megatron.virtual_pipeline_model_parallel_size"
            t.set(setting, name, each // size, f"{num_layers} layers / {stages} stages / {size} layers of a chunk")
        return
    texts = [text.strip() for text in str(setting.value).split(",")]
    if not all(text.isdecimal() and int(text) < num_layers for text in texts):
        t.refuse(setting, f"must be numbers of layers below num_layers = {num_layers}, separated by commas")
        return
    skipped = [int(text) // each for text in texts]
    counts = [each - skipped.count(stage) for stage in range(stages)]
    why = f"each stage's layers without those that do nothing: {setting.value}"
    for key in role.parallel:
        t.set(setting, f"{key}.megatron.override_transformer_config.num_layer_list", counts, why)


def _recompute(t: Translator, role: Role) -> None:
    section, model = role.section, role.model
    granularity, method, layers = (section[f"recompute_{name}"] for name in ("granularity", "method", "num_layers"))
    if granularity.value not in (None, "full", "selective"):
        t.refuse(granularity, "must be full, selective, or not set")
        return
    why = {
        None: "no recomputation without recompute_granularity",
        "full": "whole layers are recomputed",
        "selective": "only attention is recomputed, which fused attention kernels always do",
    }[granularity.value]
    t.set(granularity, f"{model}.enable_gradient_checkpointing", granularity.value == "full", why)
    for setting, ours in ((method, "method"), (layers, "num_layers")):
        if granularity.value != "full":
            t.inert(setting, "recomputation is off")
        elif setting.value is not None:
            t.set(setting, f"{model}.recompute.{ours}")


def _memory(t: Translator, role: Role) -> None:
    section = role.section
    swap, optimizer = section["swap_attention"], section["swap_optimizer"]
    why = "offloads all activations to CPU memory, not only those of attention"
    t.set(swap, f"{role.model}.enable_activation_offload", why=why if swap.value else "")
    if optimizer.value:
        t.set(optimizer, f"{role.fsdp}.optimizer_offload", why="optimizer state is offloaded to CPU memory")
    else:
        t.inert(optimizer, "optimizer state stays on the device")


def _experts(t: Translator) -> None:
    """The load-balancing loss. Megatron's routing fractions sum to 1, Burnish's to top-k."""
    actor = t.actor
    coeff, balancing = actor["moe_aux_loss_coeff"], actor["moe_router_load_balancing_type"]
    if not actor.value("num_experts"):
        for setting in (coeff, balancing):
            t.inert(setting, "the model has no experts")
        return
    if balancing.value not in _BALANCING:
        t.refuse(balancing, f"unknown load balancing type; write one of {', '.join(_BALANCING)}")
        return
    scope = _BALANCING[balancing.value]
    if scope is None or not coeff.value:
        for setting in (coeff, balancing):
            t.inert(setting, "experts are balanced without an auxiliary loss")
        return
    top_k = actor.value("moe_router_topk")
    explicit_coeff = Setting(coeff.theirs, coeff.value, True)
    arithmetic = f"moe_aux_loss_coeff / moe_router_topk = {coeff.value:g} / {top_k}"
    t.set(explicit_coeff, f"{ACTOR}.aux_loss_coef", coeff.value / top_k, arithmetic)
    t.set(Setting(balancing.theirs, balancing.value, True), f"{ACTOR}.aux_loss_scope", scope)


def _offloads(t: Translator) -> None:
    """Offloading to CPU memory during generation, and parallel sizes of the engine."""
    generate = t.generate
    for name, ours in (("offload_train_param", "param_offload"), ("offload_train_optimizer", "optimizer_offload")):
        t.set(generate[name], f"{ACTOR}.fsdp_config.{ours}")
        if is_sharded(t):
            t.set(generate[name], f"{ACTOR}.megatron.{ours}")
    grad = generate["offload_train_grad"]
    if is_sharded(t):
        t.set(grad, f"{ACTOR}.megatron.grad_offload")
    else:
        t.inert(grad, "gradients are freed after every update")
    if t.rl.value("use_integrated_worker") and uses_reference(t):
        why = "the reference is offloaded to CPU memory while unused"
        t.set_implicit(t.rl["use_integrated_worker"], f"{REF}.fsdp_config.param_offload", True, why)
    size, parallel = generate["infer_expert_parallel_size"], generate["enable_expert_parallel"]
    tensor = generate["infer_tensor_parallel_size"]
    t.set(tensor, f"{ROLLOUT}.tensor_model_parallel_size")
    if parallel.value:
        product = size.value * tensor.value
        t.set(size, f"{ROLLOUT}.data_parallel_size", why="attention replicas within an engine")
        arithmetic = f"expert parallel x tensor parallel = {size.value} x {tensor.value}"
        t.set(size, f"{ROLLOUT}.expert_parallel_size", product, arithmetic)
        t.inert(parallel, "infer_expert_parallel_size sets the size")
    else:
        t.inert(size, "enable_expert_parallel is off")
        t.inert(parallel, "every engine replica holds all experts")
    pipeline = generate["infer_pipeline_parallel_size"]
    if (pipeline.value or 1) > 1:
        t.refuse(pipeline, "MindSpeed RL's engine does not support pipeline parallelism: write 1")
    else:
        t.inert(pipeline, "one pipeline stage")
