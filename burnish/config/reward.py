"""reward.*, custom_reward_function.* and reward_model.*: where scores come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from burnish.config.data import CustomClassConfig
from burnish.config.engine import FsdpConfig, MegatronConfig
from burnish.config.fields import above, at_least, one_of, section, setting
from burnish.config.names import REWARD_MANAGERS, SCORE_NORMALIZERS, STRATEGIES, VERIFIERS
from burnish.config.profiler import ProfilerConfig


@dataclass
class RewardConfig:
    """The worker processes that run reward functions."""

    num_workers: int = at_least(2, 0)
    """Worker processes for reward functions; 0 runs them in the training process, without limits."""

    timeout: float = above(10.0, 0)
    """Seconds one sample's reward may take."""

    memory_mb: int = at_least(2048, 64)
    """Memory one reward worker may use, in MiB, where the system can limit it."""

    on_error: str = one_of("fallback", ("fallback", "stop"))
    """What to do when a reward fails, hangs or returns no number: name it and use fallback_score, or stop the run."""

    fallback_score: float = 0.0
    """Score of a sample whose reward failed."""

    stop_properly_penalty: float | None = None
    """Responses cut off at the length limit keep this share of their score; if negative, it is the score. null: off."""

    scale: float = 1.0
    """Multiply the score by this, after the penalties for length. Validation scores are never shaped."""

    normalize: str | None = one_of(None, SCORE_NORMALIZERS)
    """Take the mean off the score and divide by the standard deviation, after scaling; null is off."""

    clip_range: list[float] | None = None
    """[low, high]: bounds of the score after all else; null is off."""

    pass_env: list[str] = setting([], comma_separated=True)
    """Environment variables that look like secrets (HF_TOKEN, OPENAI_API_KEY) but that reward workers may see;
    other secrets are withheld from them."""

    isolate: bool | None = None
    """Linux namespaces around reward workers. null: where the system can, a worker sees no process but its own.
    true: it must, and a worker writes only in its own temporary folder. false: none."""

    network: bool = True
    """Whether reward workers may use the network; false needs a system that can isolate them."""

    verifiers: list[str] = one_of([], VERIFIERS, comma_separated=True)
    """Rules that score every response instead of the one of its data source (MindSpeed RL); their sum is the score."""

    verifier_weights: list[float] = setting([])
    """Weight of each verifier in that sum; empty is 1 for each."""

    remote_url: list[str] = setting([], comma_separated=True)
    """Remote reward in OpenRLHF's way: one Python file with reward_func(queries, prompts, labels), or http(s) addresses
    of reward servers, which take turns."""

    remote_timeout: float = above(180.0, 0)
    """Seconds one request to a reward server may take."""

    remote_retries: int = at_least(5, 1)
    """How often a sample is sent to reward servers before its reward counts as failed."""

    remote_wait: float = at_least(1.0, 0)
    """Seconds between these tries."""

    model_weight: float | None = None
    """Weight of the reward model's score in its sum with the function's; null is 1. Setting either mixes them."""

    function_weight: float | None = None
    """Weight of the function's score in its sum with the reward model's; null is 1. Both null: the model's alone."""


@dataclass
class CustomRewardFunctionConfig:
    """A reward function of the user's own."""

    path: str | None = None
    """Python file (or pkg://module) with the reward function; null takes the built-in one of the row's data source."""

    name: str | None = "compute_score"
    """Name of the function in that file."""

    reward_kwargs: dict[str, Any] = setting({})
    """Further keyword arguments of every call."""


@dataclass
class SandboxConfig:
    """A code sandbox service."""

    url: str | None = None
    """Address of a sandbox service that runs code answers; null runs them in local processes."""

    max_concurrent: int = at_least(64, 1)
    """Most requests to the sandbox at once."""

    memory_limit_mb: int = at_least(1024, 1)
    """Memory limit of one run in the sandbox, in MiB."""


