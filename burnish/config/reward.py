"""reward.*, custom_reward_function.* and reward_model.*: sources of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from burnish.config.data import CustomClassConfig
from burnish.config.engine import FsdpConfig, MegatronConfig
from burnish.config.fields import above, at_least, between, one_of, section, setting
from burnish.config.names import REWARD_MANAGERS, SCORE_NORMALIZERS, STRATEGIES, VERIFIERS
from burnish.config.profiler import ProfilerConfig


@dataclass
class RewardConfig:
    """Reward functions and the worker processes that run them."""

    num_workers: int = at_least(2, 0)
    """Worker processes for reward functions; 0 runs them in the training process, without limits."""

    timeout: float = above(10.0, 0)
    """Timeout in seconds of one sample's reward."""

    memory_mb: int = at_least(4096, 64)
    """Memory limit of one reward worker in MiB, beyond what its imports map, if the system supports it."""

    on_error: str = one_of("fallback", ("fallback", "stop"))
    """What to do if a reward fails, times out or returns no number: report it and use fallback_score, or stop the
    run."""

    fallback_score: float = 0.0
    """Score of a sample whose reward failed."""

    failure_threshold: float | None = between(1.0, 0.0, 1.0)
    """Stop the run with the first cause if this fraction (or more) of the samples of a step or of a validation fails; 1
    means all of them, null never stops it."""

    stop_properly_penalty: float | None = None
    """Factor on the score of responses truncated at the length limit; a negative value replaces the score. null
    disables it."""

    scale: float = 1.0
    """Multiply the score by this, after length penalties. Validation scores are not shaped."""

    normalize: str | None = one_of(None, SCORE_NORMALIZERS)
    """Subtract the mean and divide by the standard deviation, after scaling; null disables it."""

    clip_range: list[float] | None = None
    """[low, high]: clip the score, after all other shaping; null disables it."""

    pass_env: list[str] = setting([], comma_separated=True)
    """Environment variables that look like secrets (HF_TOKEN, OPENAI_API_KEY) to pass to reward workers; all other
    secrets are removed from their environment."""

    isolate: bool | None = None
    """Isolate reward workers with Linux namespaces. null: if the system supports it, hide other processes. true:
    require it, allow writes only to a temporary folder, and hide devices and unix sockets. false: no isolation."""

    network: bool = True
    """Allow reward workers to use the network; false requires a system that can isolate them."""

    verifiers: list[str] = one_of([], VERIFIERS, comma_separated=True)
    """Verifiers that score every response instead of the reward of its data source (MindSpeed RL); their weighted sum
    is the score."""

    verifier_weights: list[float] = setting([])
    """Weight of each verifier in that sum; empty means 1 for each."""

    remote_url: list[str] = setting([], comma_separated=True)
    """Remote reward as in OpenRLHF: one Python file with reward_func(queries, prompts, labels), or http(s) URLs of
    reward servers, used in round-robin order."""

    remote_timeout: float = above(180.0, 0)
    """Timeout in seconds of one request to a reward server."""

    remote_retries: int = at_least(5, 1)
    """Attempts per sample before its reward counts as failed."""

    remote_wait: float = at_least(1.0, 0)
    """Seconds between attempts."""

    model_weight: float | None = None
    """Weight of the reward model's score in the sum with the reward function's; null is 1. Setting either weight mixes
    the two."""

    function_weight: float | None = None
    """Weight of the reward function's score in that sum; null is 1. If both weights are null, only the model's score
    counts."""


@dataclass
class CustomRewardFunctionConfig:
    """A user-defined reward function."""

    path: str | None = None
    """Python file (or pkg://module) with the reward function; null uses the built-in one of the row's data source."""

    name: str | None = setting("compute_score", off=(None, ""), off_value="compute_score")
    """Name of the function in that file."""

    reward_kwargs: dict[str, Any] = setting({})
    """Further keyword arguments of the function."""


@dataclass
class SandboxConfig:
    """A code sandbox service."""

    url: str | None = None
    """URL of a sandbox service that executes code answers; null executes them locally."""

    max_concurrent: int = at_least(64, 1)
    """Maximum concurrent requests to the sandbox."""

    memory_limit_mb: int = at_least(1024, 1)
    """Memory limit of one run in the sandbox, in MiB."""


@dataclass
class OverlongBufferConfig:
    """DAPO's soft penalty for overlong responses."""

    enable: bool = False
    """Penalize responses that end within the last len tokens before the length limit."""

    len: int = at_least(4096, 0)
    """Length of that range in tokens."""

    penalty_factor: float = 1.0
    """Penalty at the limit; it grows linearly over the range."""

    log: bool = False
    """Log the penalty as a metric and with each response."""

    max_resp_len: int | None = at_least(None, 1)
    """The length limit; null means data.max_response_length."""


