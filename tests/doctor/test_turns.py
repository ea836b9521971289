"""Tokens of a conversation over its turns, and the KV cache of conversations that wait for tools."""

from __future__ import annotations

import dataclasses

import pytest

from burnish.config import load
from burnish.dialects.translate import translate_command
from burnish.doctor.engine import Concurrency, engine_plan
from burnish.doctor.examine import examine
from burnish.doctor.shapes import find_shape
from burnish.doctor.turns import TurnBudget, waiting_conversations
from burnish.sizing import GIB

ROLLOUT = "actor_rollout_ref.rollout"
TURNS = f"{ROLLOUT}.multi_turn"
TOOLS = [f"{TURNS}.tool_config_path=tools.yaml", "data.max_prompt_length=500", "data.max_response_length=2000"]


def budget(*overrides):
    return TurnBudget.of(load([*TOOLS, *overrides], check=False).cfg)


def test_answers_and_turns_share_the_response_budget():
    limits = [f"{TURNS}.max_tool_response_length=400", f"{TURNS}.max_parallel_calls=2"]
    numbers = budget(*limits, f"{TURNS}.max_assistant_turns=5").numbers()
    assert numbers == {
        "model_turns_at_most": 5,
        "tokens_of_all_turns_at_most": 2000,
        "tool_tokens_per_turn_at_most": 200,
        "tool_tokens_per_conversation_at_most": 800,  # the last turn is not answered
        "tokens_left_per_model_turn": 240,
    }


@pytest.mark.parametrize(
    ("overrides", "tokens", "turns"),
    [
        ([f"{ROLLOUT}.max_model_len=1500"], 1000, None),
        ([f"{TURNS}.max_user_turns=3"], 2000, 4),
        ([f"{TURNS}.max_user_turns=3", f"{TURNS}.max_assistant_turns=2"], 2000, 2),
    ],
)
def test_what_limits_a_conversation(overrides, tokens, turns):
    found = budget(*overrides)
    assert (found.num_tokens, found.max_turns) == (tokens, turns)


def test_without_tools_there_is_no_budget():
    assert TurnBudget.of(load([], check=False).cfg) is None
    assert budget(f"{TURNS}.max_tool_response_length=null").answer_tokens is None


@pytest.mark.parametrize(("held", "waiting", "evicts"), [(100, 36, True), (64, 0, True), (256, 192, False)])
def test_conversations_that_wait_keep_their_cache_while_there_is_room(held, waiting, evicts):
    cfg = load([*TOOLS, f"{ROLLOUT}.max_num_seqs=64"], check=False).cfg
    plan = engine_plan(cfg.actor_rollout_ref.rollout, find_shape("qwen2.5-7b").shape, 1, False, num_responses=256)
    numbers, finding = waiting_conversations(cfg, Concurrency(plan, held))
    # 28 layers of 4 key/value heads of 128, twice, in two bytes; 2500 tokens in whole blocks
    blocks = -(-2500 // plan.block)
    assert numbers["kv_bytes_per_conversation"] == blocks * plan.block * 28 * 4 * 128 * 2 * 2
    assert numbers["waiting_conversations_in_the_kv_cache"] == waiting
    assert (finding is not None) == evicts
    if finding is not None:
        assert f"{held} of 256 conversations" in finding.text
    unknown = Concurrency(dataclasses.replace(plan, num_responses=None), held)
    assert waiting_conversations(cfg, unknown)[1] is None


def test_the_report_has_numbers_and_findings():
    command = [
        "burnish",
        "train",
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct",
        "data.train_files=t.parquet",
    ]
    tools = [f"{TURNS}.enable=true", f"{TURNS}.tool_config_path=tools.yaml", f"{TURNS}.max_assistant_turns=8"]
    report = examine(translate_command([*command, *tools, f"{ROLLOUT}.n=8"]), capacity=80 * GIB, check_files=False)
    assert report.arithmetic["tokens_left_per_model_turn"] == 8
    assert report.arithmetic["kv_bytes_per_conversation"] > 0
    found = {finding.rule for finding in report.findings}
    assert {"answers_fill_the_budget", "evicted_conversations"} <= found
