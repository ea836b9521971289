"""Keys of MindSpeed RL that can have no effect here, and why."""

from __future__ import annotations

from burnish.dialects.mindspeed.sections import DISPATCH, SHAPE

_KERNELS = "a choice of kernels on Ascend; results do not depend on it"
_TRAFFIC = "a choice of communication on Ascend; results do not depend on it"
_PADDING = "nothing is ever padded: rows are packed, each with its own positions and causal mask"
_DEAD = "MindSpeed RL accepts this key and reads it nowhere"
_DPO = "only DPO reads it"
_DOCK = "how many experiences TransferDock hands over at once; batches walk whole here"
_RAY = "a setting of its Ray workers; results do not depend on it"
_NO_VALIDATION = "RL stages of MindSpeed RL never validate; data.val_files and trainer.test_freq do it here"

_REASONS: dict[str, dict[str, tuple[str, ...]]] = {
    "megatron": {
        "the architecture comes from config.json at tokenizer_name_or_path": tuple(SHAPE),
        _KERNELS: (
            *("use_mcore_models", "use_flash_attn", "use_fused_rmsnorm", "use_fused_swiglu", "shape_order"),
            *("use_fused_rotary_pos_emb", "no_bias_dropout_fusion", "no_masked_softmax_fusion"),
            *("attention_softmax_in_fp32", "no_gradient_accumulation_fusion", "gemm_gradient_accumulation_fusion"),
            *("moe_grouped_gemm", "use_fused_moe_token_permute_and_unpermute", "npu_deterministic", "lora_fusion"),
            *("use_ascend_coc", "coc_mode", "coc_parallel_num", "coc_fused_kernel"),
        ),
        _TRAFFIC: (
            *("moe_permutation_async_comm", "moe_alltoall_overlap_comm", "moe_token_dispatcher_type"),
            *("distributed_backend", "use_tp_pp_dp_mapping", "ddp_bucket_size", "overlap_grad_reduce"),
            *("overlap_param_gather", "use_cp_send_recv_overlap", "use_fused_ring_attention_update"),
        ),
        _PADDING: (
            *("variable_seq_lengths", "no_pad_to_seq_lengths", "pad_to_multiple_of", "reset_position_ids"),
            *("reset_attention_mask", "attention_mask_type", "tokenizer_padding_side"),
        ),
        _DEAD: ("do_sample", "use_kv_cache", "algorithm", "log_interval", "log_throughput", "skip_train"),
        _DPO: ("dpo_loss_type", "ref_model", "refer_model_iter"),
        _NO_VALIDATION: ("eval_iters", "eval_interval"),
        "weights are loaded, not drawn": ("init_method_std",),
        "bfloat16 needs no loss scale": ("initial_loss_scale",),
        "gradients are always summed in float32": ("accumulate_allreduce_grads_in_fp32",),
        "a layout of memory; results do not depend on it": ("reuse_fp32_param", "recompute_activation_function"),
        "an update whose gradient is not finite is skipped and named": ("no_check_for_nan_in_loss_and_grad",),
        "every rank reads and writes the same folder": ("no_shared_storage",),
        "checkpoints are written whole or not at all, and a run goes on from the newest good one": (
            "enable_high_availability",
        ),
        "the tokenizer's own class decides": ("tokenizer_not_use_fast",),
        "the model's own vocabulary decides": ("vocab_extra_ids",),
        "rows are shuffled anew each epoch where data.shuffle is on": ("full_shuffle_instruction_dataset",),
        "packed prompts are templated already": ("prompt_type", "prompt_type_path"),
        "the reading order is data.shuffle's": ("dataloader_type",),
        "prompts are the only kind of data of an RL stage": ("is_instruction_dataset",),
    },
    "rl": {
        _DEAD: ("advantage_whiten", "num_samples_per_step", "verifier_parallel", "verifier_timeout", "tp_split_expert"),
        _DOCK: DISPATCH,
        _RAY: ("runtime_env_path", "num_cpus_for_placement_group"),
        "Ascend's communication buffer, in megabytes": ("hccl_buffersize",),
        "how experiences travel between workers; one process hands them on": (
            *("data_strategy", "transfer_queue_data_shard_num", "transfer_queue_data_shard_port_base"),
            "zmq_communication",
        ),
        "MindSpeed RL copies it to the three sizes before it reads the config, so it changes nothing there:"
        " write ref_, actor_ and update_max_packing_token_size": ("max_packing_token_size",),
        "responses per micro-batch never change a gradient here, and the token budget bounds them": (
            *("dynamic_max_batch_size", "ref_dynamic_max_batch_size", "actor_dynamic_max_batch_size"),
            "update_dynamic_max_batch_size",
        ),
        "there is no reward model beside the rules": ("beta",),
        "the stages of one iteration may overlap, its results do not change; rewards overlap generation here": (
            "blocking",
        ),
        "rows always keep the order of the prompts": ("guarantee_order",),
        "throughput counts the tokens that were there (perf/throughput), neither the longest nor the mean": (
            "log_max_throughput",
        ),
        "the adaptive controller is never updated in MindSpeed RL": ("kl_horizon", "kl_target"),
        "the reference always starts from tokenizer_name_or_path": ("integrated_mode_config",),
    },
    "generate": {
        _KERNELS: ("torchair_graph", "ascend_scheduler_config_enabled"),
        "MindSpeed RL accepts it and never passes it to vLLM": ("num_scheduler_steps",),
        "megatron_training.tokenizer_name_or_path decides": ("tokenizer_name_or_path",),
        "MindSpeed RL computes it itself: devices over infer_tensor_parallel_size": ("data_parallel_size",),
        "expert placement of vLLM-Ascend; results do not depend on it": (
            *("eplb_token_collects", "eplb_token_save_path", "expert_map_path"),
        ),
        "images and videos of a vision model; there is none": (
            *("limit_mm_image_per_prompt", "limit_mm_video_per_prompt"),
        ),
    },
    "sampling": {"the engine always returns the log-probs of its tokens; RL stages do not read these": ("logprobs",)},
}

INERT: dict[str, dict[str, str]] = {
    kind: {key: why for why, keys in reasons.items() for key in keys} for kind, reasons in _REASONS.items()
}
