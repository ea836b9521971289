"""From the config to a Run. Only this package reads the root config; names are checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from burnish.algos.advantages import ADVANTAGES
from burnish.algos.kl import KL_CONTROLLERS, KL_ESTIMATORS
from burnish.algos.losses import LOSSES
from burnish.algos.shaping import SCORE_NORMALIZERS
from burnish.config.model_rules import trained_models
from burnish.config.ranks import engine_size
from burnish.data.sampler import validation_batches
from burnish.errors import UserError, raise_all
from burnish.log.clock import Clock
from burnish.log.folder import RunFolder, persistent_id
from burnish.log.gauges import GaugeLogger
from burnish.log.logger import Loggers, RunInfo
from burnish.log.pictures import PictureWriter
from burnish.log.rollout_writer import RolloutWriter
from burnish.log.timeline import Timeline
from burnish.log.tokens import TokenWriter
from burnish.loop.backends import check_kernels
from burnish.loop.best import Best
from burnish.loop.build_agents import build_episode, build_toolbox, check_rows, prompt_schemas
from burnish.loop.build_data import Data, Rows, build_data, total_steps
from burnish.loop.build_engine import check_engine_of, compared_dtype, engine_mode, eos_ids
from burnish.loop.build_vision import build_vision, engines_for_pictures
from burnish.loop.correct import Correction
from burnish.loop.endpoint import build_endpoint
from burnish.loop.experiment import check_same_shape, describe_experiment
from burnish.loop.export import check_export_dir
from burnish.loop.finish import check_finished
from burnish.loop.invariant import invariant_notices
from burnish.loop.journal import FOLDER as JOURNAL
from burnish.loop.journal import Journals
from burnish.loop.launch import check_launcher, check_transport, open_cluster
from burnish.loop.learner import Learner
from burnish.loop.lease import Lease
from burnish.loop.memory import explain
from burnish.loop.pools import pools
from burnish.loop.profiling import check_profiling, run_profiler
from burnish.loop.recompute import plan_recompute
from burnish.loop.recorder import Recorder
from burnish.loop.reward_nodes import reward_nodes
from burnish.loop.roles import Roles, build_roles, load_run_tokenizer, policy_source
from burnish.loop.rollout import Rollout
from burnish.loop.run import Run
from burnish.loop.sampling import check_over_sampling, decoder, training_sampling, validation_sampling
from burnish.loop.schedules import ASYNC_MODES
from burnish.loop.sharing import check_sharing, engine_notices
from burnish.loop.state import RESUME_MODES, find_checkpoint
from burnish.loop.tool_nodes import tool_nodes
from burnish.loop.tracing import build_tracer
from burnish.models.device import limit_cpu_threads, pick_device, restore_cpu_threads
from burnish.models.head_kernels import check_head_kernel
from burnish.models.load import ModelSource, load_config, load_generation_config
from burnish.profiling.run import RunProfiler
from burnish.reward.group_filter import GroupFilter
from burnish.reward.managers import REWARD_MANAGERS, make_scorer
from burnish.reward.model_scorer import ScoreWeights
from burnish.reward.null_scorer import NullScorer
from burnish.reward.sandbox.settings import SandboxSettings
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings
from burnish.reward.shaping import Overlong, Shaper
from burnish.reward.trajectories import TrajectoryScorer
from burnish.rollout.engine import ENGINES, Sampling, check_sampling, engine_row
from burnish.rollout.episode import Episode
from burnish.training.checkpoint import Checkpoints, read_trainer
from burnish.training.mirror import Mirror

if TYPE_CHECKING:
    from burnish.config import TrainConfig


def build(
    cfg: TrainConfig,
    reward: Callable[..., Any] | None = None,
    dataset: Rows | None = None,
    val_dataset: Rows | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    environment: Any = None,
    *,
    stop_if_finished: bool = False,
) -> Run:
    """Check names, then files, then rewards, and load models last: cheap errors come first.

    With `stop_if_finished`, raises AlreadyFinished where the run folder holds this run, with all its steps done.
    """
    device = check_machine(cfg)
    loggers = Loggers(cfg.trainer.logger)
    source = policy_source(cfg)
    notices = check_sharing(cfg, source)
    tokenizer = load_run_tokenizer(cfg, source)
    toolbox = build_toolbox(cfg, tools, tool_nodes(cfg, open_cluster))
    with ExitStack() as undo:  # where the build fails
        undo.callback(toolbox.close)
        eos = eos_ids(load_generation_config(source), tokenizer)
        vision = build_vision(cfg, source, tokenizer)
        agents = {"environment": environment, "has_reward": has_reward_function(cfg, reward), "vision": vision}
        episode, told = build_episode(cfg, toolbox, tokenizer, eos, **agents)
        notices += told
        with loggers.activity("loading the data"):
            data = build_data(cfg, tokenizer, dataset, val_dataset, prompt_schemas(cfg, toolbox), vision)
        check_rows(cfg, episode, data.datasets())
        if data.has_pictures:
            cfg, told = engines_for_pictures(cfg, source, device)
            notices += told
        notices += engine_notices(cfg)
        cfg, told = plan_recompute(cfg, source, device)
        notices += [*told, *invariant_notices(cfg, source, device)]
        folder = RunFolder(cfg.trainer.default_local_dir)
        notices += choose_threads(folder)
        check_export_dir(cfg.trainer.export_dir)
        lease = Lease.of(cfg.trainer.esi_redundant_time)
        scorer = build_scorer(cfg, reward, folder.path / "reward.log")
        undo.callback(scorer.close)
        info = RunInfo(cfg.trainer.project_name, cfg.trainer.experiment_name, folder.path)
        tracer = build_tracer(cfg.actor_rollout_ref.rollout, info, tokenizer.decode, loggers.note)
        if not episode.scores:
            scorer.check_sources(data.sources())
        data.pass_rows_to(scorer, episode)
        data.with_rows_for(toolbox)
        total = total_steps(cfg, data)
        recorder = build_recorder(cfg, tokenizer, loggers, folder, lease)
        recorder.experiment = describe_experiment(cfg, "train", data.fingerprints(), reward)
        find_start(cfg, source, recorder, total, stop_if_finished=stop_if_finished)
        samplings = _samplings(cfg, source, tokenizer)
        with loggers.activity("loading models and the engine"):
            roles = build_roles(cfg, source, device, tokenizer, reward, total)
        if roles.make_gauge is not None:
            loggers.add("ray", GaugeLogger(roles.make_gauge))
        clock, shaper = Clock(), build_shaper(cfg)
        rollout = build_rollout(cfg, data, roles, episode, scorer, tokenizer, samplings, shaper, clock)
        if episode.uses_session:
            rollout.journals = open_journals(cfg, recorder)
        rollout.close_tools, rollout.tracer = toolbox.close, tracer
        learner = build_learner(cfg, roles, shaper, clock)
        profiler = run_profiler(cfg, roles.local(), roles.groups, device, loggers.note, clock)
        left_out = data.notices(full_batches=rollout.filter is None)
        recorder.notices += [*roles.notices, *left_out, *notices, *toolbox.notices]
        undo.pop_all()  # the run closes them
        return _assemble(cfg, roles, rollout, learner, recorder, clock, profiler, total)


def _assemble(
    cfg: TrainConfig,
    roles: Roles,
    rollout: Rollout,
    learner: Learner,
    recorder: Recorder,
    clock: Clock,
    profiler: RunProfiler,
    total: int,
) -> Run:
    return Run(
        rollout=rollout,
        learner=learner,
        recorder=recorder,
        schedule=ASYNC_MODES[cfg.async_training.mode].load()(rollout, learner, total, cfg.async_training),
        clock=clock,
        profiler=profiler,
        total_steps=total,
        explain_out_of_memory=partial(explain, cfg),
        close_workers=roles.close,
        kill_hung_workers=roles.kill_hung,
        take_worker_spans=roles.take_spans,
        take_transport=roles.take_transport,
    )


def check_machine(cfg: TrainConfig) -> torch.device:
    """What can be checked before anything is loaded: names, and whether this machine can run them."""
    check_names(cfg)
    check_launcher(cfg, pools(cfg))
    check_transport(cfg)
    device = pick_device(cfg.trainer.device)
    check_profiling(cfg, device)
    check_engine_of(cfg.actor_rollout_ref.rollout, device, shared=engine_size(cfg) > 1)
    check_model_kernels(cfg, device)
    return device


def check_model_kernels(cfg: TrainConfig, device: torch.device) -> None:
    """UserError where the device lacks a kernel that the config chooses."""
    model = cfg.actor_rollout_ref.model
    check_kernels(dict(trained_models(cfg)), model.use_liger, device)
    key = "actor_rollout_ref.model.fused_kernel_options.impl_backend"
    check_head_kernel(model.fused_kernel_options.impl_backend, device, key)


def open_journals(cfg: TrainConfig, recorder: Recorder) -> Journals:
    """Of conversations; a run that starts anew forgets those of the folder."""
    journals = Journals(recorder.folder.path / JOURNAL, recorder.experiment)
    if cfg.trainer.resume_mode == "disable":
        journals.clear()
    return journals


def find_start(
    cfg: TrainConfig, source: ModelSource, recorder: Recorder, total: int, *, stop_if_finished: bool
) -> None:
    """Find the checkpoint to resume from, and refuse one of another experiment, before models are loaded."""
    recorder.resume_from = checkpoint = find_checkpoint(recorder)
    step = None
    if isinstance(checkpoint, Path):
        step = read_trainer(checkpoint)["step"]
        check_same_shape(checkpoint, load_config(source).to_dict(), source.key, source.path)
    if stop_if_finished and cfg.trainer.resume_mode == "auto" and not cfg.trainer.val_only:
        check_finished(recorder, step, total)


def choose_threads(folder: RunFolder) -> list[str]:
    """Limit torch's CPU threads; a resumed run keeps its number, so that no bit of its results changes."""
    notice = limit_cpu_threads()
    has_checkpoint = next(folder.path.glob("global_step_*"), None) is not None
    threads = persistent_id(folder.path, "threads", lambda: str(torch.get_num_threads()), resume=has_checkpoint)
    if not threads.isdigit() or not restore_cpu_threads(int(threads)):
        return [] if notice is None else [notice]
    return [f"CPU threads: {threads}, as when the run started (OMP_NUM_THREADS=N sets them)"]


