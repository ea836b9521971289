"""OpenRLHF's agents: one file per generation, written as its documentation shows."""

from __future__ import annotations

import asyncio
import textwrap
from dataclasses import replace

import pytest

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.agents.openrlhf_agent import OpenRLHFAgent
from burnish.rollout.chat.parsers.hermes import HermesParser
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.engine import Sampling
from burnish.rollout.episode import Prompt
from burnish.rollout.tools.toolbox import Toolbox

from .conftest import Script

END = "<|im_end|>"
KEY = "actor_rollout_ref.rollout.agent.agent_func_path"
PROMPT = "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
AGAIN = "\n\nHuman: [INCORRECT]\nPlease try again.\n</s>\n\nAssistant: "

# up to 0.8.6: the module's globals are the state
STEP_FUNCTION = """
from typing import Any, Dict
import torch

step_idx = 0
max_steps = 1

async def step(observation, action, label, **kwargs) -> Dict[str, Any]:
    global step_idx, max_steps
    if step_idx >= max_steps:
        done = True
        reward = torch.tensor(float(label in action))
        next_observation = observation + action + "\\n\\nHuman: [VERIFICATION RESULT: CORRECT]\\n</s>"
    else:
        done = False
        reward = torch.tensor(0)
        next_observation = (
            observation + action + "\\n\\nHuman: [INCORRECT]\\nPlease try again.\\n</s>\\n\\nAssistant: "
        )
        if "forget" in action:
            next_observation = "start over: "
    step_idx += 1
    return {
        "rewards": reward,
        "scores": reward,
        "next_observation": next_observation,
        "done": done,
        "sampling_params": kwargs.get("sampling_params", None),
        "extra_logs": {"dummy_scores": reward},
    }
"""

INSTANCE = """
from typing import Any, Dict
import torch
from openrlhf.utils.agent import BASES

class AgentInstance(AgentInstanceBase):
    ASYNC def __init__(self, *args, **kwargs):
        self.step_idx = 0
        self.max_steps = 1

    async def reset(self, states: dict, **kwargs):
        return {"observation": states["observation"]}

    async def step(self, states: dict, **kwargs) -> Dict[str, Any]:
        observation_text, action_text, label = states["observation_text"], states["action_text"], states["label"]
        done = self.step_idx >= self.max_steps
        reward = torch.tensor(float(label in action_text)) if done else torch.tensor(0.25)
        environment_feedback = (
            "\\n\\nHuman: [CORRECT]\\n</s>"
            if done
            else "\\n\\nHuman: [INCORRECT]\\nPlease try again.\\n</s>\\n\\nAssistant: "
        )
        if "raise" in action_text:
            raise ValueError("no")
        sampling_params = states.get("sampling_params", None)
        sampling_params.temperature = 0.5
        self.step_idx += 1
        return {
            "rewards": reward,
            "scores": reward,
            "environment_feedback": environment_feedback,
            "done": done,
            "sampling_params": sampling_params,
            "extra_logs": {"dummy_scores": reward, "turn_count": torch.tensor(self.step_idx)},
        }
"""

# 0.8.8 to 0.9.0: `async def __init__`, and results in a queue
QUEUE = (
    INSTANCE.replace("BASES", "AgentExecutorBase, AgentInstanceBase").replace("ASYNC def", "async def")
    + """
class AgentExecutor(AgentExecutorBase):
    def __init__(self, max_steps, max_length, llm_engine, hf_tokenizer, result_queue):
        super().__init__(AgentInstance, max_steps, max_length, llm_engine, hf_tokenizer, result_queue)

    async def execute(self, prompt, label, sampling_params):
        return await super().execute(prompt, label, sampling_params)
"""
)

# 0.9.1 to 0.9.x
MULTI_TURN = (
    INSTANCE.replace("BASES", "AgentInstanceBase, MultiTurnAgentExecutor").replace("ASYNC def", "def")
    + """
class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
"""
)

# 0.10: images, and an executor of one's own
OWN_EXECUTOR = """
from copy import deepcopy
from openrlhf.utils.agent import AgentExecutorBase

class AgentExecutor(AgentExecutorBase):
    async def execute(
        self, prompt, label, sampling_params, max_length: int, hf_tokenizer, llm_engine, images=None
    ):
        tokens = hf_tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"][0].tolist()
        action_ranges, total = [], 0.0
        for turn in range(2):
            params = deepcopy(sampling_params)
            params.max_tokens = max_length - len(tokens)
            output = await llm_engine.generate(tokens, params)
            ids = output.outputs[0].token_ids
            assert [entry[token].logprob for token, entry in zip(ids, output.outputs[0].logprobs)] == [-0.5] * len(ids)
            action_ranges.append((len(tokens), len(tokens) + len(ids)))
            tokens = tokens + ids + hf_tokenizer("go on", add_special_tokens=False)["input_ids"]
            total += 0.5
        return {
            "prompt": prompt, "label": label, "reward": total, "scores": 0.75, "observation_tokens": tokens,
            "action_ranges": action_ranges, "rollout_log_probs": None, "extra_logs": {"note": "text", "turns": 2},
        }
"""

GENERATIONS = {"0.8.6": STEP_FUNCTION, "0.9.0": QUEUE, "0.9.2": MULTI_TURN}


