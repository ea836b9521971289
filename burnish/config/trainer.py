"""trainer.*, ray_init.*, rollout.* and async_training.*: length, devices, checkpoints and logging of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.fields import at_least, between, one_of, section, setting
from burnish.config.names import ASYNC_MODES, DEVICES, LAUNCHERS, LOGGERS, RESUME_CHANGES, RESUME_MODES
from burnish.config.profiler import ControllerNsightConfig, NpuProfileConfig, WorkerNsightConfig


@dataclass
class TrainerConfig:
    """The run."""

    seed: int = 1
    """Seed of the whole run; all random numbers derive from it and from their purpose."""

    total_epochs: int = at_least(30, 0)
    """Passes over the training data."""

    total_training_steps: int | None = at_least(None, 1)
    """Number of training steps, over as many epochs as needed; null means total_epochs of data."""

    project_name: str = setting("burnish", verl="verl_examples")
    """Project name for loggers and for the run folder."""

    experiment_name: str = setting("default", verl="gsm8k")
    """Experiment name for loggers and for the run folder."""

    logger: list[str] = one_of(["console", "file"], LOGGERS, comma_separated=True, verl=["console", "wandb"])
    """Metric loggers."""

    log_freq: int = at_least(1, 1)
    """Log metrics every N steps and at the last; validations are always logged."""

    log_val_generations: int = at_least(0, 0)
    """Samples to log per validation, as a table if the logger supports it."""

    log_train_generations: int = at_least(0, 0)
    """Samples to log with the metrics of a training step, as a table if the logger supports it."""

    rollout_data_dir: str | None = None
    """Folder for every step's responses and scores, one JSON-lines file per step."""

    rollout_keep: int | None = at_least(100, 0)
    """Newest steps whose tokens (ids, advantages, log-probs, entropies) stay in the run folder for `burnish view`:
    about 20 MB per million tokens. 0 records none, null keeps all."""

    validation_data_dir: str | None = None
    """Folder for every validation's responses and scores."""

    default_local_dir: str = "checkpoints/${trainer.project_name}/${trainer.experiment_name}"
    """The run folder: config, metrics, curves, checkpoints."""

    save_freq: int = at_least(-1, -1)
    """Save every N steps and at the end; 0 or -1 never saves."""

    export_dir: str | None = None
    """Another folder for the trained policy and tokenizer in Hugging Face format, written at the end of the run."""

    save_final: bool = True
    """Write the trained policy and tokenizer in Hugging Face format to `model` in the run folder at the end."""

    resume_mode: str = one_of("auto", RESUME_MODES)
    """Whether to resume, and from which checkpoint."""

    resume_changes: str = one_of("refuse", RESUME_CHANGES)
    """What to do if settings that define the experiment (model, data, reward, algorithm, seed) differ from those of the
    checkpoint."""

    resume_from_path: str | None = None
    """Checkpoint folder (global_step_N), local or remote, for resume_mode=resume_path."""

    remove_previous_ckpt_in_save: bool = False
    """Keep only the newest checkpoint; older form of max_actor_ckpt_to_keep=1 and max_critic_ckpt_to_keep=1."""

    max_actor_ckpt_to_keep: int | None = at_least(None, 1)
    """Checkpoints of the policy to keep; null keeps all."""

    max_critic_ckpt_to_keep: int | None = at_least(None, 1)
    """Checkpoints of the critic to keep; null keeps all."""

    best_metric_key: str | None = None
    """Validation metric whose best checkpoint is saved and always kept; auto is the mean of val-core/*/mean@N, null
    keeps none."""

    max_restarts: int = at_least(3, 0)
    """Maximum consecutive automatic restarts from the last checkpoint after a worker process dies; a new checkpoint
    resets the count."""

    hang_timeout: float = at_least(7200, 0)
    """Seconds without progress (a phase beginning or ending) after which a run is considered hung: it dumps all stacks
    and exits; 0 disables this."""

    val_before_train: bool = True
    """Validate before the first step."""

    val_only: bool = False
    """Validate once and stop."""

    test_freq: int = at_least(-1, -1)
    """Validate every N steps and at the end; 0 or -1 never validates."""

    critic_warmup: int = at_least(0, 0)
    """Number of initial steps in which only the critic is trained."""

    device: str = one_of("auto", DEVICES, verl="cuda")
    """Device type."""

    nnodes: int = at_least(1, 1)
    """Number of machines."""

    n_gpus_per_node: int = at_least(1, 1, verl=8)
    """Training processes per machine, one per device."""

    launcher: str = one_of("auto", LAUNCHERS)
    """How the processes of a multi-process run are started."""

    balance_batch: bool = True
    """Balance responses over ranks by number of tokens."""

    esi_redundant_time: float = at_least(0, 0)
    """Safety margin in seconds before the machine's lease ends: the run saves and stops before a step that might not
    finish in time."""

    default_hdfs_dir: str | None = None
    """Remote folder (hdfs://, s3://, ..., or a path) to which checkpoints are copied; resume_mode=auto also searches it
    if the run folder has none."""

    del_local_ckpt_after_load: bool = False
    """Delete the local copy of the checkpoint after resuming from it, if a remote copy exists."""

    ray_wait_register_center_timeout: int = at_least(300, 1)
    """Timeout in seconds for Ray workers to connect to each other."""

    use_legacy_worker_impl: str = one_of("auto", ("auto", "enable", "disable"))
    """verl's choice between its older and newer worker classes."""

    metrics_port: int | None = between(None, 0, 65535)
    """Port of an endpoint /metrics in Prometheus's format with the newest metrics; 0 is any free one, null is none."""

    metrics_host: str = "127.0.0.1"
    """Address on which that endpoint listens. It has no authentication."""

    profile_steps: list[int] | None = setting(None, low=0)
    """Steps to profile; null profiles none."""

    controller_nsight_options: ControllerNsightConfig = section(ControllerNsightConfig)
    """Nsight Systems options of the controller process."""

    worker_nsight_options: WorkerNsightConfig = section(WorkerNsightConfig)
    """Nsight Systems options of the worker processes."""

    npu_profile: NpuProfileConfig = section(NpuProfileConfig)
    """Ascend's profiler, as configured in verl 0.4."""


