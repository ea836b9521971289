"""Build a SftRun from the config of `burnish sft`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from burnish.config.optim import OptimConfig
from burnish.config.ranks import is_single_process, sft_micro_batch_size
from burnish.config.sequence_rules import NAME
from burnish.data.examples import ExampleDataset, load_examples
from burnish.data.find import Finder
from burnish.data.sampler import PromptSampler
from burnish.errors import UserError
from burnish.jobs.sft.run import SftRun
from burnish.log.folder import RunFolder
from burnish.log.logger import Loggers
from burnish.loop.backends import check_kernels, optimizer_options, trained_language_model
from burnish.loop.build import choose_threads
from burnish.loop.build_vision import build_vision
from burnish.loop.experiment import check_same_shape, describe_experiment
from burnish.loop.export import check_export_dir
from burnish.loop.finish import check_finished
from burnish.loop.handles import SftHandle
from burnish.loop.launch import WorkerProgram, check_launcher, launch
from burnish.loop.pools import Pool, describe_pools
from burnish.loop.recompute import plan_sft_recompute
from burnish.loop.state import find_checkpoint
from burnish.models.device import pick_device
from burnish.models.load import ModelSource, load_config, load_tokenizer, read_chat_template
from burnish.models.sequence.method import choose_method
from burnish.profiling.plan import FOLDER, NO_PLAN, ProfilePlan, RoleProfile
from burnish.profiling.process import ProcessProfiler
from burnish.profiling.run import RunProfiler, Target, remote_targets
from burnish.profiling.tools import PROFILERS
from burnish.training.checkpoint import Checkpoints, read_trainer
from burnish.training.export import loadable_path
from burnish.training.mirror import Mirror
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext
from burnish.training.sft import SftModel
from burnish.training.update import UpdatePlan

if TYPE_CHECKING:
    from burnish.config.engine import FsdpConfig
    from burnish.config.sft import SftConfig, SftFsdpConfig, SftOptimConfig

Rows = Sequence[Mapping[str, Any]]
MODEL = "model.partial_pretrain"
ROLE = "model"  # the one role, as workers and recordings name it


def build(
    cfg: SftConfig, dataset: Rows | None = None, val_dataset: Rows | None = None, *, stop_if_finished: bool = False
) -> SftRun:
    """Check what is cheap to check first: names, then files, then the model.

    With `stop_if_finished`, raises AlreadyFinished where the run folder holds this run, with all its steps done.
    """
    check_launcher(cfg, pools(cfg))
    device = pick_device(cfg.trainer.device)
    check_kernels({"model": cfg.model}, cfg.model.use_liger, device)
    loggers = Loggers(cfg.trainer.logger)
    check_export_dir(cfg.trainer.export_dir)
    source = model_source(cfg)
    layout = check_sequence_parallel(cfg, source)
    cfg, planned = plan_sft_recompute(cfg, source, device)
    data = cfg.data
    tokenizer = load_job_tokenizer(cfg, source)
    vision = build_vision(cfg, source, tokenizer)
    train_finder = Finder("data.train_files", data.train_split, data.use_shm, tokenizer=tokenizer)
    train = load_examples(data, train_finder, data.train_files, data.train_max_samples, dataset, vision)
    val: ExampleDataset | None = None
    if data.val_files or val_dataset is not None:
        val_finder = Finder("data.val_files", data.val_split, data.use_shm, tokenizer=tokenizer)
        val = load_examples(data, val_finder, data.val_files, data.val_max_samples, val_dataset, vision)
    sampler = PromptSampler(len(train), data.train_batch_size, shuffle=True, seed=cfg.trainer.seed)
    total = cfg.trainer.total_training_steps or cfg.trainer.total_epochs * sampler.batches_per_epoch
    folder = RunFolder(cfg.trainer.default_local_dir)
    val_notices = [] if val is None else val.notices
    notices = [*train.notices, *val_notices, *sampler.notices(), *choose_threads(folder), *layout, *planned]
    run = SftRun(
        cfg=cfg,
        tokenizer=tokenizer,
        train_data=train,
        sampler=sampler,
        val_data=val,
        loggers=loggers,
        folder=folder,
        checkpoints=Checkpoints(Path(folder.path)),
        total_steps=total,
        mirror=Mirror(cfg.trainer.default_hdfs_dir) if cfg.trainer.default_hdfs_dir else None,
        experiment=describe_experiment(
            cfg,
            "sft",
            {"data.train_files": train.fingerprint, "data.val_files": None if val is None else val.fingerprint},
        ),
        notices=notices,
    )
    find_start(run, source, stop_if_finished=stop_if_finished)
    plan = profile_plan(cfg)
    for profile in plan.roles:
        PROFILERS[profile.tool].load().check(device, profile)
    with loggers.activity("loading the model"):
        place_model(run, source, device)
    if plan.roles:
        targets: list[Target] = [*remote_targets(plan, run.workers.groups)]
        run.profiler = RunProfiler(plan, targets or [ProcessProfiler(plan, 0, device)], loggers.note)
        run.clock.observe = run.profiler.phase
    return run


def place_model(run: SftRun, source: ModelSource, device: torch.device) -> None:
    """Load the model in this process, or start the ranks that do."""
    cfg, run_pools = run.cfg, pools(run.cfg)
    if not run_pools:
        run.model = build_model(cfg, source, device, run.total_steps)
        return
    program = WorkerProgram("burnish.jobs.sft.worker:SftWorker", (run.total_steps,), cfg.trainer.experiment_name)
    run.workers = launch(cfg, run_pools, program)
    run.model = SftHandle(run.workers.groups[ROLE], ROLE)
    run.notices += [describe_pools(run_pools, device), *run.workers.notices]


def pools(cfg: SftConfig) -> list[Pool]:
    """[] where the run is a single process."""
    return [] if is_single_process(cfg) else [Pool("trainer", cfg.trainer.nnodes, cfg.trainer.n_gpus_per_node, (ROLE,))]


def check_sequence_parallel(cfg: SftConfig, source: ModelSource) -> list[str]:
    """Raise where the ranks of ulysses_sequence_parallel_size cannot share the model's heads; returns notices."""
    config, size = load_config(source), cfg.ulysses_sequence_parallel_size
    return [choose_method(config, size, NAME).notice] if size > 1 else []


