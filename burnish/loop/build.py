"""From the config to a Run. The only place that sees the whole tree; names are resolved before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from burnish.algos.advantages import ADVANTAGES
from burnish.algos.kl import KL_CONTROLLERS, KL_ESTIMATORS
from burnish.algos.losses import LOSSES
from burnish.data.dataset import PromptDataset
from burnish.data.load import load_train, load_val, train_sampler
from burnish.data.sampler import PromptSampler
from burnish.errors import UserError, raise_all
from burnish.log.folder import RunFolder
from burnish.log.logger import Loggers
from burnish.loop.roles import build_critic, build_engine, build_policy, build_reference, policy_source
from burnish.loop.run import Run
from burnish.loop.state import RESUME_MODES
from burnish.models.device import pick_device
from burnish.models.load import ModelSource, load_config, load_tokenizer
from burnish.reward.managers import REWARD_MANAGERS
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings
from burnish.rollout.engine import ENGINES, Sampling
from burnish.train.checkpoint import Checkpoints

if TYPE_CHECKING:
    from burnish.config import RolloutConfig, TrainConfig, ValKwargsConfig

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Data:
    """Room 1: prompts to train on and to validate with."""

    train: PromptDataset | None
    sampler: PromptSampler | None
    val: PromptDataset | None

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
    device = pick_device(cfg.trainer.device)
    loggers = Loggers(cfg.trainer.logger)
    source = policy_source(cfg)
    load_config(source)
    tokenizer = load_tokenizer(
        cfg.data.tokenizer or source.tokenizer_path or source.checked_path(),
        trust_remote_code=cfg.data.trust_remote_code or source.trust_remote_code,
        key="data.tokenizer" if cfg.data.tokenizer else source.key,
    )
    data = build_data(cfg, tokenizer, dataset, val_dataset)
    folder = RunFolder(cfg.trainer.default_local_dir)
    settings = RewardSettings.of(cfg.custom_reward_function, cfg.reward)
    scorer: Scorer = REWARD_MANAGERS[cfg.reward_model.reward_manager].load()(settings, reward)
    try:
        scorer.check_sources(data.sources())
        return _build_models(cfg, device, source, tokenizer, data, scorer, loggers, folder)
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
    return Data(train, train_sampler(cfg.data, len(train), run_seed=seed), val)


def _build_models(
    cfg: TrainConfig,
    device: torch.device,
    source: ModelSource,
    tokenizer: Any,
    data: Data,
    scorer: Scorer,
    loggers: Loggers,
    folder: RunFolder,
) -> Run:
    rollout, algorithm = cfg.actor_rollout_ref.rollout, cfg.algorithm
    estimator = ADVANTAGES[algorithm.adv_estimator]
    total = total_steps(cfg, data)
    policy = build_policy(cfg, source, device, total)
    wants_critic = "values" in estimator.needs if cfg.critic.enable is None else cfg.critic.enable
    wants_reference = cfg.actor_rollout_ref.actor.use_kl_loss or algorithm.use_kl_in_reward
    return Run(
        cfg=cfg,
        tokenizer=tokenizer,
        train_data=data.train,
        sampler=data.sampler,
        val_data=data.val,
        engine=build_engine(cfg, source, device, policy.backend, tokenizer),
        sampling=sampling_of(rollout, rollout),
        val_sampling=sampling_of(rollout.val_kwargs, rollout),
        scorer=scorer,
        policy=policy,
        critic=build_critic(cfg, device, total) if wants_critic else None,
        reference=build_reference(cfg, source, device) if wants_reference else None,
        estimator=estimator,
        kl=KL_CONTROLLERS[algorithm.kl_ctrl.type].load()(
            algorithm.kl_ctrl.kl_coef, algorithm.kl_ctrl.target_kl, algorithm.kl_ctrl.horizon
        ),
        loggers=loggers,
        folder=folder,
        checkpoints=Checkpoints(Path(folder.path)),
        total_steps=total,
    )


def total_steps(cfg: TrainConfig, data: Data) -> int:
    """trainer.total_training_steps, across as many epochs as they take; else total_epochs of full batches."""
    if data.sampler is None:
        return 0
    return cfg.trainer.total_training_steps or cfg.trainer.total_epochs * data.sampler.batches_per_epoch


def sampling_of(settings: RolloutConfig | ValKwargsConfig, rollout: RolloutConfig) -> Sampling:
    """Training's or validation's way to sample; length and EOS are the engine's for both."""
    return Sampling(
        max_tokens=rollout.response_length,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        do_sample=settings.do_sample,
        ignore_eos=rollout.ignore_eos,
    )