def check_names(cfg: TrainConfig) -> None:
    """Look up every choice by name before anything is loaded; report all wrong ones at once."""
    choices = [
        (ADVANTAGES, cfg.algorithm.adv_estimator),
        (LOSSES, cfg.actor_rollout_ref.actor.policy_loss.loss_mode),
        (ENGINES, cfg.actor_rollout_ref.rollout.name),
        (REWARD_MANAGERS, cfg.reward_model.reward_manager),
        (KL_CONTROLLERS, cfg.algorithm.kl_ctrl.type),
        (KL_ESTIMATORS, cfg.algorithm.kl_penalty),
        (KL_ESTIMATORS, cfg.actor_rollout_ref.actor.kl_loss_type),
        (RESUME_MODES, cfg.trainer.resume_mode),
        (ASYNC_MODES, cfg.async_training.mode),
    ]
    errors = []
    for registry, name in choices:
        try:
            registry[name]
        except UserError as error:
            errors.append(error)
    raise_all(errors)


def has_reward_function(cfg: TrainConfig, reward: Callable[..., Any] | None) -> bool:
    """Whether the user has chosen how responses are scored; otherwise an agent's own rewards are enough."""
    return bool(reward or cfg.custom_reward_function.path or cfg.reward.verifiers or cfg.reward.remote_url)


