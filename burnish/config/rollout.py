"""actor_rollout_ref.rollout.*: the engine and how it samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from burnish.config.fields import above, at_least, between, one_of, section, setting
from burnish.config.names import DTYPES, ENGINES, ROLLOUT_MODES
from burnish.config.profiler import ProfilerConfig
from burnish.config.turns import AgentConfig, CheckpointEngineConfig, MultiTurnConfig, PrometheusConfig, TraceConfig

# Values of load_format in verl and vLLM.
LOAD_FORMATS = (
    *("auto", "hf", "safetensors", "dtensor", "megatron", "dummy", "dummy_hf", "dummy_dtensor", "dummy_megatron"),
    *("pt", "npcache", "sharded_state", "gguf", "bitsandbytes", "mistral", "tensorizer", "runai_streamer"),
)


@dataclass
class ValKwargsConfig:
    """Sampling parameters of validation."""

    temperature: float = at_least(0.0, 0)
    """Sampling temperature of validation; 0 is greedy."""

    top_k: int = at_least(-1, -1, off=(None, 0), off_value=-1)
    """Sample among this many most likely tokens in validation; -1, 0 or null disables it."""

    top_p: float = between(1.0, 0, 1)
    """Sample among the most likely tokens up to this cumulative probability in validation; 1 disables it."""

    n: int = at_least(1, 1)
    """Responses per validation prompt."""

    do_sample: bool = False
    """Sample in validation; false decodes greedily, regardless of temperature."""

    min_p: float = between(0.0, 0, 1)
    """Minimum probability of a token relative to the most likely one in validation; 0 disables it."""

    repetition_penalty: float = above(1.0, 0)
    """Repetition penalty on tokens of prompt and response in validation; 1 disables it."""

    presence_penalty: float = between(0.0, -2, 2)
    """Subtracted from the logits of tokens that occur in the response, in validation; 0 disables it."""

    frequency_penalty: float = between(0.0, -2, 2)
    """Subtracted from a token's logit per occurrence in the response, in validation; 0 disables it."""

    seed: int | None = None
    """Sampling seed of validation; null uses the rollout's seed."""


@dataclass
class EngineKwargsConfig:
    """Further arguments of engines."""

    builtin: dict[str, Any] = setting({})
    """Arguments of the built-in engine's decode loop on GPUs: kv_cache_dtype, shared_prefix, few_rows, block_size,
    sync_interval, compiled and triton (docs/engines.md)."""

    vllm: dict[str, Any] = setting({})
    """Arguments passed to vLLM unchanged, null values omitted; and base_url, python, weight_dir and start_timeout of
    Burnish (docs/engines.md)."""

    sglang: dict[str, Any] = setting({})
    """Arguments passed to the SGLang server unchanged; and base_url, python, weight_sync, weight_dir and
    start_timeout of Burnish (docs/engines.md)."""

    trtllm: dict[str, Any] = setting({})
    """Arguments passed to TensorRT-LLM unchanged."""


@dataclass
class SpeculativeConfig:
    """Speculative decoding by the built-in engine, with drafts from other responses to the same prompt."""

    enable: bool = False
    """Verify drafts of several tokens per response in one decode step, where measured step times and acceptance promise
    more tokens per second. The sampled tokens are those of decoding without drafts; without rollout.invariant, more
    rows in a step change last bits."""

    num_speculative_tokens: int = at_least(16, 1)
    """Maximum number of drafted tokens of one response in a decode step; at most 7 in the decode loop on GPUs."""

    max_num_seqs: int = at_least(64, 1)
    """Responses that may run while drafts are verified: drafts are for the tail of a rollout."""


