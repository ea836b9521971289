"""verl's agent loops: files written as its documentation shows, of both generations of `run`."""

from __future__ import annotations

import asyncio
import textwrap
from dataclasses import replace

import pytest

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.agent_loops import agent_of, load_agent_loops, registered_agent_loops
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.chat.parsers.hermes import HermesParser
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.engine import Sampling
from burnish.rollout.episode import Prompt, SingleTurn
from burnish.rollout.tools.toolbox import Toolbox

from .conftest import Script

END = "<|im_end|>"
KEY = "actor_rollout_ref.rollout.agent.agent_loop_config_path"
MESSAGES = [{"role": "user", "content": "2+3?"}]
CONFIG = {
    "actor_rollout_ref": {"rollout": {"prompt_length": 100, "response_length": 60, "multi_turn": {"format": "hermes"}}},
    "data": {"apply_chat_template_kwargs": {}},
}

CODE = """
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.utils.profiler import simple_timer
from verl.utils.rollout_trace import rollout_trace_op

SEEN = []

# verl 0.5
class SingleTurnAgentLoop(AgentLoopBase):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.response_length = self.config.actor_rollout_ref.rollout.response_length

    @classmethod
    def init_class(cls, config, tokenizer, **kwargs):
        if cls._class_initialized:
            return
        cls._class_initialized = True
        SEEN.append(("init_class", kwargs["greeting"]))

    async def run(self, messages: list[dict[str, Any]], sampling_params: dict[str, Any]) -> AgentLoopOutput:
        metrics = {}
        request_id = uuid4().hex
        prompt_ids = await self.loop.run_in_executor(
            None, lambda: self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True
            ),
        )
        with simple_timer("generate_sequences", metrics):
            response_ids = await self.server_manager.generate(
                request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params
            )
        response_mask = [1] * len(response_ids)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids[: self.response_length],
            response_mask=response_mask[: self.response_length],
            num_turns=2,
            metrics=metrics,
        )

# verl 0.6 and later
@register("calculator_agent")
class CalculatorAgentLoop(AgentLoopBase):
    def __init__(self, *args, bonus=0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.bonus = bonus
        self.parser = ToolParser.get_tool_parser(self.rollout_config.multi_turn.format, self.tokenizer)

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        messages = list(kwargs["raw_prompt"])
        SEEN.append(kwargs)
        metrics, request_id = {}, uuid4().hex
        prompt_ids = await self.apply_chat_template(messages)
        ids, mask, logprobs, turns = list(prompt_ids), [], [], 1
        while True:
            with simple_timer("generate_sequences", metrics):
                output = await self.server_manager.generate(
                    request_id=request_id, prompt_ids=ids, sampling_params={**sampling_params, "stop": ["never"]}
                )
            ids += output.token_ids
            mask += [1] * len(output.token_ids)
            logprobs += output.log_probs
            turns += 1
            _, calls = await self.parser.extract_tool_calls(output.token_ids)
            if not calls:
                break
            result = [{"role": "tool", "content": "5"}]
            tool_ids = await self.apply_chat_template(result, remove_system_prompt=True)
            ids += tool_ids
            mask += [0] * len(tool_ids)
            logprobs += [0.0] * len(tool_ids)
            turns += 1
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=ids[len(prompt_ids):],
            response_mask=mask,
            response_logprobs=logprobs,
            reward_score=1.0 + self.bonus if kwargs["reward_model"]["ground_truth"] == "5" else 0.0,
            num_turns=turns,
            metrics=metrics,
            extra_fields={"tool_rewards": [0.0], "reward_extra_info": {"acc": 1.0}},
        )


class SubAgents(AgentLoopBase):
    '''Compacts its history: two rows, the second from another prompt.'''

    async def run(self, sampling_params, raw_prompt, **kwargs):
        outputs = []
        for content in ("think", "answer"):
            prompt_ids = await self.apply_chat_template([*raw_prompt, {"role": "user", "content": content}])
            output = await self.server_manager.generate(content, prompt_ids=prompt_ids, sampling_params={})
            mask = [1] * len(output.token_ids)
            fields = dict(prompt_ids=prompt_ids, response_ids=output.token_ids, response_mask=mask, metrics={})
            outputs.append(AgentLoopOutput(**fields))
        return outputs


class Careless(AgentLoopBase):
    '''Tokenizes its text again, with an end that the model did not sample.'''

    async def run(self, sampling_params, raw_prompt, mode=None, **kwargs):
        prompt_ids = await self.apply_chat_template(raw_prompt)
        output = await self.server_manager.generate("a", prompt_ids=prompt_ids, sampling_params=sampling_params)
        text = self.tokenizer.decode(output.token_ids)
        if mode == "raise":
            raise RuntimeError("lost")
        if mode == "unknown":
            await self.server_manager.generate("b", prompt_ids=prompt_ids, sampling_params={"beam_width": 3})
        if mode == "endless":
            while True:
                await self.server_manager.generate("a", prompt_ids=prompt_ids + [1] * 999, sampling_params={})
        text = text.upper() if mode == "changed" else text + "!"
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"] + [7]
        mask = [1] * (len(ids) - 1) + [0]
        return AgentLoopOutput(prompt_ids=prompt_ids, response_ids=ids, response_mask=mask, metrics={}, num_turns=2)
"""
YAML = """
- name: single
  _target_: {path}:SingleTurnAgentLoop
  greeting: hello
- name: calculator
  _target_: {path}:CalculatorAgentLoop
  bonus: 0.5
- name: sub_agents
  _target_: {path}:SubAgents
- name: careless
  _target_: {path}:Careless
"""