def build_scorer(cfg: TrainConfig, reward: Callable[..., Any] | None, log_path: Path) -> Scorer | NullScorer:
    """The reward function in its workers; none where only a reward model's score counts."""
    if ScoreWeights.of(cfg.reward, cfg.reward_model).function == 0:
        return NullScorer()
    sandbox = SandboxSettings.of(cfg.sandbox, cfg.reward_model.sandbox_fusion)
    settings = RewardSettings.of(cfg.custom_reward_function, cfg.reward, sandbox)
    pool = None
    if cfg.ray_init.reward_nodes:
        prefix, timeout = f"burnish/{cfg.trainer.experiment_name}/reward", cfg.trainer.ray_wait_register_center_timeout
        pool = reward_nodes(partial(open_cluster, cfg), cfg.ray_init.reward_nodes, prefix, timeout)
    settings = replace(settings, log_path=str(log_path), pool=pool)
    return make_scorer(cfg.reward_model.reward_manager, dict(cfg.reward_model.reward_kwargs), settings, reward)


def build_shaper(cfg: TrainConfig) -> Shaper:
    reward, buffer = cfg.reward, cfg.reward_model.overlong_buffer
    overlong = None
    if buffer.enable:
        max_length = buffer.max_resp_len or cfg.data.max_response_length
        overlong = Overlong(max_length, buffer.len, buffer.penalty_factor, buffer.log)
    return Shaper(
        overlong,
        reward.stop_properly_penalty,
        reward.scale,
        SCORE_NORMALIZERS[reward.normalize].load()() if reward.normalize else None,
        (reward.clip_range[0], reward.clip_range[1]) if reward.clip_range else None,
    )


def build_group_filter(cfg: TrainConfig, shaper: Shaper) -> GroupFilter | None:
    """None where every group is kept."""
    config, num_groups = cfg.algorithm.filter_groups, cfg.data.train_batch_size
    return GroupFilter(config, num_groups, cfg.data.gen_batch_size or num_groups, shaper) if config.enable else None


