"""SftConfig: the whole tree of `burnish sft`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.adapters import TrainedModelConfig
from burnish.config.data import CustomClassConfig
from burnish.config.engine import FsdpConfig
from burnish.config.fields import at_least, between, files, one_of, section, setting
from burnish.config.names import DEVICES, LOGGERS, RESUME_MODES, SCHEDULES, STRATEGIES, TRUNCATIONS
from burnish.config.optim import CheckpointConfig


@dataclass
class SftMultiturnConfig:
    """Rows that are whole conversations."""

    enable: bool = False
    """Read whole conversations instead of prompt and response."""

    messages_key: str = "messages"
    """Column with the messages."""

    tools_key: str = "tools"
    """Column with the tools' schemas."""

    enable_thinking_key: str = "enable_thinking"
    """Column that says whether the template's thinking mode is on."""


@dataclass
class SftDataConfig:
    """Examples to imitate."""

    train_files: list[str] = files(verl=["~/data/gsm8k/train.parquet"])
    """Training files, read in this order."""

    val_files: list[str] = files(verl=["~/data/gsm8k/test.parquet"])
    """Validation files; empty is no validation."""

    train_split: str = "train"
    """Split to train on, where a dataset has splits; plain files have none."""

    val_split: str = "test"
    """Split to validate with, where a dataset has splits; plain files have none."""

    train_max_samples: int = at_least(-1, -1)
    """Use at most this many training rows; -1 uses all."""

    val_max_samples: int = at_least(-1, -1)
    """Use at most this many validation rows; -1 uses all."""

    train_batch_size: int = at_least(256, 1)
    """Examples per update, over all ranks."""

    micro_batch_size: int | None = at_least(None, 1)
    """Examples per forward and backward pass over all ranks; the older way to set micro_batch_size_per_gpu."""

    micro_batch_size_per_gpu: int = at_least(4, 1)
    """Examples per forward and backward pass on one rank, in training and validation."""

    use_dynamic_bsz: bool = False
    """Cut micro-batches by tokens instead of by examples."""

    max_token_len_per_gpu: int = at_least(8192, 1)
    """Token budget of one micro-batch on one rank."""

    prompt_key: str = "question"
    """Column with the prompt."""

    response_key: str = "answer"
    """Column with the response."""

    prompt_dict_keys: list[str] = setting([], comma_separated=True)
    """Keys to follow inside the prompt column, where it holds mappings."""

    response_dict_keys: list[str] = setting([], comma_separated=True)
    """Keys to follow inside the response column, where it holds mappings."""

    multiturn: SftMultiturnConfig = section(SftMultiturnConfig)
    """Rows that are whole conversations."""

    max_length: int = at_least(1024, 1)
    """Longest example in tokens."""

    truncation: str = one_of("error", TRUNCATIONS)
    """What to do with a longer example."""

    balance_dp_token: bool = False
    """Divide the loss by the tokens of all ranks."""

    pad_mode: str = one_of("no_padding", ("no_padding", "right", "left_right"))
    """How verl pads examples."""

    chat_template: str | None = None
    """Chat template that replaces the tokenizer's own: Jinja text, or a file."""

    apply_chat_template: bool = True
    """Write prompts with the chat template; false takes a prompt of text as it is."""

    input_template: str | None = None
    """Text with {} for the prompt, where no chat template applies (apply_chat_template=false)."""

    apply_chat_template_kwargs: dict[str, Any] = setting({})
    """Arguments passed on to the tokenizer's chat template."""

    ignore_input_ids_mismatch: bool = False
    """Accept conversations whose turns tokenise differently alone and together."""

    custom_cls: CustomClassConfig = section(CustomClassConfig)
    """A dataset class of your own."""

    use_shm: bool = False
    """Copy the data files to shared memory and read them there."""


