"""How models lie on devices: parallel sizes, recomputing, offloading, experts. None of it changes a result but one."""

from __future__ import annotations

import math

from burnish.dialects.mindspeed.reading import Reading, Setting
from burnish.dialects.mindspeed.roles import ACTOR, REF, ROLLOUT, Role, reads_reference, trained, uses_megatron

TENSOR_SIZE = "tensor_model_parallel_size"
_SIZES = (
    TENSOR_SIZE,
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "context_parallel_size",
)
_ONE_COPY = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
# Further words on the layout, of which a run says why they have no effect.
_LAYOUT = ("context_parallel_algo", "num_layer_list", "num_layers_per_virtual_pipeline_stage", "noop_layers")
_FLAGS = ("moe_tp_extend_ep",)
_ADAPTED = "adapters are not shared out over tensor ranks: FSDP shards the layers over all ranks, with the same results"
_ALONE = "every model copy lies on one rank"
# Which of Megatron's ways to balance experts is which scope of ours; None has no loss.
_BALANCE = {"aux_loss": "layer", "seq_aux_loss": "sequence", "noaux_tc": None, "none": None, "sinkhorn": None}


def read_layout(reading: Reading) -> None:
    _devices(reading)
    if uses_megatron(reading):
        largest = next(
            role.section[name] for role in trained(reading) for name in _SIZES if (role.section.value(name) or 1) > 1
        )
        reading.put(largest, f"{ACTOR}.strategy", "megatron", "models are spread over ranks as Megatron does it")
    for role in trained(reading):
        _sizes(reading, role)
        _recompute(reading, role)
        _memory(reading, role)
    _experts(reading)
    _offloads(reading)


def _devices(reading: Reading) -> None:
    rl, integrated = reading.rl, reading.rl["use_integrated_worker"]
    actor = rl["actor_resource"]
    count = (actor.value or {}).get("num_npus")
    if isinstance(count, int):
        setting = Setting(f"{actor.theirs}.num_npus", count, actor.given)
        copy = math.prod(reading.actor.value(name) or 1 for name in _ONE_COPY)
        if count % copy:
            why = f"one copy of the model takes tensor x pipeline x context parallel = {copy} devices"
            reading.refuse(setting, f"{why}: write a multiple of it, as MindSpeed RL says too")
        else:
            why = "all devices, as if of one machine: trainer.nnodes says how many there are"
            reading.put(setting, "trainer.n_gpus_per_node", why=why)
    reading.read.add(actor.theirs)
    for name in (actor.value or {}).keys() - {"num_npus"}:
        known = "a resource says num_npus and nothing else"
        reading.refuse(Setting(f"{actor.theirs}.{name}", actor.value[name], True), known)
    if integrated.value:
        reading.inert(integrated, "policy, reference and engine share devices, as here")
        for name, who in (("reference_resource", "the reference"), ("reward_resource", "a reward model")):
            if rl.value(name) is not None:
                reading.refuse(rl[name], f"{who} has no devices of its own with use_integrated_worker: leave it out")
    else:
        reading.put(integrated, "actor_rollout_ref.hybrid_engine", False, "engine and policy on devices of their own")
        for name in ("reference_resource", "reward_resource"):
            reading.inert(rl[name], "where a model lies does not change what it computes")
    reading.inert(rl["critic_resource"], "the critic shares the policy's devices; that changes no result")
    if rl.value("vit_resource") is not None:
        reading.pend(rl["vit_resource"], "waits for vision")


def _sizes(reading: Reading, role: Role) -> None:
    section, spread = role.section, uses_megatron(reading)
    adapted = section is reading.actor and section.value("lora_target_modules")
    instead = {TENSOR_SIZE: 1} if adapted and (section.value(TENSOR_SIZE) or 1) > 1 else {}
    flags = {"sequence_parallel": "sequence_parallel", "use_distributed_optimizer": "use_distributed_optimizer"}
    for name, ours in {**{name: name for name in _SIZES}, **flags}.items():
        if not spread:
            reading.inert(section[name], _ALONE)
            continue
        for where in role.parallel:
            if name in instead:
                reading.put(section[name], f"{where}.megatron.{ours}", instead[name], _ADAPTED)
            else:
                reading.put(section[name], f"{where}.megatron.{ours}")
    for name in (*_LAYOUT, *_FLAGS):
        setting = section[name]
        if not setting.given or not setting.value or not spread:
            reading.inert(setting, _ALONE if not spread else "nothing to lay out")
        else:
            for where in role.parallel:
                reading.put(setting, f"{where}.megatron.override_transformer_config.{name}")


