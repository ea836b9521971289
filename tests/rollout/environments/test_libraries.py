"""Adapters against the real libraries that `make test-all` installs: textarena, skyrl-gym, OpenEnv."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time

import pytest

from burnish.errors import UserError
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.environments.environment import load_environment
from burnish.rollout.environments.rows import environment_rows

from .test_environments import END, rewards, run

pytestmark = pytest.mark.long


def test_textarena(chat_tokenizer):
    factory = load_environment("textarena", {"id": "GuessTheNumber-v0"})
    (row,) = environment_rows(factory, 1, seed=3)
    target = random.Random(3).randint(1, 20)
    columns = {"raw_prompt": row["prompt"], "extra_info": row["extra_info"]}
    texts = [f"[{target - 1}]{END}", f"I say [{target}]{END}"]
    before = random.getstate()
    for _ in range(2):
        trajectory, sampler, _ = run(chat_tokenizer, factory, list(texts), row=columns)
        assert rewards(trajectory) == [0.0, 1.0] and sampler.forked == {}
        assert "The target number is higher." in chat_tokenizer.decode(trajectory.ids)
        assert trajectory.extras["invalid"] == 0.0
    assert random.getstate() == before  # the games have generators of their own
    with pytest.raises(UserError, match="num_players=2"):
        load_environment("textarena", {"id": "TicTacToe-v0"})
    with pytest.raises(UserError, match="Did you mean"):
        load_environment("textarena", {"id": "GuesTheNumber-v0"})


def test_textarena_against_an_opponent(chat_tokenizer, tmp_path):
    (tmp_path / "players.py").write_text(
        "def play(text):\n    return next(f'[{n}]' for n in (0, 1, 2) if f\"'[{n}]'\" in text.rpartition('Moves')[2])\n"
    )
    kwargs = {"id": "TicTacToe-v0", "num_players": 2, "opponent": f"{tmp_path / 'players.py'}:play"}
    factory = load_environment("textarena", kwargs)
    won, _, _ = run(chat_tokenizer, factory, [f"[{cell}]{END}" for cell in (4, 3, 5)])
    assert rewards(won) == [0.0, 0.0, 1.0]
    lost, _, _ = run(chat_tokenizer, factory, [f"[{cell}]{END}" for cell in (4, 3, 8, 7)])
    assert rewards(lost)[-1] == -1.0


def test_skyrl_gym(chat_tokenizer):
    factory = load_environment("skyrl_gym", {"id": "gsm8k_multi_turn", "max_turns": 3})
    row = {"raw_prompt": [{"role": "user", "content": "2+3?"}], "ground_truth": "5", "extra_info": {"index": 0}}
    trajectory, sampler, _ = run(chat_tokenizer, factory, [f"hm{END}", f"#### 4{END}", f"#### 5{END}"], row=row)
    assert rewards(trajectory) == [0.0, pytest.approx(0.2 / 3), 1.0] and sampler.forked == {}
    single, _, _ = run(chat_tokenizer, load_environment("skyrl_gym", {"id": "gsm8k"}), [f"#### 5{END}"], row=row)
    assert rewards(single) == [1.0]
    with pytest.raises(UserError, match="Did you mean 'gsm8k'"):
        load_environment("skyrl_gym", {"id": "gsm8"})
    with pytest.raises(UserError, match="rows of your own data"):
        list(environment_rows(factory, 1, 0))


@pytest.fixture
def openenv_server():
    """A server of an environment that is written as OpenEnv's documentation shows."""
    import uvicorn
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

    class Guess(Action):
        message: str

    class Hint(Observation):
        text: str = ""

    class GuessEnvironment(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self.target = 0

        def reset(self, seed=None, episode_id=None, **kwargs):
            self.target = (seed or 0) % 10
            return Hint(text="Guess a digit.", done=False, reward=0.0)

        def step(self, action, timeout_s=None, **kwargs):
            if action.message == str(self.target):
                return Hint(text="Right.", done=True, reward=1.0)
            return Hint(text=f"Not {action.message}.", done=False, reward=-0.1)

        @property
        def state(self):
            return State()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = create_fastapi_app(GuessEnvironment, Guess, Hint, max_concurrent_envs=16)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


def test_openenv(chat_tokenizer, openenv_server):
    factory = load_environment("openenv", {"base_url": openenv_server})
    rows = list(environment_rows(factory, 2, seed=4))
    assert rows[0]["prompt"] == [{"role": "user", "content": "Guess a digit."}]
    for row, seed in zip(rows, (4, 5), strict=True):
        columns = {"raw_prompt": row["prompt"], "extra_info": row["extra_info"]}
        trajectory, _, _ = run(chat_tokenizer, factory, [f"0{END}", f"{seed}{END}"], row=columns)
        assert rewards(trajectory) == [-0.1, 1.0] and "Not 0." in chat_tokenizer.decode(trajectory.ids)


def test_openenv_sessions_do_not_share_state(chat_tokenizer, openenv_server):
    factory = load_environment("openenv", {"base_url": openenv_server, "observation_field": "text"})

    async def play(seed):
        environment = factory({})
        await environment.reset(seed, {})
        await asyncio.sleep(0)
        result = await environment.step(str(seed))
        await environment.close()
        return result.done

    async def together():
        return await asyncio.gather(*(play(seed) for seed in range(10)))

    assert asyncio.run(together()) == [True] * 10
    gone, _, _ = run(chat_tokenizer, load_environment("openenv", {"base_url": "http://127.0.0.1:9"}), [])
    assert "Failed to connect" in gone.problem
    assert gone.ids == [] and TurnLimits().max_user_turns is None
