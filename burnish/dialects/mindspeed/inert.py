"""MindSpeed RL keys without effect in Burnish, with the reasons."""

from __future__ import annotations

from burnish.dialects.mindspeed.schema import ARCHITECTURE, DISPATCH

_KERNELS = "selects Ascend kernels; does not change results"
_COMMUNICATION = "configures communication on Ascend; does not change results"
_PADDING = "sequences are packed without padding, each with its own positions and causal mask"
_UNUSED = "MindSpeed RL accepts this key but never uses it"
_DPO = "only DPO uses it"
_DISPATCH_WHY = "TransferDock dispatch size; Burnish passes on whole batches"
_RAY = "configures MindSpeed RL's Ray workers; does not change results"
_NO_VALIDATION = "MindSpeed RL never validates in RL stages; in Burnish, set data.val_files and trainer.test_freq"

_REASONS: dict[str, dict[str, tuple[str, ...]]] = {
    "megatron": {
        "the architecture comes from config.json at tokenizer_name_or_path": tuple(ARCHITECTURE),
        _KERNELS: (
            *("use_mcore_models", "use_flash_attn", "use_fused_rmsnorm", "use_fused_swiglu", "shape_order"),
            *("use_fused_rotary_pos_emb", "no_bias_dropout_fusion", "no_masked_softmax_fusion"),
            *("attention_softmax_in_fp32", "no_gradient_accumulation_fusion", "gemm_gradient_accumulation_fusion"),
            *("moe_grouped_gemm", "use_fused_moe_token_permute_and_unpermute", "npu_deterministic", "lora_fusion"),
            *("use_ascend_coc", "coc_mode", "coc_parallel_num", "coc_fused_kernel"),
        ),
        _COMMUNICATION: (
            *("moe_permutation_async_comm", "moe_alltoall_overlap_comm", "moe_token_dispatcher_type"),
            *("distributed_backend", "use_tp_pp_dp_mapping", "ddp_bucket_size", "overlap_grad_reduce"),
            *("overlap_param_gather", "use_cp_send_recv_overlap", "use_fused_ring_attention_update"),
        ),
        _PADDING: (
            *("variable_seq_lengths", "no_pad_to_seq_lengths", "pad_to_multiple_of", "reset_position_ids"),
            *("reset_attention_mask", "attention_mask_type", "tokenizer_padding_side"),
        ),
        _UNUSED: ("do_sample", "use_kv_cache", "algorithm", "log_interval", "log_throughput", "skip_train"),
        _DPO: ("dpo_loss_type", "ref_model", "refer_model_iter"),
        _NO_VALIDATION: ("eval_iters", "eval_interval"),
        "weights are loaded, not initialized": ("init_method_std",),
        "bfloat16 needs no loss scaling": ("initial_loss_scale",),
        "gradients are always accumulated in float32": ("accumulate_allreduce_grads_in_fp32",),
        "a memory optimization; does not change results": ("reuse_fp32_param", "recompute_activation_function"),
        "updates with non-finite gradients are always skipped and reported": ("no_check_for_nan_in_loss_and_grad",),
        "all ranks use the same folder": ("no_shared_storage",),
        "checkpoints are atomic, and a run resumes from the newest valid one": ("enable_high_availability",),
        "determined by the tokenizer class": ("tokenizer_not_use_fast",),
        "determined by the model's vocabulary": ("vocab_extra_ids",),
        "data.shuffle reshuffles rows every epoch": ("full_shuffle_instruction_dataset",),
        "packed prompts already contain the template": ("prompt_type", "prompt_type_path"),
        "data.shuffle sets the order of rows": ("dataloader_type",),
        "RL stages use prompts only": ("is_instruction_dataset",),
    },
    "rl": {
        _UNUSED: (
            "advantage_whiten",
            "num_samples_per_step",
            "verifier_parallel",
            "verifier_timeout",
            "tp_split_expert",
        ),
        _DISPATCH_WHY: DISPATCH,
        _RAY: ("runtime_env_path", "num_cpus_for_placement_group", "colocate_all_models"),
        "checks of weights between engine and policy are always on": ("enable_sharding_validate",),
        "actor_config.micro_batch_size sets the micro-batches of updates, which do not change gradients": (
            "update_micro_batch_size",
        ),
        "size of Ascend's communication buffer in MB": ("hccl_buffersize",),
        "configures data transfer between MindSpeed RL's workers": (
            *("data_strategy", "transfer_queue_data_shard_num", "transfer_queue_data_shard_port_base"),
            "zmq_communication",
        ),
        "MindSpeed RL applies it before it reads the config, so it has no effect there either: write"
        " ref_max_packing_token_size, actor_max_packing_token_size and update_max_packing_token_size": (
            "max_packing_token_size",
        ),
        "micro-batch sizes do not change gradients, and the token budget limits them": (
            *("dynamic_max_batch_size", "ref_dynamic_max_batch_size", "actor_dynamic_max_batch_size"),
            "update_dynamic_max_batch_size",
        ),
        "rule functions score without a reward model": ("beta",),
        "overlaps the phases of an iteration without changing results; Burnish overlaps rewards with generation": (
            "blocking",
        ),
        "responses always keep the order of the prompts": ("guarantee_order",),
        "perf/throughput counts actual tokens, not the maximum or mean length": ("log_max_throughput",),
        "MindSpeed RL never updates its adaptive controller": ("kl_horizon", "kl_target"),
    },
    "generate": {
        _KERNELS: ("torchair_graph", "ascend_scheduler_config_enabled"),
        "MindSpeed RL accepts it but does not pass it to vLLM": ("num_scheduler_steps", "micro_batch_size"),
        "megatron_training.tokenizer_name_or_path is used": ("tokenizer_name_or_path",),
        "MindSpeed RL computes it as devices / infer_tensor_parallel_size": ("data_parallel_size",),
        "configures expert placement of vLLM-Ascend; does not change results": (
            *("eplb_token_collects", "eplb_token_save_path", "expert_map_path"),
        ),
    },
    "sampling": {"the engine always returns log-probs of sampled tokens; RL stages do not use these": ("logprobs",)},
}

# Group of sections -> key -> reason.
INERT_KEYS: dict[str, dict[str, str]] = {
    group: {key: why for why, keys in reasons.items() for key in keys} for group, reasons in _REASONS.items()
}
