"""An environment: reset, step, close.

    burnish data env examples/agents/guess_number.py:GuessNumber data/guess.parquet --size 256
    burnish train actor_rollout_ref.rollout.agent.environment=examples/agents/guess_number.py:GuessNumber \
        data.train_files=data/guess.parquet ...
"""

import random
import re


class GuessNumber:
    """Guess a number in as few turns as possible."""

    def __init__(self, high: int = 10) -> None:
        self.high = high

    def reset(self, seed: int, row: dict) -> str:
        """Equal seeds give equal games: the samples of a prompt are compared with each other."""
        self.number = random.Random(seed).randint(1, self.high)
        return f"Guess my number between 1 and {self.high}."

    def step(self, action: str) -> tuple[str, float, bool]:
        """(observation, reward, done)"""
        guess = re.search(r"\d+", action)
        if guess is None:
            return "Say a number.", -0.1, False
        if int(guess[0]) == self.number:
            return "Right.", 1.0, True
        return ("Higher." if int(guess[0]) < self.number else "Lower."), 0.0, False

    def close(self) -> None:
        pass
