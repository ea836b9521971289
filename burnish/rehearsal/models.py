"""Replace every model of a command by a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from burnish.config.rules import has_critic
from burnish.config.vision_names import unsupported_family, unsupported_type, vision_type
from burnish.config.vision_rules import check_vision
from burnish.dialects.vision import family_problem
from burnish.errors import UserError
from burnish.rehearsal.plan import READING, Plan
from burnish.rehearsal.standin import StandIn, make_stand_in, shortened
from burnish.storage import MODEL_CONFIG
from burnish.untrusted import read_json_object

# By job: (key of the model, key of its tokenizer, whether it is a reward model); the trained model is first.
MODELS: dict[str, tuple[tuple[str, str | None, bool], ...]] = {
    "train": (
        ("actor_rollout_ref.model.path", "actor_rollout_ref.model.tokenizer_path", False),
        ("actor_rollout_ref.ref.model.path", None, False),
        ("critic.model.path", None, False),
        ("reward_model.model.path", None, True),
    ),
    "sft": (("model.partial_pretrain", None, False),),
    "generate": (("model.path", None, False),),
    "eval": (),
}
# What asks for routers, which a stand-in may lack.
ROUTER_KEYS = (
    "actor_rollout_ref.actor.aux_loss_coef",
    "actor_rollout_ref.actor.router_replay.mode",
    "actor_rollout_ref.rollout.enable_rollout_routing_replay",
)
# Paths of tokenizers and configs that the stand-in's folder replaces.
REPLACED_PATHS = (
    "actor_rollout_ref.model.tokenizer_path",
    "actor_rollout_ref.model.hf_config_path",
    "critic.model.tokenizer_path",
    "data.tokenizer",
)


def replace_models(plan: Plan) -> StandIn | None:
    """Put a stand-in under every key that names a model; returns the trained one."""
    first: StandIn | None = None
    for number, (key, tokenizer_key, is_reward_model) in enumerate(MODELS[plan.job]):
        name = plan.value(key)
        if not name or not _is_used(plan, key):
            plan.drop(key)
            continue
        tokenizer = (plan.value(tokenizer_key) if tokenizer_key else None) or _other_tokenizer(plan, key)
        config_key = f"{key.rpartition('.')[0]}.hf_config_path"
        described_by = (plan.value(config_key) if plan.has(config_key) else None) or name
        stand_in = make_stand_in(
            described_by,
            plan.folder / "models" / str(number),
            reward_model=is_reward_model,
            tokenizer_from=tokenizer if tokenizer != name else None,
            trust_remote_code=_trusts_remote_code(plan, key),
            policy=first if not is_reward_model else None,
            seed=number,
        )
        plan.put(key, str(stand_in.path))
        plan.stand_ins.append(stand_in.line(shortened(described_by)))
        family = unsupported_family(described_by) or _unsupported_config(described_by)
        if family is not None:
            plan.add_finding(READING, UserError(family_problem(family), key=key, value=name))
        if first is None:
            first, plan.sees = stand_in, stand_in.sees
            _check_pictures(plan, described_by)
            _shrink_pictures(plan)
            for path_key in REPLACED_PATHS:
                plan.drop(path_key)
            _drop_balance_loss(plan, stand_in)
    key = "reward_model.model.input_tokenizer"
    if first is not None and plan.has(key) and plan.value(key):
        plan.put(key, str(first.path))
    return first


def _unsupported_config(path: str) -> str | None:
    """The model_type of a local config.json, if it is of a multimodal family that is not supported."""
    config = Path(path).expanduser() / MODEL_CONFIG
    try:
        return unsupported_type(read_json_object(config)) if config.is_file() else None
    except UserError:  # not a config; the stand-in reports it
        return None


def _check_pictures(plan: Plan, name: str) -> None:
    """What the real run has against the keys about pictures; the rehearsal runs with another engine."""
    if plan.sees and unsupported_family(name) is None:
        for error in check_vision(plan.cfg, sees=True, model_type=vision_type(name)):
            plan.add_finding(READING, error)


def _shrink_pictures(plan: Plan) -> None:
    """The processor of a stand-in makes small pictures; settings for those of the real model do not fit it."""
    key = "data.mm_processor_kwargs"
    given = plan.sees and plan.has(key) and plan.value(key)
    if given:
        plan.drop(key)
        plan.folded.append(f"{plan.user_name(key)} is ignored: the stand-in has small pictures")


def _drop_balance_loss(plan: Plan, stand_in: StandIn) -> None:
    """A dense stand-in for a model with experts has no router."""
    if "experts" not in stand_in.family.missing:
        return
    for key in ROUTER_KEYS:
        if plan.has(key) and plan.value(key) not in (False, 0, "disabled"):
            plan.not_tested.append(f"{plan.user_name(key)}={plan.value(key)}: the stand-in has no experts")
            plan.drop(key)


def _is_used(plan: Plan, key: str) -> bool:
    """Whether the role exists and has a model of its own; critic and reference default to the policy's."""
    policy, needs = MODELS[plan.job][0][0], {"critic": has_critic, "reward_model": has_reward_model}
    exists = needs.get(key.partition(".")[0])
    if exists is not None and not exists(plan.cfg):
        return False
    return key == policy or ("critic" not in key and ".ref." not in key) or plan.value(key) != plan.value(policy)


def has_reward_model(cfg: Any) -> bool:
    return cfg.reward_model.enable


def _other_tokenizer(plan: Plan, key: str) -> str | None:
    is_policy = key == MODELS[plan.job][0][0]
    return plan.value("data.tokenizer") if is_policy and plan.has("data.tokenizer") else None


def _trusts_remote_code(plan: Plan, key: str) -> bool:
    trust = f"{key.rpartition('.')[0]}.trust_remote_code"
    return bool(plan.trust and plan.has(trust) and plan.value(trust))