@dataclass
class SamplingConfig:
    """Engine and sampling parameters, common to training and `burnish generate`."""

    name: str = one_of("builtin", ENGINES, user_paths=True, verl="vllm")
    """The engine."""

    mode: str = one_of("sync", ROLLOUT_MODES)
    """vLLM in this process (sync), or as an HTTP server (async). Other engines have one mode."""

    temperature: float = at_least(1.0, 0)
    """Sampling temperature. Log-probs of policy and reference are computed at the same temperature."""

    top_k: int = at_least(-1, -1, off=(None, 0), off_value=-1)
    """Sample among this many most likely tokens; -1, 0 or null disables it. Restricted sampling biases the ratios; the
    run reports it."""

    top_p: float = between(1.0, 0, 1)
    """Sample among the most likely tokens up to this cumulative probability; 1 disables it."""

    do_sample: bool = True
    """Sample; false decodes greedily, regardless of temperature."""

    n: int = at_least(1, 1)
    """Responses per prompt: the group size."""

    ignore_eos: bool = False
    """Continue after the end-of-sequence token, up to response_length."""

    min_p: float = between(0.0, 0, 1)
    """Minimum probability of a token relative to the most likely one; 0 disables it."""

    min_tokens: int = at_least(0, 0)
    """No end-of-sequence or stop token, and no stop string, before this many tokens. Applies to validation too."""

    stop: list[str] = setting([])
    """A response ends when its text contains one of these; rewards see the text before it. Applies to validation
    too."""

    stop_token_ids: list[int] = setting([], low=0)
    """Tokens that end a response, besides the model's own, also with ignore_eos. Applies to validation too."""

    repetition_penalty: float = above(1.0, 0)
    """Divide positive and multiply negative logits of tokens that occur in prompt or response by this; 1 disables
    it."""

    presence_penalty: float = between(0.0, -2, 2)
    """Subtracted from the logits of tokens that occur in the response; 0 disables it."""

    frequency_penalty: float = between(0.0, -2, 2)
    """Subtracted from a token's logit per occurrence in the response; 0 disables it."""

    bad_words: list[str] = setting([])
    """Words that are never generated. Applies to validation too."""

    seed: int | None = None
    """Sampling seed; null uses the run's seed."""

    logprobs: int | None = at_least(None, 0)
    """Number of top log-probs per token in dumped rollouts; null dumps none."""

    detokenize: bool = True
    """Decode responses to text."""

    prompt_length: int = at_least(II("data.max_prompt_length"), 1)
    """Maximum prompt length of the engine; follows data.max_prompt_length."""

    response_length: int = at_least(II("data.max_response_length"), 1)
    """Maximum response length of the engine; follows data.max_response_length."""

    dtype: str | None = one_of(None, DTYPES, verl="bfloat16")
    """dtype of the engine's weights; null is float32 on CPU and bfloat16 on GPU."""

    gpu_memory_utilization: float = between(0.5, 0, 1)
    """Fraction of GPU memory for the engine's weights and KV cache. On CPU: fraction of free memory for the KV
    cache."""

    free_cache_engine: bool = True
    """Free the engine's KV cache after each generation, for training."""

    max_model_len: int | None = at_least(None, 1)
    """Maximum length of prompt and response together; null means prompt_length + response_length. With less, responses
    to long prompts are shorter."""

    max_num_seqs: int = at_least(1024, 1)
    """Maximum number of responses in one engine batch."""

    max_num_batched_tokens: int = at_least(8192, 1)
    """Maximum number of tokens in one engine step, including prompts."""

    disable_log_stats: bool = True
    """Do not log engine statistics (running, waiting, cache use)."""

    invariant: bool | None = None
    """Batch-invariant generation: responses do not depend on other requests in the batch, at some cost in speed. On a
    GPU (built-in engine; Llama, Qwen2, Qwen3, Mistral) training computes with the same kernels, so that log-probs of
    rollout and training are equal bit for bit. null: on for CPU, off for GPU."""

    tensor_model_parallel_size: int = at_least(1, 1, verl=2)
    """Tensor parallelism: devices that share one engine's weight matrices. With several ranks, each engine has so many
    neighboring ones; the built-in engine then decodes without CUDA graphs."""

    data_parallel_size: int = at_least(1, 1)
    """Data parallelism inside one engine (vLLM as a server, SGLang)."""

    expert_parallel_size: int = at_least(1, 1)
    """Expert parallelism inside one engine (SGLang; vLLM: 1, or tensor x data)."""

    pipeline_model_parallel_size: int = at_least(1, 1)
    """Pipeline stages of one engine (vLLM, SGLang)."""

    speculative: SpeculativeConfig = section(SpeculativeConfig)
    """Speculative decoding."""

    enforce_eager: bool | None = setting(None, verl=True)
    """Disable CUDA graphs; null uses them on GPUs, where they stay valid while the engine sleeps."""

    cudagraph_capture_sizes: list[int] | None = setting(None, low=1)
    """Batch sizes for which CUDA graphs are captured; null lets the engine decide."""

    enable_chunked_prefill: bool = True
    """Split prompts over several engine steps, 256 tokens at a time; false rejects prompts above the token budget."""

    enable_prefix_caching: bool = setting(False, verl=True)
    """Reuse full KV blocks (256 tokens) for other prompts with the same prefix, until the weights change."""

    load_format: str = one_of("dummy_dtensor", LOAD_FORMATS)
    """Source of the engine's initial weights: dummy* is random, others load the model folder."""

    use_fire_sampling: bool = False
    """Sample the first token at temperature 30 among the top_k (16 if disabled) most likely (FIRE, arXiv
    2410.21236)."""

    trust_remote_code: bool = False
    """Allow the engine to run Python code of the model's repository."""


