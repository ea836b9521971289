"""EvalConfig and GenerateConfig, and the table of jobs with their trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.fields import at_least, between, files, one_of, section, setting
from burnish.config.names import DEVICES, ENGINES, STRATEGIES, TRUNCATIONS
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
    """Column with the prompt, for rewards that read it (reward.remote_url)."""

    response_key: str = "responses"
    """Column with the list of responses of a row; a string is one response."""

    data_source_key: str = "data_source"
    """Column that names the data source; scores are averaged for each."""

    reward_model_key: str | None = "reward_model"
    """Column with the ground truth: an object with ground_truth, or the truth itself; null if the reward needs none."""

    output_path: str | None = None
    """File to write the rows with their scores to, .parquet or .jsonl; null writes none."""


@dataclass
class EvalConfig:
    """Everything that `burnish eval` can be told."""

    data: EvalDataConfig = section(EvalDataConfig)
    """The responses to score."""

    custom_reward_function: CustomRewardFunctionConfig = section(CustomRewardFunctionConfig)
    """A reward function of your own."""

    reward: RewardConfig = section(RewardConfig)
    """The worker processes that run reward functions."""

    sandbox: ProgramsConfig = section(ProgramsConfig)
    """How programs that a model wrote are run."""

    ray_init: RayInitConfig = section(RayInitConfig)
    """Ray."""


@dataclass
class GenerateDataConfig:
    """The prompts to answer."""

    path: str | None = setting(None, verl="~/data/rlhf/math/test.parquet")
    """File with prompts: parquet, JSON lines or JSON."""

    prompt_key: str = "prompt"
    """Column with the prompt: a list of {role, content} messages, or a string."""

    n_samples: int = at_least(5, 1)
    """Responses per prompt."""

    output_path: str = setting("generated.parquet", verl="/opt/tiger/math_Qwen2-7B-Instruct.parquet")
    """Parquet file to write: the rows, and a column `responses` with a list of texts."""

    batch_size: int = at_least(128, 1)
    """Prompts handed to the engine at once."""

    truncation: str = one_of("error", TRUNCATIONS, verl="right")
    """What to do with prompts longer than rollout.prompt_length."""

    trust_remote_code: bool = False
    """Allow the tokenizer's repository to run its own Python code."""

    apply_chat_template_kwargs: dict[str, Any] = setting({})
    """Arguments passed on to the tokenizer's chat template."""


@dataclass
class GenerateModelConfig:
    """The model that answers."""

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
    """Sample among this many likeliest tokens; -1, 0 or null is off."""

    top_p: float = between(0.7, 0, 1)
    """Sample among the likeliest tokens up to this probability; 1 is off."""

    prompt_length: int = at_least(1536, 1)
    """Longest prompt in tokens."""

    response_length: int = at_least(512, 1)
    """Longest response in tokens."""

    log_prob_micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward pass of verl's log-prob reading, over all ranks."""

    log_prob_micro_batch_size_per_gpu: int | None = at_least(8, 1)
    """Responses per forward pass of verl's log-prob reading, on one rank."""

    engine_kwargs: EngineKwargsConfig = section(EngineKwargsConfig)
    """Further arguments of a foreign engine."""


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
    """Machines."""

    n_gpus_per_node: int = at_least(1, 1, verl=8)
    """Engine processes per machine, one per device."""

    device: str = one_of("auto", DEVICES, verl="cuda")
    """Where to compute."""

    seed: int = 1
    """Seed of the sampling."""


@dataclass
class GenerateConfig:
    """Everything that `burnish generate` can be told."""

    data: GenerateDataConfig = section(GenerateDataConfig)
    """The prompts to answer."""

    model: GenerateModelConfig = section(GenerateModelConfig)
    """The model that answers."""

    rollout: GenerateRolloutConfig = section(GenerateRolloutConfig)
    """The engine and how it samples."""

    actor: GenerateActorConfig = section(GenerateActorConfig)
    """verl's worker behind generation."""

    trainer: GenerateTrainerConfig = section(GenerateTrainerConfig)
    """Where generation runs."""

    ray_init: RayInitConfig = section(RayInitConfig)
    """Ray."""


# What can be asked for, and its tree.
JOBS: dict[str, type] = {"train": TrainConfig, "sft": SftConfig, "eval": EvalConfig, "generate": GenerateConfig}
