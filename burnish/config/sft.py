"""SftConfig: all keys of `burnish sft`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.adapters import TrainedModelConfig
from burnish.config.data import CustomClassConfig
from burnish.config.engine import FsdpConfig
from burnish.config.fields import at_least, between, files, one_of, section, setting
from burnish.config.names import (
    DEVICES,
    INVALID_MEDIA,
    LAUNCHERS,
    LOGGERS,
    RESUME_CHANGES,
    RESUME_MODES,
    SCHEDULES,
    STRATEGIES,
    TRUNCATIONS,
)
from burnish.config.optim import CheckpointConfig
from burnish.config.profiler import SFT_TOOLS, TORCH_CONTENTS
from burnish.config.trainer import RayInitConfig


@dataclass
class SftMultiturnConfig:
    """Multi-turn examples."""

    enable: bool = False
    """Read whole conversations instead of prompt and response."""

    messages_key: str = "messages"
    """Column with the messages."""

    tools_key: str = "tools"
    """Column with the tool schemas."""

    enable_thinking_key: str = "enable_thinking"
    """Column that enables the template's thinking mode."""


@dataclass
class SftDataConfig:
    """Training examples."""

    train_files: list[str] = files(verl=["~/data/gsm8k/train.parquet"])
    """Training files, read in this order."""

    val_files: list[str] = files(verl=["~/data/gsm8k/test.parquet"])
    """Validation files; empty disables validation."""

    train_split: str = "train"
    """Split to train on, for datasets with splits; plain files have none."""

    val_split: str = "test"
    """Split to validate on, for datasets with splits; plain files have none."""

    train_max_samples: int = at_least(-1, -1)
    """Use at most this many training rows; -1 uses all."""

    val_max_samples: int = at_least(-1, -1)
    """Use at most this many validation rows; -1 uses all."""

    train_batch_size: int = at_least(256, 1)
    """Examples per update, over all ranks."""

    micro_batch_size: int | None = at_least(None, 1)
    """Examples per forward and backward pass over all ranks; older form of micro_batch_size_per_gpu."""

    micro_batch_size_per_gpu: int = at_least(4, 1)
    """Examples per forward and backward pass on one rank, in training and validation."""

    use_dynamic_bsz: bool = False
    """Form micro-batches by token count instead of by number of examples."""

    max_token_len_per_gpu: int = at_least(8192, 1)
    """Token budget of one micro-batch on one rank."""

    prompt_key: str = "question"
    """Column with the prompt."""

    response_key: str = "answer"
    """Column with the response."""

    prompt_dict_keys: list[str] = setting([], comma_separated=True)
    """Path of keys inside the prompt column, if it holds mappings."""

    response_dict_keys: list[str] = setting([], comma_separated=True)
    """Path of keys inside the response column, if it holds mappings."""

    multiturn: SftMultiturnConfig = section(SftMultiturnConfig)
    """Multi-turn examples."""

    image_key: str | None = "images"
    """Column with a row's images, in the order of <image> in its messages: bytes, paths, URLs, base64, or the mappings
    of Hugging Face datasets. Relative paths start at the data file's folder. null reads none."""

    video_key: str | None = "videos"
    """Column with a row's videos, in the order of <video> in its messages: files like those of images, or lists of
    frames; a mapping may also set fps, nframes, max_frames, video_start, video_end and max_pixels. null reads none."""

    invalid_media: str = one_of("error", INVALID_MEDIA)
    """What to do with rows whose images or videos are missing, corrupt, too large or not as many as in the messages."""

    mm_processor_kwargs: dict[str, Any] = setting({})
    """Arguments of the model's image and video processor."""

    max_length: int = at_least(1024, 1)
    """Maximum example length in tokens, those of images and videos included."""

    truncation: str = one_of("error", TRUNCATIONS)
    """What to do with longer examples."""

    balance_dp_token: bool = False
    """Normalize the loss over the tokens of all ranks."""

    pad_mode: str = one_of("no_padding", ("no_padding", "right", "left_right"))
    """How verl pads examples."""

    chat_template: str | None = None
    """Chat template that replaces the tokenizer's own: Jinja text, or a file."""

    apply_chat_template: bool = True
    """Apply the chat template; false uses text prompts unchanged."""

    input_template: str | None = None
    """Text template with {} for the prompt, for apply_chat_template=false."""

    apply_chat_template_kwargs: dict[str, Any] = setting({})
    """Arguments of the chat template."""

    ignore_input_ids_mismatch: bool = False
    """Accept conversations whose turns tokenize differently alone and together."""

    custom_cls: CustomClassConfig = section(CustomClassConfig)
    """A user-defined dataset class."""

    use_shm: bool = False
    """Copy the data files to shared memory before reading them."""