@pytest.fixture
def loops(chat_tokenizer, tmp_path):
    (tmp_path / "agents.py").write_text(textwrap.dedent(CODE))
    (tmp_path / "agents.yaml").write_text(YAML.format(path=tmp_path / "agents.py"))
    template = ChatTemplate(chat_tokenizer, [chat_tokenizer.eos_token_id])
    decode = lambda ids: chat_tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    context = AgentContext(chat_tokenizer, template, HermesParser(), Toolbox([]), decode, config=CONFIG, timeout=30.0)
    return load_agent_loops(str(tmp_path / "agents.yaml"), KEY, context)


def run(loop, tokenizer, forks, budget=1000, **row):
    template = loop.context.template
    prompt = ModelInput(tuple(template.encode(template.render(MESSAGES))))
    columns = {"raw_prompt": MESSAGES, "ground_truth": "5", "extra_info": {"index": 3}, "data_source": "sums", **row}
    sampler = Script(tokenizer, [], budget, len(prompt), forks=forks)
    result = asyncio.run(loop.run(Prompt(prompt, Sampling(budget, top_p=0.9), 7, "row", 0, columns), sampler))
    return result, sampler


def seen(loop):
    return __import__("sys").modules[loop.cls.__module__].SEEN


def test_run_of_verl_0_5(chat_tokenizer, loops):
    (trajectory,), sampler = run(loops["single"], chat_tokenizer, [[f"It is 5{END}"]])
    assert chat_tokenizer.decode(trajectory.ids) == f"It is 5{END}" and all(trajectory.mask)
    assert trajectory.log_probs == [-0.5] * len(trajectory.ids) and set(trajectory.versions) == {3}
    assert trajectory.score is None and trajectory.extras["num_turns"] == 2  # the reward function scores it
    assert trajectory.prompt.ids == sampler.forked[0].inputs[0].ids and trajectory.finish_reason == "stop"
    (cut,), _ = run(loops["single"], chat_tokenizer, [["x" * 70]])
    assert len(cut.ids) == 60 and cut.finish_reason == "length"
    assert seen(loops["single"]).count(("init_class", "hello")) == 1  # once for all conversations


def test_run_of_verl_0_6(chat_tokenizer, loops):
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    dataset_row = (MESSAGES, {"level": "easy"})
    texts = [f"{call}{END}", f"5{END}"]
    (trajectory,), sampler = run(loops["calculator"], chat_tokenizer, [texts], dataset_row=dataset_row)
    everything = (*trajectory.prompt.ids, *trajectory.ids)
    assert all(everything[: len(given)] == given.ids for given in sampler.forked[0].inputs)
    assert [turn.role for turn in trajectory.turns] == ["assistant", "user", "assistant"]
    sampled = [token for token, mask in zip(trajectory.ids, trajectory.mask, strict=True) if mask]
    assert chat_tokenizer.decode(sampled) == "".join(texts)
    assert trajectory.score == 1.5 and trajectory.extras == {"tool_rewards": [0.0], "acc": 1.0}
    assert trajectory.info == {}
    row = seen(loops["calculator"])[-1]
    assert row["level"] == "easy" and row["index"] == 3 and row["data_source"] == "sums" and row["uid"] == "row"
    assert sampler.forked[0].samplings[0] == {"temperature": 1.0, "top_p": 0.9, "top_k": -1} | {
        "repetition_penalty": 1.0, "stop": ("never",)
    }  # fmt: skip


