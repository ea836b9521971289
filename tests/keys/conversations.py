"""Rows of conversations with tools. The model says what a script has; tools and limits are those of the run."""

from __future__ import annotations

import asyncio
import json

from burnish.models.model_input import ModelInput
from burnish.rollout.episode import Prompt

from ..rollout.agents.conftest import Script
from .kit import USER, Case, Kit
from .row import Row

TURNS = "actor_rollout_ref.rollout.multi_turn"
END = "<|im_end|>"


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


SCRIPT = [
    f"{call('calculator', expression='6 * 7')}{call('calculator', expression='2 ** 40')}{END}",
    f"{call('double', number=4)}{END}",
    f"done{END}",
]


def conversation(case: Case) -> str:
    """Everything after the prompt."""
    rollout, tokenizer = case.run.rollout, case.run.recorder.tokenizer
    prompt = ModelInput(tuple(tokenizer("2+3", add_special_tokens=False)["input_ids"]))
    sampler = Script(tokenizer, SCRIPT, num_prompt=len(prompt))
    result = asyncio.run(rollout.episode.run(Prompt(prompt, rollout.sampling, 7, "row", 0, {}), sampler))
    trajectories = result if isinstance(result, list) else [result]
    return "".join(tokenizer.decode(trajectory.ids) for trajectory in trajectories)


def prompt_text(case: Case) -> str:
    ids = case.run.rollout.train_data.batch([0], epoch=0)["prompt_ids"].lists()[0]
    return case.run.recorder.tokenizer.decode(ids)


def model(kit: Kit) -> str:
    return f"actor_rollout_ref.model.path={kit.chat_model}"


ANY_LENGTH = "data.max_prompt_length=900"
TOOLS = f"{TURNS}.tool_config_path={USER / 'tools.yaml'}"
GIVEN = (model, ANY_LENGTH, TOOLS)

ROWS = [
    Row(f"{TURNS}.tool_config_path", str(USER / "tools.yaml"), conversation, GIVEN[:2]),
    Row(f"{TURNS}.function_tool_path", str(USER / "function_tools.py"), conversation, GIVEN),
    Row(f"{TURNS}.max_parallel_calls", "2", conversation, GIVEN),
    Row(f"{TURNS}.max_tool_response_length", "4", conversation, (*GIVEN, f"{TURNS}.max_parallel_calls=2")),
    Row(
        f"{TURNS}.tool_response_truncate_side",
        "left",
        conversation,
        (*GIVEN, f"{TURNS}.max_parallel_calls=2", f"{TURNS}.max_tool_response_length=4"),
    ),
    Row("data.tool_config_path", str(USER / "tools.yaml"), prompt_text, GIVEN[:2]),
]
