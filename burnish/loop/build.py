"""From the config to a Run. The only place that sees the whole tree; names are resolved before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.algos.advantages import ADVANTAGES
from burnish.algos.kl import KL_CONTROLLERS, KL_ESTIMATORS
from burnish.algos.losses import LOSSES
from burnish.config.async_rules import overlaps
from burnish.config.model_rules import trained_models
from burnish.data.dataset import PromptDataset
from burnish.data.growth import Growth, load_growth
from burnish.data.load import load_train, load_val, train_sampler
from burnish.data.sampler import PromptSampler
from burnish.data.user_sampler import UserSampler
from burnish.errors import UserError, raise_all
from burnish.log.folder import RunFolder
from burnish.log.logger import Loggers
from burnish.loop.backends import check_kernels
from burnish.loop.best import Best
from burnish.loop.correct import Correction
from burnish.loop.export import check_export_dir
from burnish.loop.filter import GroupFilter
from burnish.loop.launch import check_launcher
from burnish.loop.lease import Lease
from burnish.loop.pools import pools
from burnish.loop.roles import Roles, build_roles, check_engine_of, compared_dtype, load_run_tokenizer, policy_source
from burnish.loop.run import Run
from burnish.loop.sampling import training_sampling, validation_sampling
from burnish.loop.schedules import ASYNC_MODES
from burnish.loop.sharing import check_sharing
from burnish.loop.state import RESUME_MODES
from burnish.models.device import pick_device
from burnish.models.head_kernels import check_head_kernel
from burnish.models.load import ModelSource, load_config
from burnish.reward.absent import NoFunction
from burnish.reward.managers import REWARD_MANAGERS, make_scorer
from burnish.reward.model_scorer import Weights
from burnish.reward.sandbox.settings import SandboxSettings
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings
from burnish.reward.shaping import Shaper
from burnish.rollout.engine import ENGINES, Sampling, check_sampling, engine_row
from burnish.training.checkpoint import Checkpoints
from burnish.training.mirror import Mirror

if TYPE_CHECKING:
    from burnish.config import TrainConfig

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Data:
    """Room 1: prompts to train on and to validate with."""

    train: PromptDataset | None
    sampler: PromptSampler | UserSampler | None
    val: PromptDataset | None
    growth: Growth | None = None  # rows made during training

    def notices(self) -> list[str]:
        return self.sampler.notices() if isinstance(self.sampler, UserSampler) else []

    def sources(self) -> set[str]:
        found = [data for data in (self.train, self.val) if data is not None]
        return {source for data in found for source in data.data_sources()}


def build(
    cfg: TrainConfig,
    reward: Callable[..., Any] | None = None,
    dataset: Rows | None = None,
    val_dataset: Rows | None = None,
) -> Run:
    """Names, then files, then rewards, then models: what is cheap to find wrong is found first."""
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
    said = check_sharing(cfg, source)
    tokenizer = load_run_tokenizer(cfg, source)
    data = build_data(cfg, tokenizer, dataset, val_dataset)
    folder = RunFolder(cfg.trainer.default_local_dir)
    check_export_dir(cfg.trainer.export_dir)
    lease = Lease.of(cfg.trainer.esi_redundant_time)
    settings = RewardSettings.of(
        cfg.custom_reward_function, cfg.reward, SandboxSettings.of(cfg.sandbox, cfg.reward_model.sandbox_fusion)
    )
    functions_count = Weights.of(cfg.reward, cfg.reward_model).function != 0
    manager, kwargs = cfg.reward_model.reward_manager, dict(cfg.reward_model.reward_kwargs)
    scorer: Scorer | NoFunction = make_scorer(manager, kwargs, settings, reward) if functions_count else NoFunction()
    try:
        scorer.check_sources(data.sources())
        total = total_steps(cfg, data)
        samplings = _samplings(cfg, source, tokenizer)
        cast = build_roles(cfg, source, device, tokenizer, reward, total)
        cast.notices += said
        return _run(cfg, tokenizer, data, scorer, cast, samplings, loggers, folder, lease, total)
    except BaseException:
        scorer.close()
        raise


def check_names(cfg: TrainConfig) -> None:
    """Every choice by name, looked up before anything is loaded; all wrong ones told at once."""
    wanted = [
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
    for table, name in wanted:
        try:
            table[name]
        except UserError as error:
            errors.append(error)
    raise_all(errors)


def build_data(cfg: TrainConfig, tokenizer: Any, dataset: Rows | None, val_dataset: Rows | None) -> Data:
    seed = cfg.trainer.seed
    wants_val = bool(cfg.data.val_files) or val_dataset is not None
    val = load_val(cfg.data, tokenizer, run_seed=seed, rows=val_dataset) if wants_val else None
    if cfg.trainer.val_only:
        if val is None:
            raise UserError("validation only, but there is nothing to validate", key="trainer.val_only", value=True)
        return Data(None, None, val)
    train = load_train(cfg.data, tokenizer, run_seed=seed, rows=dataset)
    growth = load_growth(cfg.data, train) if cfg.data.datagen.path else None
    return Data(train, train_sampler(cfg.data, train, run_seed=seed), val, growth)


def _samplings(cfg: TrainConfig, source: ModelSource, tokenizer: Any) -> tuple[Sampling, Sampling]:
    """How responses are sampled for training and for validation."""
    rollout = cfg.actor_rollout_ref.rollout
    vocabulary = load_config(source).get_text_config().vocab_size
    validation = validation_sampling(rollout.val_kwargs, rollout, tokenizer, vocabulary)
    training = training_sampling(rollout, tokenizer, vocabulary)
    engine = engine_row(rollout.name, rollout.mode).load()
    check_sampling(engine, training, "actor_rollout_ref.rollout")
    check_sampling(engine, validation, "actor_rollout_ref.rollout.val_kwargs")
    return training, validation


def _run(
    cfg: TrainConfig,
    tokenizer: Any,
    data: Data,
    scorer: Scorer | NoFunction,
    cast: Roles,
    samplings: tuple[Sampling, Sampling],
    loggers: Loggers,
    folder: RunFolder,
    lease: Lease,
    total: int,
) -> Run:
    algorithm = cfg.algorithm
    return Run(
        cfg=cfg,
        tokenizer=tokenizer,
        train_data=data.train,
        sampler=data.sampler,
        val_data=data.val,
        engine=cast.engine,
        sampling=samplings[0],
        val_sampling=samplings[1],
        scorer=scorer,
        policy=cast.policy,
        critic=cast.critic,
        reward_model=cast.reward_model,
        notices=[*cast.notices, *data.notices()],
        reference=cast.reference,
        close_cast=cast.close,
        break_off=cast.kill_hung,
        compared=compared_dtype(cfg),
        estimator=ADVANTAGES[algorithm.adv_estimator],
        kl=KL_CONTROLLERS[algorithm.kl_ctrl.type].load()(
            algorithm.kl_ctrl.kl_coef, algorithm.kl_ctrl.target_kl, algorithm.kl_ctrl.horizon
        ),
        correction=Correction.of(cfg),
        shaper=Shaper.of(cfg),
        filter=GroupFilter.of(cfg),
        loggers=loggers,
        folder=folder,
        checkpoints=Checkpoints(Path(folder.path)),
        total_steps=total,
        schedule=ASYNC_MODES[cfg.async_training.mode].load()(cfg),
        growth=data.growth,
        mirror=Mirror(cfg.trainer.default_hdfs_dir) if cfg.trainer.default_hdfs_dir else None,
        lease=lease,
        best=Best(cfg.trainer.best_metric_key),
    )


def total_steps(cfg: TrainConfig, data: Data) -> int:
    """trainer.total_training_steps, across as many epochs as they take; else total_epochs of full batches.

    Where generation runs ahead, no more than rollout.total_rollout_steps has prompts for.
    """
    if data.sampler is None:
        return 0
    steps = cfg.trainer.total_training_steps or cfg.trainer.total_epochs * data.sampler.batches_per_epoch
    prompts = cfg.rollout.total_rollout_steps if overlaps(cfg) else None
    return steps if prompts is None else min(steps, prompts // cfg.data.train_batch_size)