def test_a_list_of_outputs_is_several_rows(chat_tokenizer, loops):
    rows, sampler = run(loops["sub_agents"], chat_tokenizer, [[f"hm{END}"], [f"5{END}"]])
    assert [chat_tokenizer.decode(row.ids) for row in rows] == [f"hm{END}", f"5{END}"]
    assert rows[0].prompt != rows[1].prompt and len(sampler.forked) == 2


def test_only_tokens_that_were_sampled_are_trained_on(chat_tokenizer, loops):
    (trajectory,), _ = run(loops["careless"], chat_tokenizer, [["five"]])
    assert chat_tokenizer.decode(trajectory.ids) == "five" and all(trajectory.mask)
    assert trajectory.info == {"unsampled_tokens": 1}
    changed, _ = run(loops["careless"], chat_tokenizer, [["five"]], dataset_row=(None, {"mode": "changed"}))
    assert changed.ids == [] and "returned none of the tokens that the engine sampled" in changed.problem


def test_failures_belong_to_one_conversation(chat_tokenizer, loops):
    failed, _ = run(loops["careless"], chat_tokenizer, [["five"]], dataset_row=(None, {"mode": "raise"}))
    assert failed.problem == "agent loop 'careless' failed: RuntimeError: lost"
    empty = [["five", *[""] * 99]]
    endless, _ = run(loops["careless"], chat_tokenizer, empty, dataset_row=(None, {"mode": "endless"}))
    assert endless.problem == "the agent goes on sampling after its token budget is used up"
    with pytest.raises(UserError, match="unknown sampling parameter"):
        run(loops["careless"], chat_tokenizer, [["five"], ["x"]], dataset_row=(None, {"mode": "unknown"}))


def test_an_agent_that_hangs_is_stopped(chat_tokenizer, loops):
    class Hangs:
        def __init__(self, **kwargs):
            pass

        async def run(self, sampling_params, **kwargs):
            await asyncio.Event().wait()

    context = loops["single"].context
    loop = agent_of(Hangs, "hangs", AgentContext(**{**vars(context), "timeout": 0.05}), KEY)
    failed, _ = run(loop, chat_tokenizer, [])
    assert failed.problem == "agent loop 'hangs' did nothing for 0.05 s"


def test_register_and_other_ways_to_an_agent(loops):
    context = loops["single"].context
    registered = registered_agent_loops(context, KEY)["calculator_agent"]
    assert registered.cls.__name__ == "CalculatorAgentLoop" and registered.kwargs == {}

    class Own(SingleTurn):
        def __init__(self, context):
            self.context = context

    assert agent_of(Own, "own", context, KEY).context is context
    with pytest.raises(UserError, match="an agent loop is a class"):
        agent_of(print, "print", context, KEY)


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("agents: [{name: a}]", "expected a list of entries at the top"),
        ("- {name: a}", "needs `name` and `_target_`"),
        ("- {name: a, _target_: 'PATH:SubAgents'}\n- {name: a, _target_: 'PATH:SubAgents'}", "the name is used twice"),
        ("- {name: a, _target_: 'PATH:Nothing'}", "has no 'Nothing'"),
        ("- {name: a, _target_: nonsense}", "expected package.module.Class"),
    ],
)
def test_bad_files(loops, tmp_path, yaml, problem):
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.replace("PATH", str(tmp_path / "agents.py")))
    with pytest.raises(UserError, match=problem):
        load_agent_loops(str(path), KEY, loops["single"].context)


def test_a_turn_has_its_own_limit(chat_tokenizer, loops):
    loop = loops["calculator"]
    loop.context = replace(loop.context, limits=TurnLimits(max_turn_length=8))
    _, sampler = run(loop, chat_tokenizer, [[f"5{END}"]])
    assert sampler.forked[0].samplings[0]["max_tokens"] == 8
    assert loop.context.limits.of_turn(Sampling(8)) == {}  # the budget of the trajectory is as short
    assert loop.context.limits.of_turn(Sampling(20, min_tokens=9)) == {"max_tokens": 8, "min_tokens": 8}
