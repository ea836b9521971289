"""The warm-up: SFT until the model solves some unseen problems."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from burnish.batch import Batch, Ragged
from burnish.demo.task import Problem
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm, quiet_transformers
from burnish.seeding import derive_seed
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows

LEARNING_RATE = 2e-3
BATCH = 64
MAX_STEPS = 400
FIRST_EVAL = 24  # no seed reaches the target earlier


class Warmup:
    """Trains the model in a folder with SFT. `measure(backend)` returns its accuracy on other problems."""

    def __init__(self, folder: Path, tokenizer: Any, seed: int) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.seed = seed
        model = load_causal_lm(ModelSource(path=str(folder)), PACKED, torch.float32)
        self.backend = SingleBackend(model, torch.device("cpu"), torch.float32)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)

    def run(
        self, problems: list[Problem], measure: Callable[[SingleBackend], float], target: float, every: int
    ) -> float:
        """Train until `measure` reaches `target`; saves the model and returns its accuracy."""
        rng = random.Random(derive_seed(self.seed, "warm-up"))
        accuracy = 0.0
        for step in range(1, MAX_STEPS + 1):
            self._update(rng.choices(problems, k=BATCH))
            if step >= FIRST_EVAL and step % every == 0:
                accuracy = measure(self.backend)
                if accuracy >= target:
                    break
        with quiet_transformers():
            self.backend.model.save_pretrained(self.folder)
        return accuracy

    def _update(self, problems: list[Problem]) -> None:
        self.backend.model.train()
        log_probs, _ = self.backend.log_probs(PackedRows.of(self._batch(problems), self.backend.device), 1.0, False)
        (-log_probs.mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.backend.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _batch(self, problems: list[Problem]) -> Batch:
        end = [self.tokenizer.eos_token_id]
        prompts = [prompt_ids(self.tokenizer, problem) for problem in problems]
        answers = [self.tokenizer.encode(problem.answer, add_special_tokens=False) + end for problem in problems]
        return Batch(prompt_ids=Ragged.of(prompts, torch.int64), responses=Ragged.of(answers, torch.int64))


def prompt_ids(tokenizer: Any, problem: Problem) -> list[int]:
    """Token ids of the rendered question, with a generation prompt."""
    messages = [{"role": "user", "content": problem.question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
