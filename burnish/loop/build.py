"""From the config to a Run. Only this package reads the root config; names are checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.algos.advantages import ADVANTAGES
from burnish.algos.kl import KL_CONTROLLERS, KL_ESTIMATORS
from burnish.algos.losses import LOSSES
from burnish.algos.shaping import SCORE_NORMALIZERS
from burnish.config.async_rules import is_async
from burnish.config.model_rules import trained_models
from burnish.data.datagen import RowGenerator, load_row_generator
from burnish.data.dataset import PromptDataset
from burnish.data.load import load_train, load_val, train_sampler
from burnish.data.sampler import PromptSampler, validation_batches
from burnish.data.user_sampler import UserSampler
from burnish.errors import UserError, raise_all
from burnish.log.clock import Clock
from burnish.log.folder import RunFolder
from burnish.log.logger import Loggers
from burnish.loop.backends import check_kernels
from burnish.loop.best import Best
from burnish.loop.correct import Correction
from burnish.loop.export import check_export_dir
from burnish.loop.launch import check_launcher
from burnish.loop.learner import Learner
from burnish.loop.lease import Lease
from burnish.loop.memory import explain
from burnish.loop.pools import pools
from burnish.loop.recorder import Recorder
from burnish.loop.roles import Roles, build_roles, check_engine_of, compared_dtype, load_run_tokenizer, policy_source
from burnish.loop.rollout import Rollout
from burnish.loop.run import Run
from burnish.loop.sampling import decoder, training_sampling, validation_sampling
from burnish.loop.schedules import ASYNC_MODES
from burnish.loop.sharing import check_sharing
from burnish.loop.state import RESUME_MODES
from burnish.models.device import pick_device
from burnish.models.head_kernels import check_head_kernel
from burnish.models.load import ModelSource, load_config
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
from burnish.rollout.episode import SingleTurn
from burnish.training.checkpoint import Checkpoints
from burnish.training.mirror import Mirror

if TYPE_CHECKING:
    from burnish.config import TrainConfig

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Data:
    """Prompts to train on and to validate with."""

    train: PromptDataset | None
    sampler: PromptSampler | UserSampler | None
    val: PromptDataset | None
    growth: RowGenerator | None = None  # rows generated during training

    def notices(self) -> list[str]:
        return self.sampler.notices() if isinstance(self.sampler, UserSampler) else []

    def sources(self) -> set[str]:
        datasets = [data for data in (self.train, self.val) if data is not None]
        return {source for data in datasets for source in data.data_sources()}


def build(
    cfg: TrainConfig,
    reward: Callable[..., Any] | None = None,
    dataset: Rows | None = None,
    val_dataset: Rows | None = None,
) -> Run:
    """Check names, then files, then rewards, and load models last: cheap errors come first."""
    check_names(cfg)
    check_launcher(cfg, pools(cfg))
    device = pick_device(cfg.trainer.device)
    check_engine_of(cfg.actor_rollout_ref.rollout, device)
    loggers = Loggers(cfg.trainer.logger)
    source = policy_source(cfg)
    check_kernels(dict(trained_models(cfg)), cfg.actor_rollout_ref.model.use_liger, device)
    check_head_kernel(
        cfg.actor_rollout_ref.model.fused_kernel_options.impl_backend,
        device,
        "actor_rollout_ref.model.fused_kernel_options.impl_backend",
    )
    notices = check_sharing(cfg, source)
    tokenizer = load_run_tokenizer(cfg, source)
    data = build_data(cfg, tokenizer, dataset, val_dataset)
    folder = RunFolder(cfg.trainer.default_local_dir)
    check_export_dir(cfg.trainer.export_dir)
    lease = Lease.of(cfg.trainer.esi_redundant_time)
    scorer = build_scorer(cfg, reward)
    try:
        scorer.check_sources(data.sources())
        total = total_steps(cfg, data)
        samplings = _samplings(cfg, source, tokenizer)
        roles = build_roles(cfg, source, device, tokenizer, reward, total)
        clock, shaper = Clock(), build_shaper(cfg)
        rollout = build_rollout(cfg, data, roles, scorer, tokenizer, samplings, shaper, clock)
        learner = build_learner(cfg, roles, shaper, clock)
        recorder = build_recorder(cfg, tokenizer, loggers, folder, lease)
        recorder.notices += [*roles.notices, *data.notices(), *notices]
        return Run(
            rollout=rollout,
            learner=learner,
            recorder=recorder,
            schedule=ASYNC_MODES[cfg.async_training.mode].load()(rollout, learner, total, cfg.async_training),
            clock=clock,
            total_steps=total,
            explain_out_of_memory=partial(explain, cfg),
            close_workers=roles.close,
            kill_hung_workers=roles.kill_hung,
        )
    except BaseException:
        scorer.close()
        raise


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


def build_data(cfg: TrainConfig, tokenizer: Any, dataset: Rows | None, val_dataset: Rows | None) -> Data:
    seed = cfg.trainer.seed
    has_val = bool(cfg.data.val_files) or val_dataset is not None
    val = load_val(cfg.data, tokenizer, run_seed=seed, rows=val_dataset) if has_val else None
    if cfg.trainer.val_only:
        if val is None:
            raise UserError("there is no validation data", key="trainer.val_only", value=True)
        return Data(None, None, val)
    train = load_train(cfg.data, tokenizer, run_seed=seed, rows=dataset)
    growth = load_row_generator(cfg.data, train) if cfg.data.datagen.path else None
    return Data(train, train_sampler(cfg.data, train, run_seed=seed), val, growth)


def build_scorer(cfg: TrainConfig, reward: Callable[..., Any] | None) -> Scorer | NullScorer:
    """The reward function in its workers; none where only a reward model's score counts."""
    if ScoreWeights.of(cfg.reward, cfg.reward_model).function == 0:
        return NullScorer()
    sandbox = SandboxSettings.of(cfg.sandbox, cfg.reward_model.sandbox_fusion)
    settings = RewardSettings.of(cfg.custom_reward_function, cfg.reward, sandbox)
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
    scorer: Scorer | NullScorer,
    tokenizer: Any,
    samplings: tuple[Sampling, Sampling],
    shaper: Shaper,
    clock: Clock,
) -> Rollout:
    rollout, trainer = cfg.actor_rollout_ref.rollout, cfg.trainer
    group_filter = build_group_filter(cfg, shaper)
    ends_by_epochs = group_filter is not None and trainer.total_training_steps is None
    val_batches: list[list[int]] = []
    if data.val is not None:
        shuffle, size = cfg.data.validation_shuffle, cfg.data.val_batch_size
        val_batches = list(validation_batches(len(data.val), size, shuffle, trainer.seed))
    return Rollout(
        engine=roles.engine,
        episode=SingleTurn(),
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
        mirror=Mirror(trainer.default_hdfs_dir) if trainer.default_hdfs_dir else None,
        max_prompt_length=cfg.data.max_prompt_length,
        max_response_length=rollout.response_length,
        log_engine_stats=not rollout.disable_log_stats,
    )


def _samplings(cfg: TrainConfig, source: ModelSource, tokenizer: Any) -> tuple[Sampling, Sampling]:
    """Sampling settings of training and of validation."""
    rollout = cfg.actor_rollout_ref.rollout
    vocab_size = load_config(source).get_text_config().vocab_size
    validation = validation_sampling(rollout.val_kwargs, rollout, tokenizer, vocab_size)
    training = training_sampling(rollout, tokenizer, vocab_size)
    engine = engine_row(rollout.name, rollout.mode).load()
    check_sampling(engine, training, "actor_rollout_ref.rollout")
    check_sampling(engine, validation, "actor_rollout_ref.rollout.val_kwargs")
    return training, validation


def total_steps(cfg: TrainConfig, data: Data) -> int:
    """trainer.total_training_steps, over as many epochs as they take; else total_epochs of full batches.

    Asynchronous schedules stop at rollout.total_rollout_steps prompts.
    """
    if data.sampler is None:
        return 0
    steps = cfg.trainer.total_training_steps or cfg.trainer.total_epochs * data.sampler.batches_per_epoch
    prompts = cfg.rollout.total_rollout_steps if is_async(cfg) else None
    return steps if prompts is None else min(steps, prompts // cfg.data.train_batch_size)
