"""Simulated futures: the first turn alone is trained on, and its score is the mean of what follows it."""

from __future__ import annotations

import asyncio

import pytest

from burnish.models.model_input import ModelInput
from burnish.reward.sample import Score
from burnish.reward.trajectories import TrajectoryScorer
from burnish.rollout.agents.agent import AGENTS, AgentContext
from burnish.rollout.agents.interactions import load_interactions
from burnish.rollout.chat.parsers.hermes import HermesParser
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.engine import Sampling
from burnish.rollout.episode import Prompt
from burnish.rollout.tools.functions import FunctionTool
from burnish.rollout.tools.toolbox import Toolbox

from .conftest import Script
from .test_tool_agent import END, MESSAGES, add, call

USERS = """
class Teacher:
    '''Scores every answer by its length, and is content with the word yes.'''

    def __init__(self, config):
        pass

    def start_interaction(self, instance_id, **kwargs):
        return instance_id

    def generate_response(self, instance_id, messages, **kwargs):
        answer = messages[-1]["content"]
        return "yes" in answer, "Sure?", float(len(answer)), {}
"""


def run(tokenizer, texts, forks, num_futures=2, interactions=None, tools=(), budget=10_000):
    toolbox = Toolbox(tools)
    template = ChatTemplate(tokenizer, [tokenizer.eos_token_id], toolbox.schemas())
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    context = AgentContext(
        *(tokenizer, template, HermesParser(), toolbox, decode), interactions=interactions, num_futures=num_futures
    )
    prompt = ModelInput(tuple(template.encode(template.render(MESSAGES))))
    sampler = Script(tokenizer, texts, budget, len(prompt), forks)
    row = {"raw_prompt": MESSAGES, "extra_info": {"interaction_kwargs": {"name": "teacher"}}}
    row |= {"data_source": "d", "ground_truth": "5"}
    sample = Prompt(prompt, Sampling(budget), 7, "row", 0, row)
    (trajectory,) = asyncio.run(AGENTS["tool_agent"].load()(context).run(sample, sampler))
    return trajectory, sampler, sample


@pytest.fixture
def teacher(tmp_path):
    (tmp_path / "users.py").write_text(USERS)
    (tmp_path / "users.yaml").write_text(f"interaction: [{{class_name: '{tmp_path / 'users.py'}:Teacher'}}]\n")
    return load_interactions(str(tmp_path / "users.yaml"), "interaction_config_path")


def test_only_the_first_turn_is_trained_on_and_futures_continue_it(chat_tokenizer, teacher):
    forks = [[f"yes 1{END}"], [f"no{END}", f"yes{END}"]]
    trajectory, sampler, _ = run(chat_tokenizer, [f"5{END}"], forks, interactions=teacher)
    assert chat_tokenizer.decode(trajectory.ids) == f"5{END}" and all(trajectory.mask)
    first = (*trajectory.prompt.ids, *trajectory.ids)
    assert [[turn.role for turn in future.turns].count("assistant") for future in trajectory.futures] == [2, 3]
    for number, future in enumerate(trajectory.futures):
        everything = (*future.prompt.ids, *future.ids)
        assert everything[: len(first)] == first
        assert all(everything[: len(given)] == given.ids for given in sampler.forked[number].inputs)
        assert sampler.forked[number].total == sampler.budget(ModelInput(first))  # what the first turn left
    # turn rewards: 1 + 5 and 1 + 2 + 3, so 6 on average
    assert [turn.reward for turn in trajectory.turns] == [6.0]


def test_tools_are_called_in_every_future(chat_tokenizer):
    forks = [[f"it is 5{END}"], [f"five{END}"]]
    trajectory, _, _ = run(chat_tokenizer, [f"{call(a=2, b=3)}{END}"], forks, tools=[FunctionTool(add)])
    assert trajectory.info["tools"]["calls"] == 2 and trajectory.info["num_futures"] == 2
    assert ["\n5\n" in future.text(chat_tokenizer.decode) for future in trajectory.futures] == [True, True]


def test_the_score_is_the_mean_over_futures(chat_tokenizer, teacher):
    forks = [[f"yes{END}"], [f"yes yes{END}"]]
    trajectory, _, prompt = run(chat_tokenizer, [f"5{END}"], forks, interactions=teacher)
    texts = []

    class Lengths:
        reads_rows = reads_prompts = reads_pictures = False

        def expect(self, count):
            pass

        def submit(self, sample):
            from concurrent.futures import Future

            texts.append(sample.solution_str)
            done = Future()
            done.set_result(Score(float(sample.solution_str.count("yes"))))
            return done

    scorer = TrajectoryScorer(Lengths(), chat_tokenizer.decode, chat_tokenizer.decode)  # type: ignore[arg-type]
    (scored,) = asyncio.run(scorer.score(prompt, [trajectory]))
    assert scored.score.value == 1.5 and len(texts) == 2 and all(text.startswith("5") for text in texts)


def test_a_first_turn_that_was_cut_has_no_future(chat_tokenizer):
    trajectory, _, _ = run(chat_tokenizer, ["never ending"], [[]])
    assert (trajectory.finish_reason, trajectory.futures) == ("length", ())
