"""The token budget of a conversation over its turns, and the KV cache of conversations that wait for tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config import TrainConfig
from burnish.doctor.arithmetic import max_sequence_length
from burnish.doctor.engine import Concurrency
from burnish.doctor.rules import NOTE, REFUSED, WARNING, Case, Finding, Rule, RuleResult

TURNS = "actor_rollout_ref.rollout.multi_turn"
CHARACTERS_PER_TOKEN = 4  # of English text; numbers and code have fewer
SHORT_TURN = 64  # tokens; a turn needs about so many for a tool call with its arguments


@dataclass(frozen=True)
class TurnBudget:
    """How the tokens after the prompt are divided between the model and what it is answered."""

    num_tokens: int  # of all turns and answers together: the response budget, within max_model_len
    max_turns: int | None  # of the model; None is no limit
    answer_tokens: int | None  # of all answers to one turn, at most; None is no limit
    max_turn_length: int | None

    @staticmethod
    def of(cfg: TrainConfig) -> TurnBudget | None:
        """None for runs without tools."""
        rollout = cfg.actor_rollout_ref.rollout
        turns = rollout.multi_turn
        if not (turns.tool_config_path or turns.function_tool_path):
            return None
        from_answers = None if turns.max_user_turns is None else turns.max_user_turns + 1
        limits = [limit for limit in (turns.max_assistant_turns, from_answers) if limit is not None]
        answer = None
        if turns.max_tool_response_length is not None and turns.max_parallel_calls is not None:
            answer = -(-turns.max_tool_response_length * turns.max_parallel_calls // CHARACTERS_PER_TOKEN)
        num_tokens = max(0, max_sequence_length(rollout) - rollout.prompt_length)
        return TurnBudget(num_tokens, min(limits, default=None), answer, turns.max_turn_length)

    @property
    def tool_tokens(self) -> int | None:
        """Of all answers of a conversation, at most: the last turn has none."""
        if self.max_turns is None or self.answer_tokens is None:
            return None
        return (self.max_turns - 1) * self.answer_tokens

    @property
    def tokens_per_turn(self) -> int | None:
        """What the longest answers leave for each turn of the model; negative where they do not fit."""
        if self.tool_tokens is None or self.max_turns is None:
            return None
        return (self.num_tokens - self.tool_tokens) // self.max_turns

    def numbers(self) -> dict[str, Any]:
        """For the report, as far as they are limited."""
        numbers = {
            "model_turns_at_most": self.max_turns,
            "tokens_of_all_turns_at_most": self.num_tokens,
            "tool_tokens_per_turn_at_most": self.answer_tokens,
            "tool_tokens_per_conversation_at_most": self.tool_tokens,
            "tokens_left_per_model_turn": None if self.tokens_per_turn is None else max(0, self.tokens_per_turn),
        }
        return {name: value for name, value in numbers.items() if value is not None}


def answers_fill_the_budget(case: Case) -> RuleResult:
    """The longest answers leave the model too few tokens for its turns."""
    budget = TurnBudget.of(case.cfg)
    if budget is None or budget.tokens_per_turn is None or budget.tokens_per_turn >= SHORT_TURN:
        return None
    assert budget.tool_tokens is not None and budget.max_turns is not None
    needed = budget.tool_tokens + SHORT_TURN * budget.max_turns
    length = case.cfg.actor_rollout_ref.rollout.multi_turn.max_tool_response_length or 0
    return (
        f"{budget.max_turns} turns with tool responses of full length (about {budget.tool_tokens:,} tokens) leave"
        f" {max(0, budget.tokens_per_turn):,} tokens for each turn of the model: conversations end at"
        f" {budget.num_tokens:,} tokens before they use all turns",
        f"data.max_response_length={_rounded(needed)}, or {TURNS}.max_tool_response_length={max(1, length // 2)}",
    )


def _rounded(tokens: int) -> int:
    """Up to a multiple of 256."""
    return -(-tokens // 256) * 256


def unlimited_answers(case: Case) -> RuleResult:
    budget, turns = TurnBudget.of(case.cfg), case.cfg.actor_rollout_ref.rollout.multi_turn
    if budget is None or budget.answer_tokens is not None:
        return None
    name = "max_tool_response_length" if turns.max_tool_response_length is None else "max_parallel_calls"
    return (
        f"{name} is not limited: the answers to one turn can use all {budget.num_tokens:,} tokens of a conversation",
        f"{TURNS}.{name}={1024 if turns.max_tool_response_length is None else 4}",
    )


def turns_beyond_the_budget(case: Case) -> RuleResult:
    """Turns of full length do not fit, even without answers."""
    budget = TurnBudget.of(case.cfg)
    if budget is None or budget.max_turns is None or budget.max_turn_length is None:
        return None
    total = budget.max_turns * budget.max_turn_length + (budget.tool_tokens or 0)
    if total <= budget.num_tokens:
        return None
    return (
        f"{budget.max_turns} turns of {budget.max_turn_length:,} tokens and the tools' answers have {total:,} tokens,"
        f" but a conversation has {budget.num_tokens:,}: later turns are cut",
        f"data.max_response_length={_rounded(total)}",
    )


def unlimited_turns(case: Case) -> RuleResult:
    budget = TurnBudget.of(case.cfg)
    if budget is None or budget.max_turns is not None:
        return None
    return (
        f"the number of turns is not limited: only the budget of {budget.num_tokens:,} tokens ends a conversation in"
        " which the model keeps calling tools",
        f"{TURNS}.max_assistant_turns=8",
    )


def nothing_to_talk_to(case: Case) -> RuleResult:
    rollout = case.cfg.actor_rollout_ref.rollout
    turns, agent = rollout.multi_turn, rollout.agent
    parts = (
        turns.tool_config_path,
        turns.function_tool_path,
        turns.interaction_config_path,
        turns.completion_callback,
        agent.agent_loop_config_path,
        agent.agent_func_path,
        agent.environment,
        agent.default_agent_loop,
        case.cfg.actor_rollout_ref.model.external_lib,  # may register agents
    )
    if not turns.enable or any(parts):
        return None
    return (
        f"{TURNS}.enable=true, but no tools, simulated user, agent or environment: the run does not start",
        f"{TURNS}.tool_config_path=tools.yaml, or {TURNS}.enable=false",
    )


def waiting_conversations(cfg: TrainConfig, concurrency: Concurrency) -> tuple[dict[str, Any], Finding | None]:
    """What conversations need of the KV cache while tools run: numbers, and a finding if waiting ones lose theirs."""
    if TurnBudget.of(cfg) is None:
        return {}, None
    engine = concurrency.engine
    spare = max(0, concurrency.held - concurrency.at_once)
    numbers = {"kv_bytes_per_conversation": engine.sequence_bytes, "waiting_conversations_in_the_kv_cache": spare}
    total = engine.num_responses
    if total is None or total <= concurrency.held:
        return numbers, None
    text = (
        f"the KV cache holds {concurrency.held:,} of {total:,} conversations at full length: {concurrency.at_once:,}"
        f" decode and {spare:,} can wait for a tool; further ones that wait are evicted and prefilled again"
    )
    hint = f"data.max_response_length={max(1, cfg.actor_rollout_ref.rollout.response_length // 2)}, or more engines"
    return numbers, Finding("evicted_conversations", NOTE, text, hint)


TURN_RULES: tuple[Rule, ...] = (
    Rule("nothing_to_talk_to", REFUSED, "the run does not start", nothing_to_talk_to, (f"{TURNS}.enable",)),
    Rule("answers_fill_the_budget", WARNING, "conversations end early", answers_fill_the_budget),
    Rule("turns_beyond_the_budget", NOTE, "conversations end early", turns_beyond_the_budget),
    Rule("unlimited_answers", NOTE, "conversations end early", unlimited_answers),
    Rule("unlimited_turns", NOTE, "steps take long", unlimited_turns),
)
