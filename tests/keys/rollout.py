"""Rows of actor_rollout_ref.rollout.*"""

from . import observe as see
from . import teaching
from .row import Row

ROLLOUT = "actor_rollout_ref.rollout"
VAL = f"{ROLLOUT}.val_kwargs"

SAMPLED = (f"{VAL}.do_sample=true", f"{VAL}.temperature=1")
ONE_BY_ONE = (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=1",)

SPECULATIVE = f"{ROLLOUT}.speculative"
DRAFTS = f"{SPECULATIVE}.enable=true"
LONG = (f"{ROLLOUT}.ignore_eos=true", "data.max_response_length=16")

ROWS = [
    Row(f"{ROLLOUT}.name", "hf", see.engine_class, expected="HfEngine"),
    Row(f"{ROLLOUT}.temperature", "3", see.responses),
    Row(f"{ROLLOUT}.top_k", "1", see.responses),
    Row(f"{ROLLOUT}.top_p", "0.1", see.responses),
    Row(f"{ROLLOUT}.do_sample", "false", see.responses),
    Row(f"{ROLLOUT}.n", "3", see.num_responses, expected=12),
    Row(f"{ROLLOUT}.ignore_eos", "true", see.response_lengths, ("data.max_response_length=16",), expected=[16] * 8),
    Row(f"{ROLLOUT}.prompt_length", "300", see.cache_blocks, expected=2 * 17),
    Row(f"{ROLLOUT}.response_length", "2", see.longest_response, expected=2),
    Row(f"{ROLLOUT}.dtype", "float16", see.engine_dtype, expected="torch.float16"),
    Row(f"{ROLLOUT}.gpu_memory_utilization", "0", see.cache_blocks, expected=2),
    Row(f"{ROLLOUT}.free_cache_engine", "false", see.engine_sleeps, (f"{ROLLOUT}.disable_log_stats=false",), 0.0),
    Row(f"{ROLLOUT}.max_model_len", "600", see.cache_blocks, expected=3 * 17),
    Row(f"{ROLLOUT}.max_num_seqs", "1", see.decode_steps),
    Row(f"{ROLLOUT}.max_num_batched_tokens", "1", see.prefills, expected=4),
    Row(f"{ROLLOUT}.disable_log_stats", "false", see.engine_metrics),
    Row(f"{ROLLOUT}.invariant", "false", see.scored_rows, expected=5),
    Row(f"{SPECULATIVE}.enable", "true", see.drafts, LONG, expected=(14, 8)),
    Row(f"{SPECULATIVE}.num_speculative_tokens", "2", see.drafts, (*LONG, DRAFTS), expected=(2, 8)),
    Row(f"{SPECULATIVE}.max_num_seqs", "7", see.drafts, (*LONG, DRAFTS), expected=(0, 0)),
    Row(
        f"{ROLLOUT}.enforce_eager",
        "false",
        see.padded_batches,
        expected=(1, 2, 4, 4, 8, 8, 8, 8, *[16] * 8),
    ),
    Row(
        f"{ROLLOUT}.cudagraph_capture_sizes",
        "[4,12]",
        see.padded_batches,
        (f"{ROLLOUT}.enforce_eager=false",),
        expected=(*[4] * 4, *[12] * 8, 13, 14, 15, 16),
    ),
    # 8 steps, in which three samples do not read the full block of their prompt
    Row(f"{ROLLOUT}.engine_kwargs.builtin", "{shared_prefix:true}", see.shared_kv_tokens, expected=8 * 3 * 64),
    Row(f"{ROLLOUT}.log_prob_micro_batch_size", "4", teaching.num_read("policy"), expected=2),
    Row(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "2", teaching.num_read("policy"), expected=4),
    Row(f"{ROLLOUT}.log_prob_use_dynamic_bsz", "true", teaching.num_read("policy"), ONE_BY_ONE, expected=1),
    Row(f"{ROLLOUT}.log_prob_max_token_len_per_gpu", "1", teaching.num_read("policy"), expected=8),
    Row(f"{VAL}.temperature", "3", see.validation_responses, SAMPLED),
    Row(f"{VAL}.top_k", "1", see.validation_responses, SAMPLED),
    Row(f"{VAL}.top_p", "0.1", see.validation_responses, SAMPLED),
    Row(f"{VAL}.n", "3", see.num_validation_responses, expected=12),
    Row(f"{VAL}.do_sample", "true", see.validation_responses, SAMPLED[1:]),
]