def build(tokenizer, tmp_path, code, name="agent.py"):
    (tmp_path / name).write_text(textwrap.dedent(code))
    template = ChatTemplate(tokenizer, [tokenizer.eos_token_id])
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    context = AgentContext(tokenizer, template, HermesParser(), Toolbox([]), decode, timeout=30.0)
    return OpenRLHFAgent(context, str(tmp_path / name), KEY)


def run(agent, tokenizer, texts, budget=1000, forks=None, label="5"):
    prompt = ModelInput(tuple(tokenizer(PROMPT, add_special_tokens=False)["input_ids"]))
    sampler = Script(tokenizer, [], budget, len(prompt), forks=forks or [texts])
    row = {"ground_truth": label, "extra_info": {}}
    result = asyncio.run(agent.run(Prompt(prompt, Sampling(budget), 7, "row", 0, row), sampler))
    return result, sampler


@pytest.mark.parametrize("version", GENERATIONS)
def test_generations(chat_tokenizer, tmp_path, version):
    agent = build(chat_tokenizer, tmp_path, GENERATIONS[version])
    for _ in range(2):  # the state of a conversation never leaks into another
        (trajectory,), sampler = run(agent, chat_tokenizer, [f"4{END}", f"5{END}"])
        assert chat_tokenizer.decode(trajectory.ids) == f"4{END}{AGAIN}5{END}"  # not what follows the last turn
        everything = (*trajectory.prompt.ids, *trajectory.ids)
        assert all(everything[: len(given)] == given.ids for given in sampler.forked[0].inputs)
        sampled = [token for token, mask in zip(trajectory.ids, trajectory.mask, strict=True) if mask]
        assert chat_tokenizer.decode(sampled) == f"4{END}5{END}"
        turns = 0.0 if version == "0.8.6" else 0.25
        assert trajectory.score == 1.0 + turns and trajectory.extras["scores"] == 1.0
        assert trajectory.extras["dummy_scores"] == 1.0 and trajectory.finish_reason == "stop"
        assert [turn.role for turn in trajectory.turns] == ["assistant", "user", "assistant"]
    if version != "0.8.6":
        assert [call["temperature"] for call in sampler.forked[0].samplings] == [1.0, 0.5]  # as step asked
        assert trajectory.extras["turn_count"] == 2.0


def test_an_executor_of_ones_own(chat_tokenizer, tmp_path):
    agent = build(chat_tokenizer, tmp_path, OWN_EXECUTOR)
    (trajectory,), sampler = run(agent, chat_tokenizer, [f"a{END}", f"b{END}"], budget=100)
    assert chat_tokenizer.decode(trajectory.ids) == f"a{END}go onb{END}"
    assert trajectory.score == 1.0 and trajectory.extras == {"scores": 0.75, "turns": 2.0}
    first = len(chat_tokenizer(f"a{END}go on", add_special_tokens=False)["input_ids"])
    assert [call["max_tokens"] for call in sampler.forked[0].samplings] == [100, 100 - first]


def test_a_rewritten_history_is_another_row(chat_tokenizer, tmp_path):
    agent = build(chat_tokenizer, tmp_path, STEP_FUNCTION)
    rows, sampler = run(agent, chat_tokenizer, [], forks=[[f"forget{END}"], [f"5{END}"]])
    assert [chat_tokenizer.decode(row.ids) for row in rows] == [f"forget{END}", f"5{END}"]
    assert chat_tokenizer.decode(rows[1].prompt.ids) == "start over: " and rows[1].score == 1.0
    assert len(sampler.forked) == 2


def test_the_token_budget_ends_a_conversation(chat_tokenizer, tmp_path):
    for name, code in (("multi_turn.py", MULTI_TURN), ("step.py", STEP_FUNCTION)):
        agent = build(chat_tokenizer, tmp_path, code, name)
        (trajectory,), sampler = run(agent, chat_tokenizer, [f"4{END}", f"5{END}"], budget=20)
        assert chat_tokenizer.decode(trajectory.ids) == f"4{END}" and len(sampler.forked[0].inputs) == 1


def test_failures(chat_tokenizer, tmp_path):
    agent = build(chat_tokenizer, tmp_path, MULTI_TURN)
    failed, _ = run(agent, chat_tokenizer, [f"raise{END}"])
    assert failed.problem.endswith("agent.py failed: ValueError: no") and failed.ids == []
    path = tmp_path / "none.py"
    path.write_text("value = 3\n")
    with pytest.raises(UserError, match="neither a class AgentExecutor nor a function `step`"):
        OpenRLHFAgent(agent.context, str(path), KEY)
    path = tmp_path / "silent.py"
    path.write_text(textwrap.dedent(OWN_EXECUTOR).replace('"reward": total', '"reward": None'))
    silent = OpenRLHFAgent(agent.context, str(path), KEY)
    failed, _ = run(silent, chat_tokenizer, [f"a{END}", f"b{END}"])
    assert failed.problem.endswith("returned no reward")


def test_a_turn_has_its_own_limit(chat_tokenizer, tmp_path):
    agent = build(chat_tokenizer, tmp_path, OWN_EXECUTOR)
    agent.context = replace(agent.context, limits=TurnLimits(max_turn_length=96))
    _, sampler = run(agent, chat_tokenizer, [f"a{END}", f"b{END}"], budget=100)
    first = len(chat_tokenizer(f"a{END}go on", add_special_tokens=False)["input_ids"])
    assert [call["max_tokens"] for call in sampler.forked[0].samplings] == [96, min(96, 100 - first)]