@dataclass
class RolloutConfig(SamplingConfig):
    """The engine of training."""

    log_prob_micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward pass of old log-probs over all ranks; older form of log_prob_micro_batch_size_per_gpu."""

    log_prob_micro_batch_size_per_gpu: int | None = at_least(None, 1)
    """Responses per forward pass of old log-probs on one rank; null packs by log_prob_max_token_len_per_gpu."""

    log_prob_use_dynamic_bsz: bool = II("actor_rollout_ref.actor.use_dynamic_bsz")
    """Form these forward passes by token count instead of by number of responses; follows the policy's."""

    log_prob_max_token_len_per_gpu: int = at_least(II("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"), 1)
    """Token budget of one of these forward passes on one rank; follows the policy's."""

    calculate_log_probs: bool = False
    """Return log-probs of sampled tokens from the engine."""

    over_sample_rate: float = between(0.0, 0, 1)
    """Share of a step's samples that is dropped: those with the most sampled tokens, which are aborted once enough
    others have finished. Short responses are preferred, and groups may lose samples (docs/gathering.md)."""

    multi_stage_wake_up: bool = False
    """Wake up the engine's weights first, and its KV cache after the weight sync, for lower peak memory."""

    enable_sleep_mode: bool = True
    """Let the engine free its memory during training."""

    enable_rollout_routing_replay: bool = False
    """Record which experts the engine sends each token to, for actor.router_replay.mode=R3 (built-in and hf engine)."""

    update_weights_bucket_megabytes: int = at_least(512, 1)
    """Bucket size of weight sync in megabytes."""

    checkpoint_engine: CheckpointEngineConfig = section(CheckpointEngineConfig)
    """Transport of weight sync."""

    layered_summon: bool = False
    """Gather LoRA weights layer by layer for the engine."""

    layer_name_map: dict[str, Any] = setting({"qkv_layer_name": "qkv", "gate_proj_layer_name": "gate_up"})
    """Names of the fused layers in Megatron's weights."""

    quantization: str | None = one_of(None, ("fp8", "torchao"))
    """Round the weights of the engine to 8 bits at every weight sync (built-in engine; vllm on GPUs). Importance
    weights correct for it unless algorithm.rollout_correction is set otherwise. null keeps rollout.dtype."""

    use_block_quant_rollout: bool = True
    """With quantization: a scale for each block of 128 x 128 weights; false has one per matrix."""

    verify_weights: bool = True
    """Compare checksums of all weights in engine and policy after each weight sync."""

    skip_rollout: bool = False
    """Load responses from skip_dump_dir instead of generating; the first run writes them."""

    skip_dump_dir: str = "rollout_dump"
    """Folder of those responses."""

    skip_tokenizer_init: bool = True
    """Start the engine without a tokenizer."""

    engine_kwargs: EngineKwargsConfig = section(EngineKwargsConfig)
    """Further arguments of external engines."""

    val_kwargs: ValKwargsConfig = section(ValKwargsConfig)
    """Sampling parameters of validation."""

    multi_turn: MultiTurnConfig = section(MultiTurnConfig)
    """Multi-turn conversations; `true` means enable."""

    agent: AgentConfig = section(AgentConfig)
    """Agent loops."""

    trace: TraceConfig = section(TraceConfig)
    """Conversation traces."""

    prometheus: PrometheusConfig = section(PrometheusConfig)
    """Engine metrics for Prometheus."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiling of the engine."""