def load_job_tokenizer(cfg: SftConfig, source: ModelSource) -> Any:
    """The model's tokenizer, with data.chat_template if that is set."""
    tokenizer = load_tokenizer(source.checked_path(), trust_remote_code=source.trust_remote_code, key=MODEL)
    if cfg.data.chat_template is not None:
        tokenizer.chat_template = read_chat_template(cfg.data.chat_template, "data.chat_template")
    return tokenizer


def profile_plan(cfg: SftConfig) -> ProfilePlan:
    """What is profiled: the whole of each profiled step."""
    if not cfg.trainer.profile_steps:
        return NO_PLAN
    profiler, folder = cfg.profiler, Path(cfg.trainer.default_local_dir) / FOLDER
    folder = folder if profiler.save_path is None else Path(profiler.save_path)
    role = RoleProfile(ROLE, profiler.tool, folder, contents=frozenset(profiler.contents))
    return ProfilePlan(frozenset(cfg.trainer.profile_steps), roles=(role,))


def find_start(run: SftRun, source: ModelSource, *, stop_if_finished: bool) -> None:
    """Find the checkpoint to resume from, and refuse one of another experiment, before the model is loaded."""
    run.resume_from = checkpoint = find_checkpoint(run)
    step = None
    if isinstance(checkpoint, Path):
        step = read_trainer(checkpoint)["step"]
        check_same_shape(checkpoint, load_config(source).to_dict(), source.key, source.path)
    if stop_if_finished and run.trainer.resume_mode == "auto":
        check_finished(run, step, run.total_steps)


def model_source(cfg: SftConfig) -> ModelSource:
    model = cfg.model
    if not model.partial_pretrain:
        raise UserError("no model is set", key=MODEL, hint=f"{MODEL}=Qwen/Qwen2.5-0.5B")
    return ModelSource(
        path=loadable_path(model.partial_pretrain, MODEL),
        key=MODEL,
        override_config=dict(model.override_config),
        external_lib=tuple(model.external_lib),
        trust_remote_code=model.trust_remote_code,
        use_shm=model.use_shm,
    )


def build_model(
    cfg: SftConfig,
    source: ModelSource,
    device: torch.device,
    total_steps: int,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> SftModel:
    data, fsdp = cfg.data, fsdp_config(cfg.model.fsdp_config)
    backend = trained_language_model(
        source,
        cfg.model,
        fsdp,
        "model.fsdp_config",
        device,
        torch_dtype=None,
        liger=cfg.model.use_liger,
        freeze_tower="model.freeze_vision_tower" if cfg.model.freeze_vision_tower else None,
        seed=cfg.trainer.seed,
        parallel=parallel,
    )
    micro_batch = MicroBatchSize.of(sft_micro_batch_size(cfg), data.use_dynamic_bsz, data.max_token_len_per_gpu)
    plan = UpdatePlan(
        epochs=1,
        mini_rows=data.train_batch_size,
        micro_batch=micro_batch.for_device(device),
        grad_clip=cfg.optim.clip_grad,
    )
    backend.create_optimizer(optimizer_config(cfg.optim), total_steps, 1, optimizer_options(fsdp, backend))
    return SftModel(backend, plan, seed=cfg.trainer.seed)


def fsdp_config(fsdp: SftFsdpConfig) -> FsdpConfig:
    """Map cpu_offload, verl's older name, to offload_policy."""
    return replace(fsdp, offload_policy=fsdp.offload_policy or fsdp.cpu_offload)


def optimizer_config(optim: SftOptimConfig) -> OptimConfig:
    """The optimizer settings under the key names of RL training."""
    return OptimConfig(
        lr=optim.lr,
        betas=list(optim.betas),
        weight_decay=optim.weight_decay,
        decay_matrices_only=optim.decay_matrices_only,
        lr_warmup_steps=optim.lr_warmup_steps,
        lr_warmup_steps_ratio=optim.warmup_steps_ratio,
        warmup_style=optim.lr_scheduler,
        min_lr_ratio=optim.min_lr_ratio,
        num_cycles=optim.num_cycles,
    )
