"""Keep the user's reward where it can run on this machine, else use a stand-in score."""

from __future__ import annotations

import ast
from pathlib import Path

from burnish.rehearsal.folding import user_file_exists
from burnish.rehearsal.plan import Plan
from burnish.rehearsal.rows import local_path
from burnish.rehearsal.synthetic import subject_of
from burnish.reward.rules import find_rule

# Written to a file and loaded like a user's function: a score in (0, 1) that depends on the response only.
STAND_IN = '''"""A stand-in score between 0 and 1 that depends on the response only."""

import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    score = 0.1 + 0.8 * (zlib.crc32(solution_str.encode()) %% 1000) / 1000
    return {"score": score, "acc": float(score > 0.5), %s}
'''
FUNCTION, REMOTE, FILTER = "custom_reward_function", "reward.remote_url", "algorithm.filter_groups"


def replace_reward(plan: Plan) -> None:
    """Keep the configured reward, or replace it by the stand-in score with a line that says why."""
    _disable_services(plan)
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
    """Why the configured reward cannot run here; None if it can."""
    if not plan.has(f"{FUNCTION}.path"):
        return None
    path = plan.value(f"{FUNCTION}.path")
    if path and not user_file_exists(path):
        return f"{path} is not on this machine"
    if path and plan.synthetic_rows and _reads_columns(path, plan.value(f"{FUNCTION}.name")):
        return f"{path} reads columns of the data, and the rows are synthetic"
    for url in plan.value(REMOTE):
        if url.endswith(".py") and not user_file_exists(url):
            return f"{url} is not on this machine"
        if not url.endswith(".py") and not plan.live:
            return f"{url} is only called with --live"
    if path or plan.value(REMOTE) or plan.value("reward.verifiers"):
        return _filters(plan)
    if plan.job == "train" and plan.value("reward_model.enable"):
        return None
    if plan.synthetic_rows and not all(find_rule(subject_of(name).source) for name in _files(plan)):
        return "no built-in rule scores these data sources"
    return _filters(plan)


def _reads_columns(path: str, name: str | None) -> bool:
    """Whether a file's function has TRL's signature, whose columns synthetic rows cannot have."""
    try:
        code = ast.parse(Path(local_path(path)).expanduser().read_bytes())
    except (OSError, SyntaxError, ValueError):  # reported when the file is loaded
        return False
    functions = [node for node in code.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    named = [node.args for node in functions if node.name == (name or "compute_score")]
    return any(argument.arg == "completions" for args in named for argument in (*args.args, *args.kwonlyargs))


def _filters(plan: Plan) -> str | None:
    if plan.job == "train" and plan.value(f"{FILTER}.enable"):
        return f"{FILTER} drops groups of equal scores, which a random model produces"
    return None


def _files(plan: Plan) -> list[str]:
    files = plan.value("data.train_files" if plan.has("data.train_files") else "data.path")
    return [files] if isinstance(files, str) else list(files)


def _disable_services(plan: Plan) -> None:
    """Drop a sandbox service, and a reward model class that is not on this machine."""
    key = "reward_model.sandbox_fusion.url"
    if plan.has(key) and plan.value(key) and not plan.live:
        plan.drop(key)
        plan.not_tested.append(f"{plan.user_name(key)}: programs run in the local sandbox (--live calls the service)")
    key = "reward_model.model.custom_cls.path"
    path = plan.value(key) if plan.has(key) else None
    if path and not user_file_exists(path):
        plan.not_tested.append(f"{plan.user_name(key)} {path}: no such file on this machine")
        plan.drop("reward_model.model.custom_cls")
        if not plan.value("reward_model.model.path"):
            plan.put("reward_model.model.path", "reward-model")
