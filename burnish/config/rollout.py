"""actor_rollout_ref.rollout.*: the engine and how it samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from burnish.config.fields import above, at_least, between, one_of, section, setting
from burnish.config.names import DTYPES, ENGINES, ROLLOUT_MODES
from burnish.config.profiler import ProfilerConfig
from burnish.config.turns import AgentConfig, CheckpointEngineConfig, MultiTurnConfig, PrometheusConfig, TraceConfig

# Where an engine's first weights may come from, in the words of verl and vLLM.
LOAD_FORMATS = (
    *("auto", "hf", "safetensors", "dtensor", "megatron", "dummy", "dummy_hf", "dummy_dtensor", "dummy_megatron"),
    *("pt", "npcache", "sharded_state", "gguf", "bitsandbytes", "mistral", "tensorizer", "runai_streamer"),
)


@dataclass
class ValKwargsConfig:
    """Sampling of validation."""

    temperature: float = at_least(0.0, 0)
    """Sampling temperature of validation; 0 is greedy."""

    top_k: int = at_least(-1, -1, off=(None, 0), off_value=-1)
    """Sample among this many likeliest tokens in validation; -1, 0 or null is off."""

    top_p: float = between(1.0, 0, 1)
    """Sample among the likeliest tokens up to this probability in validation; 1 is off."""

    n: int = at_least(1, 1)
    """Responses per validation prompt."""

    do_sample: bool = False
    """Sample in validation; off is greedy, whatever the temperature."""

    min_p: float = between(0.0, 0, 1)
    """Leave out tokens less likely than this share of the likeliest in validation; 0 is off."""

    repetition_penalty: float = above(1.0, 0)
    """Penalty on tokens that the prompt or the response has, in validation; 1 is off."""

    presence_penalty: float = between(0.0, -2, 2)
    """Taken from the logit of every token that the response has, in validation; 0 is off."""

    frequency_penalty: float = between(0.0, -2, 2)
    """Taken from a token's logit for each time the response has it, in validation; 0 is off."""

    seed: int | None = None
    """Seed of validation's sampling; null follows the rollout's seed, and that the run's."""


@dataclass
class EngineKwargsConfig:
    """Further arguments of a foreign engine."""

    vllm: dict[str, Any] = setting({})
    """Arguments for vLLM, passed on as they are; null values are left out."""

    sglang: dict[str, Any] = setting({})
    """Arguments for SGLang's server, passed on as they are; and base_url, weight_sync, weight_dir and start_timeout,
    which are ours (docs/engines.md)."""

    trtllm: dict[str, Any] = setting({})
    """Arguments for TensorRT-LLM, passed on as they are."""


@dataclass
class SamplingConfig:
    """What engines and jobs share: which engine, and how it samples."""

    name: str = one_of("builtin", ENGINES, user_paths=True, verl="vllm")
    """The engine."""

    mode: str = one_of("sync", ROLLOUT_MODES)
    """vLLM in this process (sync), or as an HTTP server (async). Other engines have one way only."""

    temperature: float = at_least(1.0, 0)
    """Sampling temperature. Log-probs of policy and reference are taken at the same temperature."""

    top_k: int = at_least(-1, -1, off=(None, 0), off_value=-1)
    """Sample among this many likeliest tokens; -1, 0 or null is off. Restricting biases the ratios; the run says so."""

    top_p: float = between(1.0, 0, 1)
    """Sample among the likeliest tokens up to this probability; 1 is off."""

    do_sample: bool = True
    """Sample; off is greedy, whatever the temperature."""

    n: int = at_least(1, 1)
    """Responses per prompt: the group size."""

    ignore_eos: bool = False
    """Go on after the end-of-sequence token, up to response_length."""

    min_p: float = between(0.0, 0, 1)
    """Leave out tokens less likely than this share of the likeliest; 0 is off."""

    min_tokens: int = at_least(0, 0)
    """No end-of-sequence or stop token, and no stop string, before this many tokens. Holds for validation too."""

    stop: list[str] = setting([])
    """A response ends when its text contains one of these; rewards see the text before it. Holds for validation too."""

    stop_token_ids: list[int] = setting([], low=0)
    """Tokens that end a response, besides the model's own; ignore_eos leaves them. Holds for validation too."""

    repetition_penalty: float = above(1.0, 0)
    """Divides positive logits of tokens that the prompt or the response has, multiplies negative ones; 1 is off."""

    presence_penalty: float = between(0.0, -2, 2)
    """Taken from the logit of every token that the response has; 0 is off."""

    frequency_penalty: float = between(0.0, -2, 2)
    """Taken from a token's logit for each time the response has it; 0 is off."""

    bad_words: list[str] = setting([])
    """Words whose tokens the model never completes. Holds for validation too."""

    seed: int | None = None
    """Seed of the sampling; null follows the run's seed."""

    logprobs: int | None = at_least(None, 0)
    """Log-probs of this many likeliest tokens beside each sampled one, in dumped rollouts; null dumps none."""

    detokenize: bool = True
    """Make the text of responses."""

    prompt_length: int = at_least(II("data.max_prompt_length"), 1)
    """Longest prompt of the engine; follows data.max_prompt_length."""

    response_length: int = at_least(II("data.max_response_length"), 1)
    """Longest response of the engine; follows data.max_response_length."""

    dtype: str | None = one_of(None, DTYPES, verl="bfloat16")
    """dtype of the engine's weights; null is float32 on CPU and bfloat16 on GPU."""

    gpu_memory_utilization: float = between(0.5, 0, 1)
    """Share of the GPU's memory for the engine's weights and cache. On CPU: of the free memory, for the cache."""

    free_cache_engine: bool = True
    """Free the engine's cache after each generation, for training."""

    max_model_len: int | None = at_least(None, 1)
    """Longest prompt and response together; null means prompt_length + response_length. With less, a response gets
    what its prompt leaves."""

    max_num_seqs: int = at_least(1024, 1)
    """Most responses the engine generates at once."""

    max_num_batched_tokens: int = at_least(8192, 1)
    """Most tokens of one engine step, prompts included."""

    disable_log_stats: bool = True
    """Do not report the engine's statistics (running, waiting, cache use)."""

    invariant: bool | None = None
    """Make responses independent of what else is in the batch, at some cost in speed; null: on for CPU, off for GPU."""

    tensor_model_parallel_size: int = at_least(1, 1, verl=2)
    """Ranks that share one copy of the engine's model."""

    data_parallel_size: int = at_least(1, 1)
    """Data parallel ranks inside one engine."""

    expert_parallel_size: int = at_least(1, 1)
    """Ranks that share the experts of one engine's model."""

    pipeline_model_parallel_size: int = at_least(1, 1)
    """Pipeline stages of one engine."""

    enforce_eager: bool | None = setting(None, verl=True)
    """Do not use CUDA graphs; null uses them on GPUs, where they outlast sleeping."""

    cudagraph_capture_sizes: list[int] | None = setting(None, low=1)
    """Batch sizes for which CUDA graphs are captured; null lets the engine choose."""

    enable_chunked_prefill: bool = True
    """Split prompts over several engine steps, 256 tokens at a time; off refuses prompts above the token budget."""

    enable_prefix_caching: bool = setting(False, verl=True)
    """Keep full blocks (256 tokens) of the cache for other prompts that begin alike, until the weights change."""

    load_format: str = one_of("dummy_dtensor", LOAD_FORMATS)
    """Where the engine's first weights come from: dummy* is random, others read the model's folder."""

    use_fire_sampling: bool = False
    """Draw the first token at temperature 30 among the top_k (16 if off) likeliest (FIRE, arXiv 2410.21236)."""

    trust_remote_code: bool = False
    """Allow the engine to run Python code of the model's repository."""


