"""Which devices hold what: roles, engines, colocation, asynchronous training."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import (
    ROLLOUT,
    has_critic,
    has_reference,
    has_reward_model,
    is_remote,
)
from burnish.dialects.openrlhf.writing import Row, Writing

ENGINE_ROWS = (
    Row("vllm_tensor_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"),
    Row("vllm_gpu_memory_utilization", f"{ROLLOUT}.gpu_memory_utilization"),
    Row("enforce_eager", f"{ROLLOUT}.enforce_eager"),
    Row("enable_prefix_caching", f"{ROLLOUT}.enable_prefix_caching"),
)
TRANSPORTS = ("nccl", "gloo")
SIZES = ("num_nodes", "num_gpus_per_node")


def write(w: Writing) -> None:
    w.put("actor_num_nodes", "trainer.nnodes")
    w.put("actor_num_gpus_per_node", "trainer.n_gpus_per_node")
    _other_roles(w)
    _engines(w)
    _asynchronous(w)
    _transport(w)
    w.inert("vllm_sync_with_ray", "weights reach the engine without Ray's collectives")
    w.inert("rollout_tasks_per_gpu", "the engine takes any number of requests")


def gpus(w: Writing, role: str) -> int:
    return w.get(f"{role}_num_nodes") * w.get(f"{role}_num_gpus_per_node")


def colocated(w: Writing) -> bool:
    """Do engine and policy take turns on the same GPUs? Asynchronous training never does that."""
    return w.get("colocate_all_models") and not w.get("async_train")


def _other_roles(w: Writing) -> None:
    exists = {"ref": has_reference(w), "critic": has_critic(w), "reward": not is_remote(w)}
    beside = {"ref": "colocate_actor_ref", "critic": "colocate_critic_reward", "reward": "colocate_critic_reward"}
    for role, there in exists.items():
        sizes = [f"{role}_{size}" for size in SIZES]
        if not there:
            why = "there is no such model in this run"
        elif role == "reward" and has_reward_model(w) and not w.get("colocate_all_models"):
            _reward_pool(w)
            continue
        else:
            why = "it shares the policy's devices; that changes no result"
        for name in sizes:
            w.inert(name, why)
        flag = "colocate_all_models" if w.get("colocate_all_models") else beside[role]
        if role == "ref" and there and w.get(flag) and gpus(w, "ref") != gpus(w, "actor"):
            _unequal(w, "ref_num_gpus_per_node", flag, "actor_num_gpus_per_node")
    if w.get("colocate_critic_reward") and has_critic(w) and gpus(w, "critic") != gpus(w, "reward"):
        _unequal(w, "critic_num_gpus_per_node", "colocate_critic_reward", "reward_num_gpus_per_node")
    shares = colocated(w) or not w.get("vllm_num_engines")
    w.put("colocate_all_models", "actor_rollout_ref.hybrid_engine", shares, _where(w))
    w.inert("colocate_actor_ref", "the reference always shares the policy's devices")
    apart = has_reward_model(w) and not w.get("colocate_all_models")
    own = f"; the reward model has {w.name('reward_num_gpus_per_node')} of its own" if apart else ""
    w.inert("colocate_critic_reward", f"the critic always shares the policy's devices{own}")


def _where(w: Writing) -> str:
    if not w.get("vllm_num_engines"):
        return "the built-in engine is in the policy's process"
    if w.get("colocate_all_models") and w.get("async_train"):
        return f"with {w.name('async_train')} the engines have GPUs of their own"
    return "engine and policy take turns" if w.get("colocate_all_models") else "the engines have GPUs of their own"


def _unequal(w: Writing, name: str, flag: str, other: str) -> None:
    w.refuse(name, f"with {w.name(flag)} it must be as many as {w.name(other)} ({w.get(other)})")


def _reward_pool(w: Writing) -> None:
    w.put("reward_num_nodes", "reward_model.nnodes")
    w.put("reward_num_gpus_per_node", "reward_model.n_gpus_per_node")
    w.itself("reward_model.enable_resource_pool", True, f"without {w.name('colocate_all_models')} it has its own GPUs")


def _engines(w: Writing) -> None:
    count, parallel = w.get("vllm_num_engines") or 0, w.get("vllm_tensor_parallel_size")
    chosen = [row for row in ENGINE_ROWS if count or w.given(row.flag)]  # vLLM's own defaults are for vLLM
    w.rows(chosen)
    _sleep(w, count)
    if count == 0:
        w.put("vllm_num_engines", f"{ROLLOUT}.name", "builtin", "without vLLM the built-in engine generates")
        if w.get("packing_samples") and w.given("pretrain"):
            w.refuse("packing_samples", f"theirs packs only with engines: add {w.name('vllm_num_engines')} 1")
        return
    total = count * parallel
    sum_ = f"engines x tensor parallel: {count} x {parallel} = {total} GPUs"
    w.put("vllm_num_engines", f"{ROLLOUT}.name", "vllm", sum_)
    if not colocated(w):
        w.put("vllm_num_engines", "rollout.n_gpus_per_node", total, f"{sum_} of the engines' own")
        w.put("vllm_num_engines", "rollout.nnodes", 1, sum_)
    elif total != gpus(w, "actor"):
        why = f"{sum_}, and with {w.name('colocate_all_models')} it must be the policy's {gpus(w, 'actor')}"
        w.refuse("vllm_num_engines", why)


def _transport(w: Writing) -> None:
    """How weights reach engines; both ways take them to the same place."""
    asked = w.get("vllm_sync_backend")
    if asked not in TRANSPORTS:
        w.refuse("vllm_sync_backend", f"must be {' or '.join(TRANSPORTS)}")
    elif colocated(w) or not w.get("vllm_num_engines"):
        w.inert("vllm_sync_backend", "the engine shares the policy's process: weights are copied, not sent")
    elif w.given("vllm_sync_backend"):
        w.put("vllm_sync_backend", f"{ROLLOUT}.checkpoint_engine.backend", why="to engines on GPUs of their own")
    else:
        w.inert("vllm_sync_backend", "the same between GPUs")


def _sleep(w: Writing, engines: int) -> None:
    if w.get("vllm_enable_sleep") and w.get("async_train"):
        w.refuse("vllm_enable_sleep", f"does not go with {w.name('async_train')}: there the engine never rests")
    elif w.get("vllm_enable_sleep") and not w.get("colocate_all_models"):
        w.inert("vllm_enable_sleep", f"theirs turns it off without {w.name('colocate_all_models')}")
    elif engines or w.get("vllm_enable_sleep"):
        w.put("vllm_enable_sleep", f"{ROLLOUT}.free_cache_engine")


def _asynchronous(w: Writing) -> None:
    queue, prompts = w.get("async_queue_size"), w.get("vllm_generate_batch_size")
    if not w.get("async_train"):
        w.inert("async_train", "off")
        w.inert("async_queue_size", f"only {w.name('async_train')} has a queue")
        if w.get("partial_rollout"):
            w.refuse("partial_rollout", f"needs {w.name('async_train')}")
        w.inert("vllm_generate_batch_size", f"only {w.name('async_train')} generates ahead")
        return
    if queue <= 0:
        return w.refuse("async_queue_size", "must be at least 1")
    if queue == 1 and not w.get("partial_rollout"):
        halt = "the next iteration is generated while this one is learnt; weights travel when both have ended"
        w.put("async_train", "async_training.mode", "one_step_off", halt)
        w.inert("async_queue_size", "a queue of one is one step off")
        w.inert("partial_rollout", "off")
    else:
        why = f"training may lag {queue} iteration(s) behind generation"
        w.put("async_train", "async_training.mode", "queue", "iterations are generated ahead")
        w.put("async_train", "async_training.trigger_parameter_sync_step", 1, "new weights after every iteration")
        w.put("async_queue_size", "async_training.queue_size")
        w.put("async_queue_size", "async_training.staleness_threshold", float(queue), why)
        w.put("partial_rollout", "async_training.partial_rollout")
    w.put("vllm_generate_batch_size", "data.gen_batch_size", prompts) if prompts else None
    return None