@dataclass
class SftFsdpConfig(FsdpConfig):
    """FSDP settings of supervised training."""

    cpu_offload: bool = False
    """Keep weights and gradients in CPU memory during training."""

    offload_params: bool = False
    """With cpu_offload, also offload the weights."""


@dataclass
class SftModelConfig(TrainedModelConfig):
    """The model."""

    partial_pretrain: str | None = setting(None, verl="~/models/gemma-1.1-7b-it")
    """Folder or name of the model to start from."""

    strategy: str = one_of("fsdp2", STRATEGIES)
    """Training backend."""

    fsdp_config: SftFsdpConfig = section(SftFsdpConfig)
    """FSDP settings."""

    external_lib: list[str] = setting([], comma_separated=True)
    """Python modules to import before the model is built."""

    override_config: dict[str, Any] = setting({})
    """Values to change in the model's Hugging Face config."""

    trust_remote_code: bool = False
    """Allow the model's repository to run its own Python code."""

    freeze_vision_tower: bool = False
    """Do not train the model's vision tower and its projector."""

    aux_loss_coef: float = at_least(0.0, 0)
    """Weight of the router load-balancing loss of MoE models."""

    use_liger: bool = False
    """Replace norms, rotary embedding and MLPs by Liger's kernels: on GPUs, and not in models with images."""

    use_shm: bool = False
    """Copy the weights to shared memory before loading them."""


@dataclass
class SftOptimConfig:
    """AdamW and its schedule."""

    lr: float = at_least(1e-5, 0)
    """Peak learning rate."""

    betas: list[float] = setting([0.9, 0.95], low=0, high=1)
    """Betas of AdamW."""

    weight_decay: float = at_least(0.01, 0)
    """Weight decay of AdamW, on all parameters unless decay_matrices_only."""

    decay_matrices_only: bool = False
    """No weight decay on biases and norms (1-D parameters), as in OpenRLHF and Megatron."""

    warmup_steps_ratio: float = between(0.1, 0, 1)
    """Warm-up as a fraction of all updates."""

    lr_warmup_steps: int = at_least(-1, -1)
    """Updates of linear warm-up; -1 uses warmup_steps_ratio."""

    clip_grad: float = at_least(1.0, 0)
    """Maximum gradient norm; 0 disables clipping."""

    lr_scheduler: str = one_of("cosine", SCHEDULES)
    """Schedule after the warm-up."""

    min_lr_ratio: float | None = between(0.0, 0, 1)
    """Minimum of the schedule, as a fraction of lr; null means 0."""

    num_cycles: float = at_least(0.5, 0)
    """Cosine cycles over the run; 0.5 decays monotonically."""


