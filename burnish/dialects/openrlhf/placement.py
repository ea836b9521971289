"""Placement of models and engines on devices, colocation, asynchronous training."""

from __future__ import annotations

from burnish.dialects.openrlhf.roles import (
    ROLLOUT,
    has_critic,
    has_custom_reward,
    has_reference,
    has_reward_model,
)
from burnish.dialects.openrlhf.translator import KeyMapping, Translator

ENGINE_MAPPINGS = (
    KeyMapping("vllm_tensor_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"),
    KeyMapping("vllm_gpu_memory_utilization", f"{ROLLOUT}.gpu_memory_utilization"),
    KeyMapping("enforce_eager", f"{ROLLOUT}.enforce_eager"),
    KeyMapping("enable_prefix_caching", f"{ROLLOUT}.enable_prefix_caching"),
)
SYNC_BACKENDS = ("nccl", "gloo")
SIZES = ("num_nodes", "num_gpus_per_node")


def translate(t: Translator) -> None:
    t.set("actor_num_nodes", "trainer.nnodes")
    t.set("actor_num_gpus_per_node", "trainer.n_gpus_per_node")
    _other_roles(t)
    _engines(t)
    _asynchronous(t)
    _sync_backend(t)
    t.inert("vllm_sync_with_ray", "weight sync does not use Ray's collectives")
    t.inert("rollout_tasks_per_gpu", "the engine accepts any number of requests")


def num_gpus(t: Translator, role: str) -> int:
    return t.get(f"{role}_num_nodes") * t.get(f"{role}_num_gpus_per_node")


def is_colocated(t: Translator) -> bool:
    """Whether engine and policy share GPUs; never in asynchronous training."""
    return t.get("colocate_all_models") and not t.get("async_train")


def _other_roles(t: Translator) -> None:
    exists = {"ref": has_reference(t), "critic": has_critic(t), "reward": not has_custom_reward(t)}
    colocation_flags = {
        "ref": "colocate_actor_ref",
        "critic": "colocate_critic_reward",
        "reward": "colocate_critic_reward",
    }
    for role, is_present in exists.items():
        sizes = [f"{role}_{size}" for size in SIZES]
        if not is_present:
            why = "this run has no such model"
        elif role == "reward" and has_reward_model(t) and not t.get("colocate_all_models"):
            _reward_pool(t)
            continue
        else:
            why = "shares the policy's devices; results are the same"
        for name in sizes:
            t.inert(name, why)
        flag = "colocate_all_models" if t.get("colocate_all_models") else colocation_flags[role]
        if role == "ref" and is_present and t.get(flag) and num_gpus(t, "ref") != num_gpus(t, "actor"):
            _refuse_unequal(t, "ref_num_gpus_per_node", flag, "actor_num_gpus_per_node")
    if t.get("colocate_critic_reward") and has_critic(t) and num_gpus(t, "critic") != num_gpus(t, "reward"):
        _refuse_unequal(t, "critic_num_gpus_per_node", "colocate_critic_reward", "reward_num_gpus_per_node")
    shared = is_colocated(t) or not t.get("vllm_num_engines")
    t.set("colocate_all_models", "actor_rollout_ref.hybrid_engine", shared, _explain_engine_devices(t))
    t.inert("colocate_actor_ref", "the reference always shares the policy's devices")
    has_reward_pool = has_reward_model(t) and not t.get("colocate_all_models")
    note = f"; the reward model has separate GPUs ({t.spelling('reward_num_gpus_per_node')})" if has_reward_pool else ""
    t.inert("colocate_critic_reward", f"the critic always shares the policy's devices{note}")


def _explain_engine_devices(t: Translator) -> str:
    if not t.get("vllm_num_engines"):
        return "the built-in engine runs in the policy's process"
    if t.get("colocate_all_models") and t.get("async_train"):
        return f"with {t.spelling('async_train')} the engines have separate GPUs"
    return "engine and policy share GPUs" if t.get("colocate_all_models") else "the engines have separate GPUs"


def _refuse_unequal(t: Translator, name: str, flag: str, other: str) -> None:
    t.refuse(name, f"with {t.spelling(flag)} it must equal {t.spelling(other)} ({t.get(other)})")


def _reward_pool(t: Translator) -> None:
    t.set("reward_num_nodes", "reward_model.nnodes")
    t.set("reward_num_gpus_per_node", "reward_model.n_gpus_per_node")
    t.set_implicit(
        "reward_model.enable_resource_pool", True, f"without {t.spelling('colocate_all_models')} it has separate GPUs"
    )