@dataclass
class RewardModelModelConfig:
    """The reward model."""

    path: str | None = setting(None, verl="~/models/FsfairX-LLaMA3-RM-v0.1")
    """Folder or name of the reward model: a sequence or token classifier with one label."""

    custom_cls: CustomClassConfig = section(CustomClassConfig)
    """A user-defined reward model class: Class(path, device) with score(rows) -> one number per row."""

    input_tokenizer: str | None = II("actor_rollout_ref.model.path")
    """Tokenizer that decodes responses, to be templated again for the reward model; null passes on the policy's
    tokens."""

    external_lib: list[str] = setting(II("actor_rollout_ref.model.external_lib"), comma_separated=True)
    """Python modules to import before the reward model is built; follows the policy's."""

    trust_remote_code: bool = False
    """Allow the reward model's repository to run its own Python code."""

    use_remove_padding: bool = setting(True, verl=False)
    """Score packed tokens without padding."""

    use_fused_kernels: bool = II("actor_rollout_ref.model.use_fused_kernels")
    """Follows the policy's; a reward model has no language head to fuse."""

    use_shm: bool = False
    """Copy the weights to shared memory before loading them."""

    fsdp_config: FsdpConfig = section(FsdpConfig)
    """FSDP settings of the reward model."""


@dataclass
class RewardModelConfig:
    """The reward model, and the reward manager."""

    enable: bool = False
    """Score responses with a reward model. Its score replaces that of the reward function, unless reward.model_weight
    or reward.function_weight mixes them."""

    normalize: bool = False
    """Normalize scores to (score - mean) / std, with mean and std from the reward model's config.json."""

    reward_manager: str = one_of("naive", REWARD_MANAGERS, user_paths=True)
    """How reward functions are called."""

    reward_kwargs: dict[str, Any] = setting({})
    """Arguments of the reward manager, for instance overlong_buffer_cfg and max_resp_len of dapo."""

    overlong_buffer: OverlongBufferConfig = section(OverlongBufferConfig)
    """DAPO's soft penalty for overlong responses."""

    strategy: str = one_of(II("actor_rollout_ref.actor.strategy"), STRATEGIES)
    """Backend of the reward model; follows the policy's."""

    micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward pass over all ranks; older form of micro_batch_size_per_gpu."""

    micro_batch_size_per_gpu: int | None = at_least(None, 1)
    """Responses per forward pass on one rank; null packs by forward_max_token_len_per_gpu."""

    max_length: int | None = at_least(None, 1)
    """Maximum input length of the reward model in tokens; longer inputs are truncated on the left. null is no limit."""

    use_dynamic_bsz: bool = II("critic.use_dynamic_bsz")
    """Form forward passes by token count instead of by number of responses; follows the critic's."""

    forward_max_token_len_per_gpu: int = at_least(II("critic.forward_max_token_len_per_gpu"), 1)
    """Token budget of one forward pass on one rank; follows the critic's."""

    use_torch_compile: bool = II("actor_rollout_ref.actor.use_torch_compile")
    """Compile the reward model's layers; follows the policy's."""

    ulysses_sequence_parallel_size: int = at_least(1, 1)
    """Ranks that share one sequence: Ulysses if they divide the number of heads, otherwise ring attention."""

    launch_reward_fn_async: bool = False
    """Run reward functions concurrently with the next phase of the step."""

    use_reward_loop: bool = True
    """Score responses as they finish (newer verl)."""

    enable_resource_pool: bool = False
    """Place the reward model on its own devices."""

    nnodes: int = at_least(0, 0)
    """Machines of the reward model's device pool."""

    n_gpus_per_node: int = at_least(0, 0)
    """Devices per machine of the reward model's device pool."""

    nccl_timeout: int = at_least(600, 1)
    """Timeout in seconds of the reward model's collective operations."""

    load_weight: bool = True
    """Load the weights from the model folder; false takes random weights."""

    model: RewardModelModelConfig = section(RewardModelModelConfig)
    """The reward model."""

    rollout: dict[str, Any] = setting({})
    """verl: settings of an engine that serves the reward model to a reward function."""

    sandbox_fusion: SandboxConfig = section(SandboxConfig)
    """A code sandbox service."""

    megatron: MegatronConfig = section(MegatronConfig)
    """Megatron settings of the reward model."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiling of the reward model."""