@dataclass
class SftTrainerConfig:
    """The run."""

    seed: int = 1
    """Seed of the whole run."""

    total_epochs: int = at_least(4, 0)
    """Passes over the training data."""

    total_training_steps: int | None = at_least(None, 1)
    """Updates of the run; null means total_epochs of data."""

    project_name: str = setting("burnish", verl="gsm8k-sft")
    """Project name for loggers and for the run folder."""

    experiment_name: str = setting("sft", verl="test")
    """Experiment name for loggers and for the run folder."""

    logger: list[str] = one_of(["console", "file"], LOGGERS, comma_separated=True, verl=["console", "wandb"])
    """Metric loggers."""

    log_freq: int = at_least(1, 1)
    """Log metrics every N updates and at the last; validations are always logged."""

    default_local_dir: str = "checkpoints/${trainer.project_name}/${trainer.experiment_name}"
    """The run folder."""

    default_hdfs_dir: str | None = None
    """Remote folder to which checkpoints are copied."""

    save_freq: int | str = -1
    """Save every N updates, or after_each_epoch; 0 or -1 saves only at the end."""

    test_freq: int | str = -1
    """Validate every N updates, or after_each_epoch; 0 or -1 validates only at the end."""

    export_dir: str | None = None
    """Another folder for the trained model and tokenizer in Hugging Face format, written at the end of the run."""

    save_final: bool = True
    """Write the trained model and tokenizer in Hugging Face format to `model` in the run folder at the end."""

    resume_mode: str = one_of("auto", RESUME_MODES)
    """Whether to resume, and from which checkpoint."""

    resume_changes: str = one_of("refuse", RESUME_CHANGES)
    """What to do if settings that define the experiment (model, data, reward, algorithm, seed) differ from those of the
    checkpoint."""

    resume_from_path: str | None = None
    """Checkpoint folder for resume_mode=resume_path."""

    max_ckpt_to_keep: int | None = at_least(None, 1)
    """Checkpoints to keep; null keeps all."""

    checkpoint: CheckpointConfig = section(CheckpointConfig)
    """Contents of checkpoints."""

    profile_steps: list[int] | None = setting(None, low=0)
    """Steps to profile; null profiles none."""

    device: str = one_of("auto", DEVICES, verl="cuda")
    """Device type."""

    nnodes: int = at_least(1, 1)
    """Number of machines."""

    n_gpus_per_node: int = at_least(1, 1, verl=8)
    """Training processes per machine, one per device."""

    launcher: str = one_of("auto", LAUNCHERS)
    """How the processes of a multi-process run are started."""

    ray_wait_register_center_timeout: int = at_least(300, 1)
    """Timeout in seconds for the processes to start and connect."""

    max_restarts: int = at_least(3, 0)
    """Maximum consecutive automatic restarts from the last checkpoint after a worker process dies; a new checkpoint
    resets the count."""

    hang_timeout: float = at_least(7200, 0)
    """Seconds without progress (a phase beginning or ending) after which a run is considered hung: it dumps all stacks,
    and exits or restarts its workers; 0 disables this."""


@dataclass
class SftProfilerConfig:
    """Profiling of the steps in trainer.profile_steps."""

    tool: str = one_of("torch", SFT_TOOLS)
    """Profiling tool."""

    contents: list[str] = one_of([], TORCH_CONTENTS, comma_separated=True)
    """What tool=torch records; empty: operators on the CPU, and kernels where there is a GPU."""

    save_path: str | None = None
    """Folder of the recordings; null is profile/ in the run folder."""


@dataclass
class SftConfig:
    """All keys of `burnish sft`."""

    data: SftDataConfig = section(SftDataConfig)
    """Training examples."""

    model: SftModelConfig = section(SftModelConfig)
    """The model."""

    optim: SftOptimConfig = section(SftOptimConfig)
    """The optimizer."""

    trainer: SftTrainerConfig = section(SftTrainerConfig)
    """Length, devices, checkpoints and logging of the run."""

    profiler: SftProfilerConfig = section(SftProfilerConfig)
    """Profiling of the steps in trainer.profile_steps."""

    ray_init: RayInitConfig = section(RayInitConfig)
    """Ray cluster."""

    ulysses_sequence_parallel_size: int = at_least(1, 1)
    """Ranks that share one sequence."""

    use_remove_padding: bool = setting(True, verl=False)
    """Train on packed tokens without padding."""
