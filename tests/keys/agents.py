"""Rows of the keys of turns, simulated users, agents and environments."""

import json

from . import observe as see
from .chat import TEMPLATE, TURNS, most_turns
from .kit import USER, Case, Kit
from .row import Row

AGENT = "actor_rollout_ref.rollout.agent"
CHAT = ("data.max_response_length=64", f'data.apply_chat_template_kwargs.chat_template="{TEMPLATE}"')
TURNS_FILE = USER / "turns.py"
TOOL = (f"{TURNS}.function_tool_path={TURNS_FILE}", f"{TURNS}.format={TURNS_FILE}:EveryTurnCalls", *CHAT)
FILE = USER / "agent_classes.py"
GAME = f"{AGENT}.environment={FILE}:Game"


def talks(kit: Kit) -> str:
    """A file whose rows have a simulated user."""
    path = kit.root / "talks.jsonl"
    extra = {"interaction_kwargs": {"name": "patient"}}
    row = {"data_source": "sums", "prompt": [{"role": "user", "content": "1+1="}], "extra_info": extra}
    rows = [row | {"reward_model": {"ground_truth": str(number)}} for number in range(8)]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return f"data.train_files={path}"


def users(kit: Kit) -> str:
    path = kit.root / "users.yaml"
    path.write_text(f"interaction: [{{name: patient, class_name: '{FILE}:Patient', config: {{}}}}]\n")
    return str(path)


def loops(kit: Kit) -> str:
    path = kit.root / "loops.yaml"
    path.write_text(f"- name: twice\n  _target_: {FILE}:Twice\n")
    return str(path)


def problems(case: Case) -> list[bool]:
    return [problem is not None for problem in see.step_batch(case)["reward_problem"]]


def scores(case: Case) -> list[float]:
    return see.step_batch(case)["token_level_scores"].sums().tolist()


def largest_advantage(case: Case) -> float:
    return case.fitted().metrics[1]["critic/advantages/max"]


ROWS = [
    Row(f"{TURNS}.enable", "true", most_turns, expected="a conversation needs tools", refused=True),
    Row(f"{TURNS}.max_assistant_turns", "2", most_turns, TOOL, expected=3),
    Row(f"{TURNS}.max_user_turns", "1", most_turns, TOOL, expected=3),
    Row(f"{TURNS}.interaction_config_path", users, most_turns, (talks, *CHAT)),
    Row(
        f"{TURNS}.max_interaction_turns",
        "1",
        most_turns,
        (talks, lambda kit: f"{TURNS}.interaction_config_path={users(kit)}", *CHAT),
        expected=3,
    ),
    Row(f"{AGENT}.default_agent_loop", f"{FILE}:Twice", see.longest_response, CHAT, expected=4),
    Row(
        f"{AGENT}.agent_loop_config_path",
        loops,
        see.longest_response,
        (f"{AGENT}.default_agent_loop=twice", *CHAT),
        expected=4,
        refused_without=True,
    ),
    Row(f"{AGENT}.agent_func_path", str(FILE), scores, CHAT, expected=[3.0] * 8),
    Row(f"{AGENT}.environment", f"{FILE}:Game", most_turns, CHAT, expected=5),
    Row(f"{AGENT}.environment_kwargs", "{pay: 1}", scores, (GAME, *CHAT)),
    Row(
        f"{AGENT}.timeout",
        "0.01",
        problems,
        (GAME, f"{AGENT}.environment_kwargs={{seconds: 0.5}}", *CHAT),
        expected=[True] * 8,
        long=True,
    ),
    Row("algorithm.turn_credit", "return_to_go", largest_advantage, (GAME, *CHAT)),
]
