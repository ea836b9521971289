"""Which keys name models, and the stand-in that each of them gets."""

from __future__ import annotations

from typing import Any

from burnish.config.rules import has_critic
from burnish.rehearsal.plan import Plan
from burnish.rehearsal.standin import StandIn, describe, make_stand_in

# (key of the model, key of its tokenizer, is it a reward model?) of each job; the first is the one that is taught.
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
# Other places of what the stand-in brings itself.
ELSEWHERE = (
    "actor_rollout_ref.model.tokenizer_path",
    "actor_rollout_ref.model.hf_config_path",
    "critic.model.tokenizer_path",
    "data.tokenizer",
)


def place_models(plan: Plan) -> StandIn | None:
    """Stand-ins under every key that names a model; the first is given back."""
    first: StandIn | None = None
    for number, (key, words_key, scores) in enumerate(MODELS[plan.job]):
        asked = plan.value(key)
        if not asked or not _is_used(plan, key):
            plan.drop(key)
            continue
        words = (plan.value(words_key) if words_key else None) or _other_tokenizer(plan, key)
        made = make_stand_in(
            asked,
            plan.folder / "models" / str(number),
            scores=scores,
            tokenizer_from=words if words != asked else None,
            trust_remote_code=_trusts(plan, key),
            policy=first if not scores else None,
            seed=number,
        )
        plan.put(key, str(made.path))
        plan.stand_ins.append(made.line(describe(asked)))
        if first is None:
            first = made
            for name in ELSEWHERE:
                plan.drop(name)
            _balance(plan, made)
    if plan.has("reward_model.model.input_tokenizer") and plan.value("reward_model.model.input_tokenizer"):
        plan.put("reward_model.model.input_tokenizer", str(first.path))
    return first


def _balance(plan: Plan, made: StandIn) -> None:
    """A dense stand-in has no router to balance, where the real model has experts."""
    key = "actor_rollout_ref.actor.aux_loss_coef"
    if "experts" in made.family.without and plan.has(key) and plan.value(key):
        plan.not_tested.append(f"{plan.their_word(key)}={plan.value(key)}: the stand-in has no experts")
        plan.drop(key)


def _is_used(plan: Plan, key: str) -> bool:
    """A role that there is not needs no model; a critic or a reference of the policy's model follows its key."""
    policy, needs = MODELS[plan.job][0][0], {"critic": has_critic, "reward_model": has_reward_model}
    wanted = needs.get(key.partition(".")[0])
    if wanted is not None and not wanted(plan.asked):
        return False
    return key == policy or ("critic" not in key and ".ref." not in key) or plan.value(key) != plan.value(policy)


def has_reward_model(cfg: Any) -> bool:
    return cfg.reward_model.enable


def _other_tokenizer(plan: Plan, key: str) -> str | None:
    is_policy = key == MODELS[plan.job][0][0]
    return plan.value("data.tokenizer") if is_policy and plan.has("data.tokenizer") else None


def _trusts(plan: Plan, key: str) -> bool:
    trust = f"{key.rpartition('.')[0]}.trust_remote_code"
    return bool(plan.has(trust) and plan.value(trust))