def build_rollout(
    cfg: TrainConfig,
    data: Data,
    roles: Roles,
    episode: Episode,
    scorer: Scorer | NullScorer,
    tokenizer: Any,
    samplings: tuple[Sampling, Sampling],
    shaper: Shaper,
    clock: Clock,
) -> Rollout:
    rollout, trainer = cfg.actor_rollout_ref.rollout, cfg.trainer
    check_over_sampling(cfg)
    group_filter = build_group_filter(cfg, shaper)
    ends_by_epochs = group_filter is not None and trainer.total_training_steps is None
    val_batches: list[list[int]] = []
    if data.val is not None:
        shuffle, size = cfg.data.validation_shuffle, cfg.data.val_batch_size
        val_batches = list(validation_batches(len(data.val), size, shuffle, trainer.seed))
    return Rollout(
        engine=roles.engine,
        episode=episode,
        scorer=TrajectoryScorer(scorer, decoder(tokenizer), tokenizer.decode),
        reward_model=roles.reward_model,
        train_data=data.train,
        val_data=data.val,
        sampler=data.sampler,
        sampling=samplings[0],
        val_sampling=samplings[1],
        n=rollout.n,
        val_n=rollout.val_kwargs.n,
        val_batches=val_batches,
        seed=trainer.seed,
        clock=clock,
        filter=group_filter,
        over_sample_rate=rollout.over_sample_rate,
        growth=data.growth,
        greedy_baseline="greedy" in ADVANTAGES[cfg.algorithm.adv_estimator].needs,
        max_epochs=trainer.total_epochs if ends_by_epochs else None,
        replay_dir=rollout.skip_dump_dir if rollout.skip_rollout else None,
        verify_dtype=compared_dtype(cfg),
        sleeps=rollout.free_cache_engine,
    )


def build_learner(cfg: TrainConfig, roles: Roles, shaper: Shaper, clock: Clock) -> Learner:
    algorithm = cfg.algorithm
    controller = KL_CONTROLLERS[algorithm.kl_ctrl.type].load()
    return Learner(
        policy=roles.policy,
        critic=roles.critic,
        reference=roles.reference,
        reward_model=roles.reward_model,
        estimator=ADVANTAGES[algorithm.adv_estimator],
        algorithm=algorithm,
        kl=controller(algorithm.kl_ctrl.kl_coef, algorithm.kl_ctrl.target_kl, algorithm.kl_ctrl.horizon),
        shaper=shaper,
        correction=Correction.of(algorithm.rollout_correction, cfg.actor_rollout_ref.actor.tis_imp_ratio_cap),
        critic_warmup=cfg.trainer.critic_warmup,
        seed=cfg.trainer.seed,
        clock=clock,
    )


def build_recorder(cfg: TrainConfig, tokenizer: Any, loggers: Loggers, folder: RunFolder, lease: Lease) -> Recorder:
    rollout, trainer = cfg.actor_rollout_ref.rollout, cfg.trainer
    if (endpoint := build_endpoint(cfg, folder.path)) is not None:
        loggers.add("metrics", endpoint)
    return Recorder(
        trainer=trainer,
        actor_checkpoint=cfg.actor_rollout_ref.actor.checkpoint,
        critic_checkpoint=cfg.critic.checkpoint,
        tokenizer=tokenizer,
        loggers=loggers,
        folder=folder,
        checkpoints=Checkpoints(Path(folder.path)),
        lease=lease,
        best=Best(trainer.best_metric_key),
        texts=RolloutWriter(trainer.rollout_data_dir or folder.rollouts),
        tokens=TokenWriter(folder.tokens, trainer.rollout_keep, tokenizer),
        pictures=PictureWriter(folder.pictures) if trainer.rollout_keep != 0 else None,
        timeline=Timeline(folder.timeline),
        mirror=Mirror(trainer.default_hdfs_dir) if trainer.default_hdfs_dir else None,
        max_prompt_length=cfg.data.max_prompt_length,
        max_response_length=rollout.response_length,
        log_engine_stats=rollout.prometheus.enable or not rollout.disable_log_stats,
    )


def _samplings(cfg: TrainConfig, source: ModelSource, tokenizer: Any) -> tuple[Sampling, Sampling]:
    """Sampling settings of training and of validation."""
    rollout = cfg.actor_rollout_ref.rollout
    vocab_size = load_config(source).get_text_config().vocab_size
    validation = validation_sampling(rollout.val_kwargs, rollout, tokenizer, vocab_size)
    training = training_sampling(rollout, tokenizer, vocab_size)
    engine = engine_row(rollout.name, engine_mode(rollout, engine_size(cfg) > 1)).load()
    check_sampling(engine, training, "actor_rollout_ref.rollout")
    check_sampling(engine, validation, "actor_rollout_ref.rollout.val_kwargs")
    return training, validation