def _recompute(reading: Reading, role: Role) -> None:
    section, model = role.section, role.model
    granularity, method, layers = (section[f"recompute_{name}"] for name in ("granularity", "method", "num_layers"))
    if granularity.value not in (None, "full", "selective"):
        reading.refuse(granularity, "no such granularity; write full, selective, or leave it out")
        return
    why = {
        None: "nothing is recomputed where recompute_granularity is missing",
        "full": "whole layers are recomputed",
        "selective": "only the attention product is recomputed, which its kernels do in any case",
    }[granularity.value]
    reading.put(granularity, f"{model}.enable_gradient_checkpointing", granularity.value == "full", why)
    for setting, ours in ((method, "method"), (layers, "num_layers")):
        if granularity.value != "full":
            reading.inert(setting, "nothing is recomputed")
        elif setting.value is not None:
            reading.put(setting, f"{model}.recompute.{ours}")
    stages = section.value("pipeline_model_parallel_size") or 1
    if granularity.value == "full" and method.value == "block" and layers.value and stages > 1:
        first = f"the first {layers.value} of each of {stages} pipeline stages"
        reading.put(layers, f"{model}.recompute.num_layers", layers.value * stages, f"{first}: memory, not results")


def _memory(reading: Reading, role: Role) -> None:
    section = role.section
    swap, optimizer = section["swap_attention"], section["swap_optimizer"]
    why = "activations rest in CPU memory: all of them, not the attention's alone"
    reading.put(swap, f"{role.model}.enable_activation_offload", why=why if swap.value else "")
    if optimizer.value:
        reading.put(optimizer, f"{role.fsdp}.optimizer_offload", why="the optimizer's state rests in CPU memory")
    else:
        reading.inert(optimizer, "the optimizer's state stays on the device")


def _experts(reading: Reading) -> None:
    """The loss that balances a mixture's experts: of each layer there, with shares that sum to 1 instead of k."""
    actor = reading.actor
    coeff, kind = actor["moe_aux_loss_coeff"], actor["moe_router_load_balancing_type"]
    if not actor.value("num_experts"):
        for setting in (coeff, kind):
            reading.inert(setting, "the model library says nothing of experts")
        return
    if kind.value not in _BALANCE:
        reading.refuse(kind, f"no such way to balance experts here; write one of {', '.join(_BALANCE)}")
        return
    scope = _BALANCE[kind.value]
    if scope is None or not coeff.value:
        for setting in (coeff, kind):
            reading.inert(setting, "experts are balanced without a loss")
        return
    chosen = actor.value("moe_router_topk")
    written = Setting(coeff.theirs, coeff.value, True)
    arithmetic = f"moe_aux_loss_coeff / moe_router_topk = {coeff.value:g} / {chosen}"
    reading.put(written, f"{ACTOR}.aux_loss_coef", coeff.value / chosen, arithmetic)
    reading.put(Setting(kind.theirs, kind.value, True), f"{ACTOR}.aux_loss_scope", scope)


def _offloads(reading: Reading) -> None:
    """What rests in CPU memory while the engine generates; and the reference, while it does not read."""
    generate = reading.generate
    for name, ours in (("offload_train_param", "param_offload"), ("offload_train_optimizer", "optimizer_offload")):
        reading.put(generate[name], f"{ACTOR}.fsdp_config.{ours}")
        if uses_megatron(reading):
            reading.put(generate[name], f"{ACTOR}.megatron.{ours}")
    grad = generate["offload_train_grad"]
    if uses_megatron(reading):
        reading.put(grad, f"{ACTOR}.megatron.grad_offload")
    else:
        reading.inert(grad, "gradients are freed after every update")
    if reading.rl.value("use_integrated_worker") and reads_reference(reading):
        why = "the reference rests in CPU memory while it does not read"
        reading.also(reading.rl["use_integrated_worker"], f"{REF}.fsdp_config.param_offload", True, why)
    size, parallel = generate["infer_expert_parallel_size"], generate["enable_expert_parallel"]
    tensor = generate["infer_tensor_parallel_size"]
    reading.put(tensor, f"{ROLLOUT}.tensor_model_parallel_size")
    if parallel.value:
        product = size.value * tensor.value
        reading.put(size, f"{ROLLOUT}.data_parallel_size", why="copies of the attention in one engine")
        arithmetic = f"expert parallel x tensor parallel = {size.value} x {tensor.value}"
        reading.put(size, f"{ROLLOUT}.expert_parallel_size", product, arithmetic)
        reading.inert(parallel, "infer_expert_parallel_size says how far")
    else:
        reading.inert(size, "enable_expert_parallel is off")
        reading.inert(parallel, "every engine copy holds all experts")
    pipeline = generate["infer_pipeline_parallel_size"]
    if (pipeline.value or 1) > 1:
        reading.refuse(pipeline, "MindSpeed RL's engine has no pipeline stages: write 1")
    else:
        reading.inert(pipeline, "one pipeline stage")
