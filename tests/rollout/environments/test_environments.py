"""Conversations in environments: a class of one's own, gymnasium and reasoning-gym."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from burnish.cli.main import main
from burnish.data.files import read_file
from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.environment_agent import EnvironmentAgent
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.chat.parsers.hermes import HermesParser
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.engine import Sampling
from burnish.rollout.environments.environment import (
    EnvironmentFactory,
    StepResult,
    WholePrompt,
    as_step,
    load_environment,
    python_environment,
)
from burnish.rollout.environments.rows import environment_rows
from burnish.rollout.environments.session import EnvironmentSession
from burnish.rollout.episode import Prompt
from burnish.rollout.tools.toolbox import Toolbox

from ..agents.conftest import Script

END = "<|im_end|>"
MESSAGES = [{"role": "user", "content": "Play."}]


class GuessNumber:
    """Guess a number between 1 and 3."""

    opened = 0

    def __init__(self, high=3):
        self.high = high

    def reset(self, seed, row):
        type(self).opened += 1
        self.number, self.thread = random.Random(seed).randint(1, self.high), threading.get_ident()
        return f"Guess my number between 1 and {self.high}."

    def step(self, action):
        assert threading.get_ident() == self.thread  # one thread for one environment
        if "hang" in action:
            threading.Event().wait(30)
        if "raise" in action:
            raise OSError("broken")
        if str(self.number) in action:
            return StepResult("Right.", 1.0, True, {"won": 1.0})
        return "No. Try again.", -0.5, False

    def close(self):
        type(self).opened -= 1


def run(tokenizer, factory, texts, *, limits=TurnLimits(), timeout=30.0, row=None, budget=10_000, **context):  # noqa: B008
    template = ChatTemplate(tokenizer, [tokenizer.eos_token_id])
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    agent = EnvironmentAgent(
        AgentContext(tokenizer, template, HermesParser(), Toolbox([]), decode, limits, timeout=timeout, **context),
        factory,
    )
    columns = {"raw_prompt": MESSAGES, "extra_info": {}, "ground_truth": "", "data_source": "games", **(row or {})}
    prompt = ModelInput(tuple(template.encode(template.render(columns["raw_prompt"]))))
    sampler = Script(tokenizer, texts, budget, len(prompt), forks=[texts])
    trajectory = asyncio.run(agent.run(Prompt(prompt, Sampling(budget), 7, "row", 0, columns), sampler))
    return trajectory, sampler, template


def rewards(trajectory):
    return [turn.reward for turn in trajectory.turns if turn.role == "assistant"]


ONE_TURN = TurnLimits(max_assistant_turns=1)


def answer(seed=1):
    return random.Random(seed).randint(1, 3)


def test_an_environment_of_ones_own(chat_tokenizer):
    right = answer()
    texts = [f"is it {right % 3 + 1}?{END}", f"{right}{END}"]
    row = {"extra_info": {"environment": {"seed": 1}}}
    trajectory, sampler, template = run(chat_tokenizer, python_environment(GuessNumber), texts, row=row)
    assert rewards(trajectory) == [-0.5, 1.0] and trajectory.score == 0.0  # and no reward function is called
    first = {"role": "user", "content": "Guess my number between 1 and 3."}
    messages = [first, {"role": "assistant", "content": texts[0].removesuffix(END)}]
    messages += [{"role": "user", "content": "No. Try again."}, {"role": "assistant", "content": str(right)}]
    everything = (*trajectory.prompt.ids, *trajectory.ids)
    assert chat_tokenizer.decode(everything) + "\n" == template.render(messages, reply=False)
    assert all(everything[: len(given)] == given.ids for given in sampler.forked[0].inputs)
    assert trajectory.extras == {"num_turns": 4, "environment_reward": 0.5, "won": 1.0}
    assert GuessNumber.opened == 0  # closed


def test_prompts_and_first_observations(chat_tokenizer):
    text = "Guess my number between 1 and 3."
    joined, _, template = run(chat_tokenizer, python_environment(GuessNumber), [f"1{END}"], limits=ONE_TURN)
    assert chat_tokenizer.decode(joined.prompt.ids) == template.render(
        [{"role": "user", "content": f"Play.\n\n{text}"}]
    )
    row = {"raw_prompt": [{"role": "user", "content": text}], "extra_info": {"environment": {"seed": 1}}}
    same, sampler, _ = run(chat_tokenizer, python_environment(GuessNumber), [f"{answer()}{END}"], row=row)
    assert sampler.forked == {} and chat_tokenizer.decode(same.prompt.ids).count(text) == 1  # the row has it already

    class Speaks(GuessNumber):
        def reset(self, seed, row):
            super().reset(seed, row)
            return WholePrompt([{"role": "system", "content": "You guess."}, {"role": "user", "content": text}])

    whole, _, _ = run(chat_tokenizer, python_environment(Speaks), [f"1{END}"], limits=ONE_TURN)
    expected = [{"role": "system", "content": "You guess."}, {"role": "user", "content": text}]
    assert chat_tokenizer.decode(whole.prompt.ids) == template.render(expected)


def test_an_environment_that_never_ends_is_bounded(chat_tokenizer):
    factory, wrong = python_environment(GuessNumber), [f"none{END}"] * 50
    turns, _, _ = run(chat_tokenizer, factory, list(wrong), limits=TurnLimits(max_assistant_turns=3))
    assert rewards(turns) == [-0.5] * 3 and turns.mask[-1]  # the last turn is rewarded too
    users, _, _ = run(chat_tokenizer, factory, list(wrong), limits=TurnLimits(max_user_turns=1))
    assert len(rewards(users)) == 2
    tokens, sampler, _ = run(chat_tokenizer, factory, list(wrong), budget=200)
    assert tokens.finish_reason == "length" and len(tokens.ids) <= 200 and len(sampler.forked[0].inputs) < 10


def test_failures_belong_to_one_conversation(chat_tokenizer):
    factory = python_environment(GuessNumber)
    hung, _, _ = run(chat_tokenizer, factory, [f"hang{END}"], timeout=0.05)
    assert hung.problem == "environment GuessNumber: step took longer than 0.05 s"
    broken, _, _ = run(chat_tokenizer, factory, [f"none{END}", f"raise{END}"])
    assert broken.problem == "environment GuessNumber: step failed: OSError: broken" and rewards(broken)[0] == -0.5
    unmade, _, _ = run(chat_tokenizer, EnvironmentFactory("X", GuessNumber, {"low": 1}), [])
    assert "creating it failed: TypeError" in unmade.problem and unmade.ids == []
    no_step, _, _ = run(chat_tokenizer, EnvironmentFactory("X", NoStep), [f"1{END}"])
    assert "step failed: AttributeError" in no_step.problem
    with_reward, _, _ = run(chat_tokenizer, factory, [f"1{END}"], limits=ONE_TURN, has_reward=True)
    assert with_reward.score is None  # a reward function is called in addition


class NoStep:
    def reset(self):
        return "?"


def test_a_class_without_step_is_refused():
    with pytest.raises(UserError, match=r"no method step\. Allowed: a class with reset"):
        python_environment(NoStep)
    with pytest.raises(UserError, match="no method reset and no method step"):
        load_environment("pathlib:PurePath", {})
    assert python_environment(lambda: NoStep()).name == "<lambda>"


def test_a_coroutine_environment(chat_tokenizer):
    class Async:
        async def reset(self, seed):
            await asyncio.sleep(0)
            return ("state", {"info": 1})

        async def step(self, action):
            return {"observation": [{"role": "user", "content": "?"}], "reward": 2, "done": action == "stop"}

    trajectory, _, _ = run(chat_tokenizer, python_environment(Async), [f"go{END}", f"stop{END}"])
    assert rewards(trajectory) == [2.0, 2.0]


def test_a_killed_run_catches_up():
    """Recorded answers are used; the first that is missing finds the environment in the right state."""

    class Counter:
        def reset(self):
            self.count = 0
            return "count"

        def step(self, action):
            self.count += 1
            return str(self.count), float(self.count), False

    class Journal:
        def __init__(self, recorded):
            self.recorded, self.acted = list(recorded), []

        async def observe(self, act, *, name="", repeatable=True, key=None):
            if self.recorded:
                return self.recorded.pop(0)
            self.acted.append(await act())
            return self.acted[-1]

    async def play(journal, steps):
        session = EnvironmentSession(python_environment(Counter), {}, 0, {}, 30.0)
        await session.reset(journal)
        results = [await session.step("go", journal) for _ in range(steps)]
        await session.close()
        return [result.reward for result in results]

    first = Journal([])
    assert asyncio.run(play(first, 4)) == [1.0, 2.0, 3.0, 4.0]
    killed = Journal(first.acted[:3])  # reset and two steps
    assert asyncio.run(play(killed, 4)) == [1.0, 2.0, 3.0, 4.0] and len(killed.acted) == 2


def test_what_step_may_return():
    assert as_step(("a", 1, True, False, {"n": 2, "text": "x"})) == StepResult(
        [{"role": "user", "content": "a"}], 1.0, True, {"n": 2.0}
    )
    with pytest.raises(Exception, match="as reward"):
        as_step(("a", float("nan"), False))
    with pytest.raises(Exception, match="must return a StepResult"):
        as_step("a")


def test_names(tmp_path):
    with pytest.raises(UserError, match="Did you mean 'gymnasium'"):
        load_environment("gymnasiun", {})
    with pytest.raises(UserError, match="expected a class or function"):
        python_environment(GuessNumber())
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    def __init__(self, a=1):\n        self.a = a\n    reset = step = print\n")
    assert load_environment(f"{file}:Mine", {"a": 5})({"a": 6}).a == 6


def test_gymnasium(chat_tokenizer):
    kwargs = {
        "id": "FrozenLake-v1", "render_mode": "ansi", "is_slippery": False, "actions": ["left", "down", "right", "up"],
    }  # fmt: skip
    factory = load_environment("gymnasium", kwargs)
    moves = ["down", "down", "right", "right", "down", "right"]
    texts = [f"dance{END}", *(f"I go up? No: {move}!{END}" for move in moves)]
    trajectory, _, _ = run(chat_tokenizer, factory, texts)
    text = chat_tokenizer.decode((*trajectory.prompt.ids, *trajectory.ids))
    assert rewards(trajectory) == [0.0] * 6 + [1.0] and trajectory.finish_reason == "stop"
    assert "[S]FFF" in text and "Not a valid action. Answer with one of: left, down, right, up." in text
    assert text.count("[") == 6  # one position per observation: the first, and one per move but the last


def test_gymnasium_text_spaces_and_seeds(chat_tokenizer):
    import gymnasium

    class Echo(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Text(9), gymnasium.spaces.Text(4)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.word = "".join(self.np_random.choice(list("ab"), 3))
            return self.word, {}

        def step(self, action):
            return action, float(action == self.word), True, False, {}

    if "BurnishEcho-v0" not in gymnasium.registry:
        gymnasium.register("BurnishEcho-v0", Echo, disable_env_checker=True)
    factory = load_environment("gymnasium", {"id": "BurnishEcho-v0", "instructions": "Echo."})
    rows = list(environment_rows(factory, 4, seed=10))
    words = [row["prompt"][0]["content"].split("\n")[2] for row in rows]
    assert len(set(words)) > 1 and rows[0]["extra_info"]["environment"] == {"seed": 10}
    for row, word in zip(rows, words, strict=True):
        columns = {"raw_prompt": row["prompt"], "extra_info": row["extra_info"]}
        trajectory, sampler, _ = run(chat_tokenizer, factory, [f"{word}{END}"], row=columns)
        assert rewards(trajectory) == [1.0] and sampler.forked == {}  # the prompt of the row is the observation


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({}, "required by this environment"),
        ({"id": "Nowhere-v9"}, "gymnasium cannot make it"),
        ({"id": "FrozenLake-v1", "actions": ["a", "b"]}, "the actions are Discrete"),
        ({"id": "Pendulum-v1"}, "its actions are Box"),
    ],
)
def test_gymnasium_refuses(kwargs, problem):
    with pytest.raises(UserError, match=problem):
        load_environment("gymnasium", kwargs)


def test_reasoning_gym(chat_tokenizer, tmp_path, capsys):
    out = tmp_path / "sums.parquet"
    arguments = ["data", "env", "reasoning_gym", str(out), "dataset=chain_sum", "max_terms=2", "--size", "3"]
    assert main([*arguments, "--system", "Think."]) == 0 and "wrote 3 rows" in capsys.readouterr().out
    rows = read_file(str(out), key="FILE")
    factory = load_environment("reasoning_gym", {"dataset": "chain_sum", "max_terms": 2, "tries": 2})
    for number in range(3):
        row = rows.row(number)
        truth = row["reward_model"]["ground_truth"]
        assert row["data_source"] == "environment/reasoning_gym" and row["prompt"][0]["role"] == "system"
        columns = {"raw_prompt": row["prompt"], "extra_info": row["extra_info"]}
        texts = [f"<answer>wrong</answer>{END}", f"well, <answer> {truth} </answer>{END}"]
        trajectory, sampler, _ = run(chat_tokenizer, factory, texts, row=columns)
        assert rewards(trajectory)[-1] == 1.0 and rewards(trajectory)[0] < 1.0 and trajectory.extras["acc"] == 1.0
        assert sampler.forked == {}
    with pytest.raises(UserError, match="Did you mean 'chain_sum'"):
        load_environment("reasoning_gym", {"dataset": "chain_sums"})
    with pytest.raises(UserError, match="reasoning-gym refuses it"):
        load_environment("reasoning_gym", {"dataset": "chain_sum", "max_terms": -3})
