"""verl's own config files (0.5), which commands name without shipping them: their differences from our defaults."""

from __future__ import annotations

from typing import Any

_MEGATRON: dict[str, Any] = {
    "actor_rollout_ref": {
        "model": {"enable_gradient_checkpointing": False},
        "actor": {"strategy": "megatron"},
        "rollout": {
            "load_format": "dummy_megatron",
            "tensor_model_parallel_size": 1,
            "enable_chunked_prefill": False,
        },
    },
    "critic": {
        "model": {"enable_gradient_checkpointing": False},
        "optim": {"lr": 1e-6},
    },
}
_DAPO: dict[str, Any] = {
    "reward_model": {"reward_manager": "dapo", "overlong_buffer": {"len": 0, "penalty_factor": 0.0}},
    "trainer": {"project_name": "verl-dapo"},
}
_ENGINE_POOL: dict[str, Any] = {"rollout": {"nnodes": 1, "n_gpus_per_node": 8}}
_ONE_STEP_OFF: dict[str, Any] = {"async_training": {"mode": "one_step_off"}}
_FULLY_ASYNC: dict[str, Any] = {
    "rollout": {"total_rollout_steps": 100, "total_epochs": 10, "test_freq": 1},
    "data": {"gen_batch_size": 1},
    "async_training": {"mode": "queue", "use_rollout_log_probs": True},
}


def _merge(*contents: dict[str, Any]) -> dict[str, Any]:
    """Merge contents; later ones win."""
    merged: dict[str, Any] = {}
    for content in contents:
        for name, value in content.items():
            inside = isinstance(value, dict) and isinstance(merged.get(name), dict)
            merged[name] = _merge(merged[name], value) if inside else value
    return merged


def _multi_turn(longest: int, **turns: Any) -> dict[str, Any]:
    """verl's multi-turn examples on SGLang."""
    return {
        "data": {
            "max_prompt_length": longest,
            "max_response_length": longest,
            "train_batch_size": 256,
            "return_raw_chat": True,
        },
        "actor_rollout_ref": {"rollout": {"name": "sglang", "multi_turn": {"enable": True, **turns}}},
    }


VERL_FILES: dict[str, dict[str, Any]] = {
    "ppo_trainer": {},
    "ppo_megatron_trainer": _MEGATRON,
    "dapo_trainer": _DAPO,
    "dapo_megatron_trainer": _merge(_MEGATRON, _DAPO),
    "one_step_off_ppo_trainer": _merge(_ENGINE_POOL, _ONE_STEP_OFF),
    "one_step_off_ppo_megatron_trainer": _merge(
        _MEGATRON, _ENGINE_POOL, _ONE_STEP_OFF, {"actor_rollout_ref": {"rollout": {"free_cache_engine": False}}}
    ),
    "fully_async_ppo_trainer": _merge(_ENGINE_POOL, _FULLY_ASYNC),
    "fully_async_ppo_megatron_trainer": _merge(_MEGATRON, _ENGINE_POOL, _FULLY_ASYNC),
    "fully_async_dapo_trainer": _merge(_DAPO, _ENGINE_POOL, _FULLY_ASYNC),  # only named by verl's scripts
    "transfer_queue_ppo_trainer": {},
    "transfer_queue_ppo_megatron_trainer": _MEGATRON,
    "gsm8k_multiturn_grpo": _multi_turn(1024, max_assistant_turns=5),
    "gsm8k_multiturn_grpo_server": _multi_turn(1024, max_assistant_turns=5),
    "gsm8k_multiturn_grpo_w_interaction": _multi_turn(1024, max_user_turns=5),
    "gsm8k_multiturn_sf_grpo": _multi_turn(
        1024, max_assistant_turns=5
    ),  # only named by verl's scripts; assumed equal to gsm8k_multiturn_grpo
    "gsm8k_multiturn_megatron_grpo": _merge(_MEGATRON, _multi_turn(1024, max_assistant_turns=5)),
    "geo3k_multiturn_grpo": _multi_turn(2048, max_assistant_turns=5),
    "geo3k_multiturn_megatron_grpo": _merge(_MEGATRON, _multi_turn(2048, max_assistant_turns=5)),
    "retool_multiturn_grpo": _multi_turn(1024, max_assistant_turns=5),
    "search_multiturn_grpo": _merge(_multi_turn(1024, max_assistant_turns=2), {"data": {"shuffle": False}}),
    "sft_trainer": {},
    "sft_trainer_engine": {
        "data": {"use_dynamic_bsz": True, "val_files": [], "multiturn": {"enable": True}},
        "optim": {"lr": 1e-3, "betas": [0.9, 0.999], "warmup_steps_ratio": 0.0, "lr_scheduler": "constant"},
        "model": {"strategy": "fsdp"},
    },
    "generation": {},
    "evaluation": {},
}