@dataclass
class RayInitConfig:
    """Ray cluster."""

    num_cpus: int | None = at_least(None, 1)
    """CPUs that Ray may use; null means all."""

    timeline_json_file: str | None = None
    """File for Ray's timeline after the run."""

    options: dict[str, Any] = setting({})
    """Further arguments of ray.init."""

    reward_nodes: int = at_least(0, 0)
    """Nodes of the cluster that run reward.num_workers reward workers each, where that many CPUs are free; 0 runs the
    workers on the controller's machine."""

    tool_nodes: int = at_least(0, 0)
    """Nodes of the cluster that run tools with limits.isolate, where a CPU is free; 0 runs them on the controller's
    machine."""


@dataclass
class RolloutPoolConfig:
    """Device pool of the engines, for asynchronous training."""

    nnodes: int = at_least(0, 0)
    """Machines of the engines' device pool."""

    n_gpus_per_node: int = at_least(0, 0)
    """Devices per machine of the engines' device pool."""

    total_rollout_steps: int | None = at_least(None, 1)
    """Maximum number of prompts generated in the whole run; null means total_epochs of data."""

    total_epochs: int | None = at_least(None, 1)
    """Passes over the data; replaces trainer.total_epochs."""

    test_freq: int = at_least(-1, -1)
    """Validate every N weight syncs; replaces trainer.test_freq. 0 or -1 uses trainer.test_freq."""


@dataclass
class AsyncTrainingConfig:
    """Asynchronous training: overlap of generation and training."""

    mode: str = one_of("sync", ASYNC_MODES)
    """Whether generation and training overlap."""

    queue_size: int | None = at_least(None, 1)
    """queue: maximum batches generated ahead of the one in training (OpenRLHF: async_queue_size); null uses
    staleness_threshold."""

    staleness_threshold: float = at_least(0.1, 0)
    """queue: maximum age of a batch at training time, in weight syncs. A fraction allows it for that fraction of the
    steps between two syncs."""

    trigger_parameter_sync_step: int = at_least(4, 1)
    """queue: steps between two weight syncs to the engine."""

    require_batches: int = at_least(1, 1)
    """queue: mini-batches per step, if data.train_batch_size is 0."""

    partial_rollout: bool = True
    """queue: interrupt responses at a weight sync and continue them with the new weights; false waits for them."""

    use_rollout_log_probs: bool = False
    """Use the engine's log-probs as old log-probs (verl's fully asynchronous trainer: true). If false, the policy
    computes them, and importance weights are on unless algorithm.rollout_correction is set."""

    compute_prox_log_prob: bool = False
    """use_rollout_log_probs: compute the policy's log-probs at the start of the update nevertheless."""


@dataclass
class TransferQueueConfig:
    """verl's data service between workers."""

    enable: bool = False
    """Move batches through verl's transfer queue."""