@dataclass
class RolloutConfig(SamplingConfig):
    """The engine of training."""

    log_prob_micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward pass over all ranks when the policy reads old log-probs; older way to set the next key."""

    log_prob_micro_batch_size_per_gpu: int | None = at_least(None, 1)
    """Responses per forward pass on one rank when the policy reads old log-probs; null packs by tokens."""

    log_prob_use_dynamic_bsz: bool = II("actor_rollout_ref.actor.use_dynamic_bsz")
    """Cut those forward passes by tokens instead of by responses; follows the policy's."""

    log_prob_max_token_len_per_gpu: int = at_least(II("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"), 1)
    """Token budget of such a forward pass on one rank; follows the policy's."""

    calculate_log_probs: bool = False
    """Ask the engine for the log-probs of its own tokens."""

    over_sample_rate: float = between(0.0, 0, 1)
    """Share of extra requests; the slowest are dropped."""

    multi_stage_wake_up: bool = False
    """Wake the engine's weights first and its cache after the weight transfer, for a lower memory peak."""

    enable_sleep_mode: bool = True
    """Let the engine free its memory during training."""

    enable_rollout_routing_replay: bool = False
    """Return the engine's choice of experts for training to repeat."""

    update_weights_bucket_megabytes: int = at_least(512, 1)
    """Megabytes of weights sent to the engine at once."""

    checkpoint_engine: CheckpointEngineConfig = section(CheckpointEngineConfig)
    """How weights travel to the engine."""

    layered_summon: bool = False
    """Gather LoRA weights layer by layer for the engine."""

    layer_name_map: dict[str, Any] = setting({"qkv_layer_name": "qkv", "gate_proj_layer_name": "gate_up"})
    """Names of the fused layers in Megatron's weights."""

    quantization: Any = None
    """Quantise the engine's weights, for instance fp8."""

    use_block_quant_rollout: bool = True
    """Quantise by blocks."""

    verify_weights: bool = True
    """Compare a digest of every weight that the engine holds with the policy's after each transfer."""

    skip_rollout: bool = False
    """Read responses from skip_dump_dir instead of generating, and write them there the first time."""

    skip_dump_dir: str = "rollout_dump"
    """Folder of those responses."""

    skip_tokenizer_init: bool = True
    """Start the engine without a tokenizer."""

    engine_kwargs: EngineKwargsConfig = section(EngineKwargsConfig)
    """Further arguments of a foreign engine."""

    val_kwargs: ValKwargsConfig = section(ValKwargsConfig)
    """Sampling of validation."""

    multi_turn: MultiTurnConfig = section(MultiTurnConfig)
    """Conversations of several turns; `true` means enable."""

    agent: AgentConfig = section(AgentConfig)
    """Agent loops."""

    trace: TraceConfig = section(TraceConfig)
    """Traces of conversations."""

    prometheus: PrometheusConfig = section(PrometheusConfig)
    """Engine metrics for Prometheus."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiling of the engine."""
