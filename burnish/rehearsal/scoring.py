"""What scores in a rehearsal: the user's own reward where it is here and can be asked, else a stand-in score."""

from __future__ import annotations

from burnish.rehearsal.folded import user_file_exists
from burnish.rehearsal.made import subject_of
from burnish.rehearsal.plan import Plan
from burnish.reward.rules import find_rule

# Written to a file, as a user's own function is: any number in (0, 1), by the response alone.
STAND_IN = '''"""A stand-in score: some number between 0 and 1 that depends on the response alone."""

import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    score = 0.1 + 0.8 * (zlib.crc32(solution_str.encode()) %% 1000) / 1000
    return {"score": score, "acc": float(score > 0.5), %s}
'''
FUNCTION, REMOTE, FILTER = "custom_reward_function", "reward.remote_url", "algorithm.filter_groups"


def place_reward(plan: Plan) -> None:
    """Keep the reward that was asked for, or put the stand-in score in its place and say why."""
    _keep_offline(plan)
    reason = _why_not(plan)
    if reason is None:
        return
    path = plan.folder / "stand_in_score.py"
    metric = plan.value(f"{FILTER}.metric") if plan.has(f"{FILTER}.metric") else None
    path.write_text(STAND_IN % f'"{metric or "acc"}": score', encoding="utf-8")
    for key in (FUNCTION, REMOTE, "reward.verifiers", "reward.verifier_weights"):
        plan.drop(key)
    plan.put(f"{FUNCTION}.path", str(path))
    plan.put(f"{FUNCTION}.name", "compute_score")
    if plan.has("reward_model.reward_manager"):
        plan.put("reward_model.reward_manager", "naive")
        plan.drop("reward_model.reward_kwargs")
    plan.stand_ins.append(f"reward: a stand-in score, because {reason}")
    plan.not_tested.append("the reward function")


def _why_not(plan: Plan) -> str | None:
    """Why the real reward cannot score here; None if it can."""
    if not plan.has(f"{FUNCTION}.path"):
        return None
    path = plan.value(f"{FUNCTION}.path")
    if path and not user_file_exists(path):
        return f"{path} is not here"
    for url in plan.value(REMOTE):
        if url.endswith(".py") and not user_file_exists(url):
            return f"{url} is not here"
        if not url.endswith(".py") and not plan.live:
            return f"{url} is only asked with --live"
    if path or plan.value(REMOTE) or plan.value("reward.verifiers"):
        return _filters(plan)
    if plan.job == "train" and plan.value("reward_model.enable"):
        return None
    if plan.made_rows and not all(find_rule(subject_of(name).source) for name in _files(plan)):
        return "no built-in rule is known for these data"
    return _filters(plan)


def _filters(plan: Plan) -> str | None:
    if plan.job == "train" and plan.value(f"{FILTER}.enable"):
        return f"{FILTER} drops groups whose scores are alike, and a random model's are"
    return None


def _files(plan: Plan) -> list[str]:
    given = plan.value("data.train_files" if plan.has("data.train_files") else "data.path")
    return [given] if isinstance(given, str) else list(given)


def _keep_offline(plan: Plan) -> None:
    """A sandbox service or a reward class elsewhere is not asked."""
    key = "reward_model.sandbox_fusion.url"
    if plan.has(key) and plan.value(key) and not plan.live:
        plan.drop(key)
        plan.not_tested.append(f"{plan.their_word(key)}: programs run in the local sandbox (--live asks the service)")
    key = "reward_model.model.custom_cls"
    if plan.has(f"{key}.path") and plan.value(f"{key}.path") and not user_file_exists(plan.value(f"{key}.path")):
        plan.not_tested.append(f"{plan.their_word(f'{key}.path')} {plan.value(f'{key}.path')}: no such file here")
        plan.drop(key)
        if not plan.value("reward_model.model.path"):
            plan.put("reward_model.model.path", "reward-model")