@dataclass
class OverlongBufferConfig:
    """DAPO's penalty for responses near the limit."""

    enable: bool = False
    """Take points off responses that end within the last len tokens of the limit."""

    len: int = at_least(4096, 0)
    """Length of that stretch, in tokens."""

    penalty_factor: float = 1.0
    """Points taken off at the very limit; in between, in proportion."""

    log: bool = False
    """Report the penalty as a metric, and with each response."""

    max_resp_len: int | None = at_least(None, 1)
    """Length at whose end that stretch lies; null is data.max_response_length."""


@dataclass
class RewardModelModelConfig:
    """The reward model itself."""

    path: str | None = setting(None, verl="~/models/FsfairX-LLaMA3-RM-v0.1")
    """Folder or name of the reward model: a sequence or token classifier with one label."""

    custom_cls: CustomClassConfig = section(CustomClassConfig)
    """A reward model class of your own: Class(path, device) with score(rows) -> one number per row."""

    input_tokenizer: str | None = II("actor_rollout_ref.model.path")
    """Tokenizer that decodes responses for the reward model's own template; null feeds the policy's tokens."""

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
    """A model that scores responses, and the manager of all rewards."""

    enable: bool = False
    """Score responses by a model. Its score replaces that of the reward function, unless reward.model_weight or
    reward.function_weight mixes them."""

    normalize: bool = False
    """Give (score - mean) / std, with mean and std from the reward model's config.json."""

    reward_manager: str = one_of("naive", REWARD_MANAGERS, user_paths=True)
    """How reward functions are called."""

    reward_kwargs: dict[str, Any] = setting({})
    """Arguments of the reward manager, for instance overlong_buffer_cfg and max_resp_len of dapo."""

    overlong_buffer: OverlongBufferConfig = section(OverlongBufferConfig)
    """DAPO's penalty for responses near the limit."""

    strategy: str = one_of(II("actor_rollout_ref.actor.strategy"), STRATEGIES)
    """Backend of the reward model; follows the policy's."""

    micro_batch_size: int | None = at_least(None, 1)
    """Responses per scoring pass over all ranks; the older way to set micro_batch_size_per_gpu."""

    micro_batch_size_per_gpu: int | None = at_least(None, 1)
    """Responses per scoring pass on one rank; null packs by forward_max_token_len_per_gpu."""

    max_length: int | None = at_least(None, 1)
    """Longest input of the reward model in tokens; longer ones lose their beginning. null is no limit."""

    use_dynamic_bsz: bool = II("critic.use_dynamic_bsz")
    """Cut scoring passes by tokens instead of by responses; follows the critic's."""

    forward_max_token_len_per_gpu: int = at_least(II("critic.forward_max_token_len_per_gpu"), 1)
    """Token budget of one scoring pass on one rank; follows the critic's."""

    ulysses_sequence_parallel_size: int = at_least(1, 1)
    """Ranks that share one sequence: by Ulysses where they divide the heads, else by ring attention."""

    launch_reward_fn_async: bool = False
    """Run reward functions beside the next phase of the step."""

    use_reward_loop: bool = True
    """Score responses as they finish (newer verl)."""

    enable_resource_pool: bool = False
    """Give the reward model devices of its own."""

    nnodes: int = at_least(0, 0)
    """Machines of the reward model's own devices."""

    n_gpus_per_node: int = at_least(0, 0)
    """Devices per machine of the reward model's own."""

    nccl_timeout: int = at_least(600, 1)
    """Seconds before a collective call of the reward model gives up."""

    load_weight: bool = True
    """Load the weights from the model's folder (Megatron)."""

    model: RewardModelModelConfig = section(RewardModelModelConfig)
    """The reward model itself."""

    rollout: dict[str, Any] = setting({})
    """Engine settings of a generative reward model: name, prompt_length, response_length and others of rollout."""

    sandbox_fusion: SandboxConfig = section(SandboxConfig)
    """A code sandbox service."""

    megatron: MegatronConfig = section(MegatronConfig)
    """Megatron settings of the reward model."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiling of the reward model."""
