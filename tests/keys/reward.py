"""Rows of reward.*, custom_reward_function.* and reward_model.*"""

from . import observe as see
from .kit import USER
from .row import Row

FUNCTION = "custom_reward_function"
IN_A_WORKER = "reward.num_workers=1"
OUT_OF_MEMORY = "ran out of memory (reward.memory_mb=256)"


def function(name: str) -> str:
    return f"{FUNCTION}.name={name}"


ROWS = [
    Row(
        "reward.num_workers",
        "1",
        see.scored_elsewhere,
        (function("which_process"), "reward.isolate=false"),
        expected=True,
    ),
    Row("reward.timeout", "0.01", see.score_problem, (function("slow"),), expected="timed out after 0.01 s"),
    Row(
        "reward.memory_mb",
        "256",
        see.score_problem,
        (function("greedy"), IN_A_WORKER),
        expected=OUT_OF_MEMORY,
        long=True,
    ),
    Row("reward.on_error", "stop", see.stops_on_failure, (function("broken"),), expected=True),
    Row("reward.fallback_score", "-1.5", see.score_value, (function("broken"),), expected=-1.5),
    Row("reward.failure_threshold", "null", see.stops_when_all_fail, (function("broken"),), expected=False),
    Row("reward.pass_env", "[KEYS_ROW_TOKEN]", see.secret_seen, (function("secret"), IN_A_WORKER), expected="visible"),
    Row(f"{FUNCTION}.path", str(USER / "classes.py"), see.score_value, expected=0.25),
    Row(f"{FUNCTION}.name", "twice", see.score_value, expected=8.0),
    Row(f"{FUNCTION}.reward_kwargs", "{bonus:10}", see.score_value, expected=12.0),
    Row("reward_model.reward_manager", f"{USER / 'classes.py'}:Halved", see.score_value, expected=1.0),
]