@dataclass
class SftFsdpConfig(FsdpConfig):
    """FSDP settings of supervised training."""

    cpu_offload: bool = False
    """Keep weights and gradients in CPU memory during training."""

    offload_params: bool = False
    """With cpu_offload, also the weights."""


@dataclass
class SftModelConfig(TrainedModelConfig):
    """The model to teach."""

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

    aux_loss_coef: float = at_least(0.0, 0)
    """Weight of the load-balancing loss of a mixture of experts' routers."""

    use_liger: bool = False
    """Replace parts of the model by Liger's kernels."""

    use_shm: bool = False
    """Copy the weights to shared memory before loading them."""


@dataclass
class SftOptimConfig:
    """AdamW and its schedule."""

    lr: float = at_least(1e-5, 0)
    """Peak learning rate."""

    betas: list[float] = setting([0.9, 0.95], low=0, high=1)
    """The two decay rates of AdamW."""

    weight_decay: float = at_least(0.01, 0)
    """Weight decay of AdamW, on all parameters unless decay_matrices_only."""

    decay_matrices_only: bool = False
    """No weight decay on biases and norms (parameters of one dimension), as OpenRLHF and Megatron have it."""

    warmup_steps_ratio: float = between(0.1, 0, 1)
    """Warm-up as a share of all updates."""

    lr_warmup_steps: int = at_least(-1, -1)
    """Updates of linear warm-up; -1 takes warmup_steps_ratio."""

    clip_grad: float = at_least(1.0, 0)
    """Largest gradient norm of an update; 0 does not clip."""

    lr_scheduler: str = one_of("cosine", SCHEDULES)
    """Schedule after the warm-up."""

    min_lr_ratio: float | None = between(0.0, 0, 1)
    """Floor of the schedule, as a share of lr; null means 0."""

    num_cycles: float = at_least(0.5, 0)
    """Cosine waves over the run; 0.5 is one way down."""


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
    """Where the numbers go."""

    log_freq: int = at_least(1, 1)
    """Log the numbers of every so many updates, and of the last; validations are always logged."""

    default_local_dir: str = "checkpoints/${trainer.project_name}/${trainer.experiment_name}"
    """The run folder."""

    default_hdfs_dir: str | None = None
    """Remote folder to which checkpoints are copied."""

    save_freq: int | str = -1
    """Save every so many updates, or after_each_epoch; 0 or -1 saves at the end only."""

    test_freq: int | str = -1
    """Validate every so many updates, or after_each_epoch; 0 or -1 validates at the end only."""

    export_dir: str | None = None
    """Folder for the trained model and its tokenizer, as Hugging Face reads them, at the end of the run."""

    resume_mode: str = one_of("auto", RESUME_MODES)
    """Whether and where to go on."""

    resume_from_path: str | None = None
    """Checkpoint folder for resume_mode=resume_path."""

    max_ckpt_to_keep: int | None = at_least(None, 1)
    """Checkpoints to keep; null keeps all."""

    checkpoint: CheckpointConfig = section(CheckpointConfig)
    """What a checkpoint holds."""

    device: str = one_of("auto", DEVICES, verl="cuda")
    """Where to compute."""

    nnodes: int = at_least(1, 1)
    """Machines."""

    n_gpus_per_node: int = at_least(1, 1, verl=8)
    """Training processes per machine, one per device."""


@dataclass
class SftConfig:
    """Everything that `burnish sft` can be told."""

    data: SftDataConfig = section(SftDataConfig)
    """Examples to imitate."""

    model: SftModelConfig = section(SftModelConfig)
    """The model to teach."""

    optim: SftOptimConfig = section(SftOptimConfig)
    """The optimizer."""

    trainer: SftTrainerConfig = section(SftTrainerConfig)
    """How long, where, what to save and to say."""

    ulysses_sequence_parallel_size: int = at_least(1, 1)
    """Ranks that share one sequence."""

    use_remove_padding: bool = setting(True, verl=False)
    """Train on packed tokens without padding."""
