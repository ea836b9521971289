"""The judge of a run: its reward model, loaded, and how its score counts beside that of the functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from burnish.errors import UserError
from burnish.loop.backends import fsdp_options, use_faster_layers, wants_offload
from burnish.models.device import pick_dtype
from burnish.models.load import ModelSource, load_tokenizer
from burnish.models.reward_model import check_score, load_reward_model
from burnish.reward.model_scorer import RewardModelScorer, ScoreWeights, precedence
from burnish.reward.reward_model import CLASS_KEY, CustomRewardModel, RewardModel
from burnish.reward.reward_model_input import PolicyTokens, RewardInput, RewardModelTemplate, decoder_for
from burnish.reward.source import function_label
from burnish.seeding import derive_seed
from burnish.training.backend import BackendOptions, create_backend
from burnish.training.backends.module import ModuleBackend
from burnish.training.export import loadable_path
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext
from burnish.training.protocols import RewardModelRole
from burnish.user_code import load_user_attribute

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.config.reward import RewardModelModelConfig

PATH_KEY = "reward_model.model.path"


def build_reward_model_scorer(
    cfg: TrainConfig,
    device: torch.device,
    tokenizer: Any,
    reward: Callable[..., Any] | None,
    made: RewardModelRole | None = None,
) -> RewardModelScorer | None:
    """None without reward_model.enable. `reward` is the function given in Python, if any; `made` a model elsewhere."""
    if not cfg.reward_model.enable:
        return None
    weights = ScoreWeights.of(cfg.reward, cfg.reward_model)
    own = function_label(reward) if reward is not None else cfg.custom_reward_function.path
    notices = [precedence(weights, own)]
    if cfg.reward_model.model.custom_cls.path:
        model = _custom(cfg.reward_model.model, device, tokenizer)
    else:
        model = build_reward_model(cfg, device, tokenizer, notices) if made is None else made
    return RewardModelScorer(model, cfg.reward, weights, tuple(notices))


def build_reward_model(
    cfg: TrainConfig,
    device: torch.device,
    tokenizer: Any,
    notices: list[str],
    parallel: ParallelContext = SINGLE_PROCESS,
) -> RewardModel:
    """Loaded and checked. What a person should know of it goes to `notices`."""
    config, source = cfg.reward_model, reward_model_source(cfg)
    inputs = _inputs(config.model, source, tokenizer, notices)
    # The model is frozen, so the weights need no more bits than the computation.
    fsdp, key = config.model.fsdp_config, "reward_model.model.fsdp_config.mixed_precision.param_dtype"
    dtype = pick_dtype(fsdp.mixed_precision.param_dtype, device, key)
    model = load_reward_model(source, dtype)
    if config.use_torch_compile:
        use_faster_layers(model, "reward_model.model", device, parallel, dtype)
    mean, std = _moments(model.config, source) if config.normalize else (0.0, 1.0)
    options = BackendOptions(
        offload=wants_offload(fsdp, device, parallel),
        fsdp=fsdp_options(fsdp, "reward_model.model.fsdp_config", device),
    )
    backend = create_backend(model, device, dtype, options=options, parallel=parallel)
    assert isinstance(backend, ModuleBackend)
    with backend.on_device(), torch.compiler.set_stance("force_eager"):
        backend.check(lambda model, **given: check_score(model, source, **given))
    return RewardModel(
        backend,
        inputs,
        MicroBatchSize.of(
            config.micro_batch_size_per_gpu, config.use_dynamic_bsz, config.forward_max_token_len_per_gpu
        ),
        max_length=config.max_length,
        mean=mean,
        std=std,
    )


def reward_model_source(cfg: TrainConfig) -> ModelSource:
    model = cfg.reward_model.model
    assert model.path is not None  # the config's rules ask for it
    return ModelSource(
        path=loadable_path(model.path, PATH_KEY),
        key=PATH_KEY,
        external_lib=tuple(model.external_lib),
        trust_remote_code=model.trust_remote_code,
        use_shm=model.use_shm,
        random_seed=None if cfg.reward_model.load_weight else derive_seed(cfg.trainer.seed, "weights", "reward_model"),
    )


def _inputs(config: RewardModelModelConfig, source: ModelSource, policy: Any, notices: list[str]) -> RewardInput:
    if config.input_tokenizer is None:
        return PolicyTokens()
    reward_tokenizer = load_tokenizer(source.checked_path(), trust_remote_code=source.trust_remote_code, key=PATH_KEY)
    key = "reward_model.model.input_tokenizer"
    named = load_tokenizer(config.input_tokenizer, trust_remote_code=source.trust_remote_code, key=key)
    decoder, notice = decoder_for(policy, named)
    if notice is not None:
        notices.append(notice)
    return RewardModelTemplate(decoder, reward_tokenizer)


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _moments(config: Any, source: ModelSource) -> tuple[float, float]:
    """mean and std of the scores on the data the model was trained on, as OpenRLHF saves them."""
    mean, std = getattr(config, "mean", None), getattr(config, "std", None)
    if _is_finite(mean) and _is_finite(std) and std > 0:
        return float(mean), float(std)
    raise UserError(
        f"the config.json of {source.path} has no usable mean and std (mean: {mean}, std: {std})",
        key="reward_model.normalize",
        value=True,
        hint="reward_model.normalize=false",
    )


def _custom(config: RewardModelModelConfig, device: torch.device, tokenizer: Any) -> CustomRewardModel:
    path, name = config.custom_cls.path, config.custom_cls.name
    assert path is not None and name is not None  # the config's rules ask for both
    user_class = load_user_attribute(path, name, key=CLASS_KEY)
    if not isinstance(user_class, type):
        raise UserError(f"{name} is not a class", key="reward_model.model.custom_cls.name")
    return CustomRewardModel(user_class, config.path, device, tokenizer)
