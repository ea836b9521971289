"""trainer.*: how long, where, what to save and to say; and what belongs to the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.fields import at_least, one_of, section, setting
from burnish.config.names import ASYNC_MODES, DEVICES, LAUNCHERS, LOGGERS, RESUME_MODES
from burnish.config.profiler import ControllerNsightConfig, NpuProfileConfig, WorkerNsightConfig


@dataclass
class TrainerConfig:
    """The run."""

    seed: int = 1
    """Seed of the whole run: every random number is derived from it and from what it is for."""

    total_epochs: int = at_least(30, 0)
    """Passes over the training data."""

    total_training_steps: int | None = at_least(None, 1)
    """Steps of the run, across as many epochs as they take; null means total_epochs of data."""

    project_name: str = setting("burnish", verl="verl_examples")
    """Project name for loggers and for the run folder."""

    experiment_name: str = setting("default", verl="gsm8k")
    """Experiment name for loggers and for the run folder."""

    logger: list[str] = one_of(["console", "file"], LOGGERS, comma_separated=True, verl=["console", "wandb"])
    """Where the numbers go."""

    log_freq: int = at_least(1, 1)
    """Log the numbers of every so many steps, and of the last; validations are always logged."""

    log_val_generations: int = at_least(0, 0)
    """Validation samples shown per validation, as a table where the logger has tables."""

    rollout_data_dir: str | None = None
    """Folder for every step's responses and scores, one JSON-lines file per step."""

    validation_data_dir: str | None = None
    """Folder for every validation's responses and scores."""

    default_local_dir: str = "checkpoints/${trainer.project_name}/${trainer.experiment_name}"
    """The run folder: config, metrics, curves, checkpoints."""

    save_freq: int = at_least(-1, -1)
    """Save every so many steps and at the end; 0 or -1 saves never."""

    export_dir: str | None = None
    """Folder for the trained policy and its tokenizer, as Hugging Face reads them, at the end of the run."""

    resume_mode: str = one_of("auto", RESUME_MODES)
    """Whether and where to go on."""

    resume_from_path: str | None = None
    """Checkpoint folder (global_step_N), perhaps a remote one, for resume_mode=resume_path."""

    remove_previous_ckpt_in_save: bool = False
    """Keep only the newest checkpoint; the older way to set max_actor_ckpt_to_keep and max_critic_ckpt_to_keep to 1."""

    max_actor_ckpt_to_keep: int | None = at_least(None, 1)
    """Checkpoints of the policy to keep; null keeps all."""

    max_critic_ckpt_to_keep: int | None = at_least(None, 1)
    """Checkpoints of the critic to keep; null keeps all."""

    best_metric_key: str | None = None
    """Validation metric whose best checkpoint is saved and kept beyond the last ones; auto is the mean of
    val-core/*/mean@N, null keeps none."""

    max_restarts: int = at_least(3, 0)
    """Times in a row, without a new checkpoint in between, that the run restarts by itself from its last checkpoint
    after a worker process died."""

    hang_timeout: float = at_least(7200, 0)
    """Seconds without a phase beginning or ending after which a run counts as hung: its stacks are written down and it
    ends; 0 waits for ever."""

    val_before_train: bool = True
    """Validate before the first step."""

    val_only: bool = False
    """Validate once and stop."""

    test_freq: int = at_least(-1, -1)
    """Validate every so many steps and at the end; 0 or -1 does not."""

    critic_warmup: int = at_least(0, 0)
    """Steps at the start in which only the critic is trained."""

    device: str = one_of("auto", DEVICES, verl="cuda")
    """Where to compute."""

    nnodes: int = at_least(1, 1)
    """Machines."""

    n_gpus_per_node: int = at_least(1, 1, verl=8)
    """Training processes per machine, one per device."""

    launcher: str = one_of("auto", LAUNCHERS)
    """What starts the processes of a run that has several."""

    balance_batch: bool = True
    """Spread responses over ranks so that each has about the same number of tokens."""

    esi_redundant_time: float = at_least(0, 0)
    """Seconds to spare when the machine's lease ends: the run then saves and stops before a step that might not fit."""

    default_hdfs_dir: str | None = None
    """Folder elsewhere (hdfs://, s3://, ..., or a path) to which checkpoints are copied; resume_mode=auto looks there
    where the run folder has none."""

    del_local_ckpt_after_load: bool = False
    """Delete the local copy of the checkpoint that was resumed from, if there is a copy of it elsewhere."""

    ray_wait_register_center_timeout: int = at_least(300, 1)
    """Seconds to wait for Ray workers to find each other."""

    use_legacy_worker_impl: str = one_of("auto", ("auto", "enable", "disable"))
    """verl's choice between its older and newer worker classes."""

    profile_steps: list[int] | None = setting(None, low=0)
    """Steps to profile; null profiles none."""

    controller_nsight_options: ControllerNsightConfig = section(ControllerNsightConfig)
    """Nsight Systems options of the controller process."""

    worker_nsight_options: WorkerNsightConfig = section(WorkerNsightConfig)
    """Nsight Systems options of the worker processes."""

    npu_profile: NpuProfileConfig = section(NpuProfileConfig)
    """Ascend's profiler, as verl 0.4 wrote it."""


@dataclass
class RayInitConfig:
    """Ray."""

    num_cpus: int | None = at_least(None, 1)
    """CPUs that Ray may use; null means all."""

    timeline_json_file: str | None = None
    """File for Ray's timeline after the run."""

    options: dict[str, Any] = setting({})
    """Further arguments of ray.init."""


@dataclass
class RolloutPoolConfig:
    """Devices of the engine where it has its own (asynchronous training)."""

    nnodes: int = at_least(0, 0)
    """Machines of the engine's own devices."""

    n_gpus_per_node: int = at_least(0, 0)
    """Devices per machine of the engine's own."""

    total_rollout_steps: int | None = at_least(None, 1)
    """Most prompts generated over the whole run; null means total_epochs of data."""

    total_epochs: int | None = at_least(None, 1)
    """Passes over the data by the engine, in the place of trainer.total_epochs."""

    test_freq: int = at_least(-1, -1)
    """Validate every so many weight transfers, in the place of trainer.test_freq; 0 or -1 leaves it to that."""


@dataclass
class AsyncTrainingConfig:
    """Generation and training side by side."""

    mode: str = one_of("sync", ASYNC_MODES)
    """Whether the engine generates while the policy learns."""

    queue_size: int | None = at_least(None, 1)
    """queue: batches generated ahead of the one that is learnt (OpenRLHF: async_queue_size); null leaves it to
    staleness_threshold."""

    staleness_threshold: float = at_least(0.1, 0)
    """queue: how many weight transfers old a batch may be when it is learnt. A fraction allows so for that share of the
    steps between two transfers."""

    trigger_parameter_sync_step: int = at_least(4, 1)
    """queue: steps between two weight transfers to the engine."""

    require_batches: int = at_least(1, 1)
    """queue: mini-batches of a step, where data.train_batch_size is 0."""

    partial_rollout: bool = True
    """queue: interrupt responses at a weight transfer and continue them with the new weights; off waits for them."""

    use_rollout_log_probs: bool = False
    """Take the engine's log-probs as old log-probs (verl's fully asynchronous programs: true). Off, the policy reads
    them, and importance weights are on unless algorithm.rollout_correction says otherwise."""

    compute_prox_log_prob: bool = False
    """use_rollout_log_probs: let the policy read the old log-probs all the same, at the start of the update."""


@dataclass
class TransferQueueConfig:
    """verl's data service between workers."""

    enable: bool = False
    """Move batches through verl's transfer queue."""