def _engines(t: Translator) -> None:
    count, parallel = t.get("vllm_num_engines") or 0, t.get("vllm_tensor_parallel_size")
    # Defaults of vLLM flags apply to vLLM only.
    t.set_all(mapping for mapping in ENGINE_MAPPINGS if count or t.has(mapping.flag))
    _sleep(t, count)
    if count == 0:
        t.set("vllm_num_engines", f"{ROLLOUT}.name", "builtin", "without vLLM, the built-in engine is used")
        if t.get("packing_samples") and t.has("pretrain"):
            t.refuse(
                "packing_samples", f"OpenRLHF packs only with vLLM engines: add {t.spelling('vllm_num_engines')} 1"
            )
        return
    total = count * parallel
    formula = f"engines x tensor parallel: {count} x {parallel} = {total} GPUs"
    t.set("vllm_num_engines", f"{ROLLOUT}.name", "vllm", formula)
    if not is_colocated(t):
        t.set("vllm_num_engines", "rollout.n_gpus_per_node", total, f"{formula}, separate from the policy's")
        t.set("vllm_num_engines", "rollout.nnodes", 1, formula)
    elif total != num_gpus(t, "actor"):
        why = f"{formula}; with {t.spelling('colocate_all_models')} it must equal the policy's {num_gpus(t, 'actor')}"
        t.refuse("vllm_num_engines", why)


def _sync_backend(t: Translator) -> None:
    """The weight sync backend; both have the same result."""
    backend = t.get("vllm_sync_backend")
    if backend not in SYNC_BACKENDS:
        t.refuse("vllm_sync_backend", f"must be {' or '.join(SYNC_BACKENDS)}")
    elif is_colocated(t) or not t.get("vllm_num_engines"):
        t.inert("vllm_sync_backend", "engine and policy share a process: weights are copied locally")
    elif t.has("vllm_sync_backend"):
        t.set(
            "vllm_sync_backend", f"{ROLLOUT}.checkpoint_engine.backend", why="weight sync to engines on separate GPUs"
        )
    else:
        t.inert("vllm_sync_backend", "the default between GPUs")


def _sleep(t: Translator, engines: int) -> None:
    if t.get("vllm_enable_sleep") and t.get("async_train"):
        t.refuse("vllm_enable_sleep", f"not possible with {t.spelling('async_train')}, where the engine never sleeps")
    elif t.get("vllm_enable_sleep") and not t.get("colocate_all_models"):
        t.inert("vllm_enable_sleep", f"OpenRLHF ignores it without {t.spelling('colocate_all_models')}")
    elif engines or t.get("vllm_enable_sleep"):
        t.set("vllm_enable_sleep", f"{ROLLOUT}.free_cache_engine")


def _asynchronous(t: Translator) -> None:
    queue, prompts = t.get("async_queue_size"), t.get("vllm_generate_batch_size")
    if not t.get("async_train"):
        t.inert("async_train", "off")
        t.inert("async_queue_size", f"only {t.spelling('async_train')} uses a queue")
        if t.get("partial_rollout"):
            t.refuse("partial_rollout", f"requires {t.spelling('async_train')}")
        t.inert("vllm_generate_batch_size", f"only {t.spelling('async_train')} generates ahead")
        return
    if queue <= 0:
        return t.refuse("async_queue_size", "must be at least 1")
    if queue == 1 and not t.get("partial_rollout"):
        why = "generates the next iteration while training on this one, then syncs weights"
        t.set("async_train", "async_training.mode", "one_step_off", why)
        t.inert("async_queue_size", "a queue of one is the one_step_off mode")
        t.inert("partial_rollout", "off")
    else:
        why = f"training may lag {queue} iteration(s) behind generation"
        t.set("async_train", "async_training.mode", "queue", "generates iterations ahead of training")
        t.set("async_train", "async_training.trigger_parameter_sync_step", 1, "weight sync after every iteration")
        t.set("async_queue_size", "async_training.queue_size")
        t.set("async_queue_size", "async_training.staleness_threshold", float(queue), why)
        t.set("partial_rollout", "async_training.partial_rollout")
    t.set("vllm_generate_batch_size", "data.gen_batch_size", prompts) if prompts else None
    return None
