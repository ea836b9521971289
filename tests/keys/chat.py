"""Rows of the keys of actor_rollout_ref.rollout.multi_turn.* about chat templates and formats of tool calls."""

from . import observe as see
from .kit import USER, Case
from .row import Row

TURNS = "actor_rollout_ref.rollout.multi_turn"
# Earlier turns lose their text up to the last plus, as others lose their thinking.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role[0] }} "
    "{{ m.content.split('+')[-1] if m.role == 'assistant' and not loop.last else m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a {% endif %}"
)
TOOL = (
    f"{TURNS}.enable=true",
    f"{TURNS}.function_tool_path={USER / 'turns.py'}",
    f"{TURNS}.max_assistant_turns=3",
    "data.max_response_length=64",
    f'data.apply_chat_template_kwargs.chat_template="{TEMPLATE}"',
)
CALLS = (*TOOL, f"{TURNS}.format={USER / 'turns.py'}:EveryTurnCalls")


def most_turns(case: Case) -> int:
    """Of a row of a step's batch."""
    batch = see.step_batch(case)
    return max(map(len, batch["turns"])) if "turns" in batch else 1


def num_rows(case: Case) -> int:
    return len(see.step_batch(case))


def reports_drift(case: Case) -> bool:
    return "rollout/tokenization_drift" in case.fitted().metrics[1]


def num_samples(case: Case) -> int:
    batch = see.step_batch(case)
    return len(set(zip(batch["uid"], batch["sample"], strict=True)))


ROWS = [
    Row(f"{TURNS}.max_turn_length", "2", see.longest_response, CALLS),
    Row(f"{TURNS}.num_repeat_rollouts", "2", most_turns, CALLS, expected=1),
    Row(f"{TURNS}.completion_callback", f"{USER / 'turns.py'}:SayMore", most_turns, TOOL, expected=3),
    Row("actor_rollout_ref.rollout.over_sample_rate", "0.25", num_samples, CALLS),
    Row(f"{TURNS}.format", f"{USER / 'turns.py'}:EveryTurnCalls", most_turns, TOOL),
    Row(f"{TURNS}.history", "faithful", num_rows, CALLS),
    Row(f"{TURNS}.use_inference_chat_template", "true", num_rows, CALLS),
    Row(f"{TURNS}.tokenization_sanity_check_mode", "disable", reports_drift, CALLS, expected=False),
]
