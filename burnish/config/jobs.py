"""EvalConfig and GenerateConfig, and the config class of every job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.fields import at_least, between, files, one_of, section, setting
from burnish.config.names import DEVICES, ENGINES, LAUNCHERS, STRATEGIES, TRUNCATIONS
from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig
from burnish.config.rollout import EngineKwargsConfig, SamplingConfig
from burnish.config.root import TrainConfig
from burnish.config.sandbox import ProgramsConfig
from burnish.config.sft import SftConfig
from burnish.config.trainer import RayInitConfig


@dataclass
class EvalDataConfig:
    """The responses to score."""

    path: list[str] = files(verl="/tmp/math_Qwen2-7B-Instruct.parquet")
    """Files with responses (.parquet, .jsonl and others). One path, a list, or paths separated by commas."""

    prompt_key: str = "prompt"
    """Column with the prompt, for rewards that use it (reward.remote_url)."""

    image_key: str | None = "images"
    """Column with a row's images, for rewards that take multi_modal_data; null reads none."""

    video_key: str | None = "videos"
    """Column with a row's videos, for such rewards; null reads none."""

    response_key: str = "responses"
    """Column with a row's list of responses; a string counts as one response."""

    data_source_key: str = "data_source"
    """Column with the data source; scores are averaged per source."""

    reward_model_key: str | None = "reward_model"
    """Column with the ground truth: an object with ground_truth, or the value itself; null if the reward needs none."""

    output_path: str | None = None
    """Output file for the rows and their scores, .parquet or .jsonl; null writes none."""


@dataclass
class EvalConfig:
    """All keys of `burnish eval`."""

    data: EvalDataConfig = section(EvalDataConfig)
    """The responses to score."""

    custom_reward_function: CustomRewardFunctionConfig = section(CustomRewardFunctionConfig)
    """A user-defined reward function."""

    reward: RewardConfig = section(RewardConfig)
    """Reward functions and the worker processes that run them."""

    sandbox: ProgramsConfig = section(ProgramsConfig)
    """Execution of model-generated programs."""

    ray_init: RayInitConfig = section(RayInitConfig)
    """Ray cluster."""


@dataclass
class GenerateDataConfig:
    """The prompts."""

    path: str | None = setting(None, verl="~/data/rlhf/math/test.parquet")
    """File with prompts: parquet, JSON lines or JSON."""

    prompt_key: str = "prompt"
    """Column with the prompt: a list of {role, content} messages, or a string."""

    image_key: str | None = "images"
    """Column with a row's images; null reads none (docs/vision.md)."""

    video_key: str | None = "videos"
    """Column with a row's videos; null reads none."""

    mm_processor_kwargs: dict[str, Any] = setting({})
    """Arguments of the model's image and video processor."""

    n_samples: int = at_least(5, 1)
    """Responses per prompt."""

    output_path: str = setting("generated.parquet", verl="/opt/tiger/math_Qwen2-7B-Instruct.parquet")
    """Output parquet file: the rows with a column `responses`, a list of texts."""

    batch_size: int = at_least(128, 1)
    """Prompts submitted at once, over all engines."""

    truncation: str = one_of("error", TRUNCATIONS, verl="right")
    """What to do with prompts longer than rollout.prompt_length."""

    trust_remote_code: bool = False
    """Allow the tokenizer's repository to run its own Python code."""

    apply_chat_template_kwargs: dict[str, Any] = setting({})
    """Arguments of the chat template."""


@dataclass
class GenerateModelConfig:
    """The model."""

    path: str | None = setting(None, verl="~/models/Qwen2-7B-Instruct")
    """Folder or name of the model."""

    external_lib: list[str] = setting([], comma_separated=True)
    """Python modules to import before the model is built."""

    trust_remote_code: bool = False
    """Allow the model's repository to run its own Python code."""

    override_config: dict[str, Any] = setting({})
    """Values to change in the model's Hugging Face config."""


@dataclass
class GenerateRolloutConfig(SamplingConfig):
    """The engine of generation."""

    name: str = one_of("builtin", ENGINES, user_paths=True, verl="vllm")
    """The engine."""

    top_k: int = at_least(50, -1, off=(None, 0), off_value=-1)
    """Sample among this many most likely tokens; -1, 0 or null disables it."""

    top_p: float = between(0.7, 0, 1)
    """Sample among the most likely tokens up to this cumulative probability; 1 disables it."""

    prompt_length: int = at_least(1536, 1)
    """Maximum prompt length in tokens."""

    response_length: int = at_least(512, 1)
    """Maximum response length in tokens."""

    log_prob_micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward pass of verl's log-prob computation, over all ranks."""

    log_prob_micro_batch_size_per_gpu: int | None = at_least(8, 1)
    """Responses per forward pass of verl's log-prob computation, on one rank."""

    engine_kwargs: EngineKwargsConfig = section(EngineKwargsConfig)
    """Further arguments of external engines."""


@dataclass
class GenerateFsdpConfig:
    """FSDP of verl's generation workers."""

    fsdp_size: int = at_least(-1, -1)
    """Ranks in one sharding group; -1 shards over all."""


@dataclass
class GenerateActorConfig:
    """verl's worker behind generation."""

    strategy: str = one_of("fsdp", STRATEGIES)
    """Backend of verl's generation workers."""

    ulysses_sequence_parallel_size: int = at_least(1, 1)
    """Ranks that share one sequence."""

    fsdp_config: GenerateFsdpConfig = section(GenerateFsdpConfig)
    """FSDP of verl's generation workers."""


@dataclass
class GenerateTrainerConfig:
    """Where generation runs."""

    nnodes: int = at_least(1, 1)
    """Number of machines."""

    n_gpus_per_node: int = at_least(1, 1, verl=8)
    """Engine processes per machine, one per device."""

    launcher: str = one_of("auto", LAUNCHERS)
    """How the processes of several engines are started."""

    ray_wait_register_center_timeout: int = at_least(300, 1)
    """Timeout in seconds for the processes to start and connect."""

    device: str = one_of("auto", DEVICES, verl="cuda")
    """Device type."""

    seed: int = 1
    """Seed of the sampling."""


@dataclass
class GenerateConfig:
    """All keys of `burnish generate`."""

    data: GenerateDataConfig = section(GenerateDataConfig)
    """The prompts."""

    model: GenerateModelConfig = section(GenerateModelConfig)
    """The model."""

    rollout: GenerateRolloutConfig = section(GenerateRolloutConfig)
    """The engine and how it samples."""

    actor: GenerateActorConfig = section(GenerateActorConfig)
    """verl's worker behind generation."""

    trainer: GenerateTrainerConfig = section(GenerateTrainerConfig)
    """Where generation runs."""

    ray_init: RayInitConfig = section(RayInitConfig)
    """Ray cluster."""


JOBS: dict[str, type] = {"train": TrainConfig, "sft": SftConfig, "eval": EvalConfig, "generate": GenerateConfig}
