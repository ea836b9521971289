"""Greedy accuracy: the share of questions that a model answers right when it always takes its likeliest token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from burnish.demo.task import DIGITS, Problem
from burnish.demo.warmup import prompt_ids
from burnish.models.load import ModelSource
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.training.backend import Backend

MAX_ANSWER = DIGITS + 3  # room for an answer that is too long, and for the end marker


@dataclass(frozen=True)
class Answered:
    """A question and what the model said."""

    problem: Problem
    text: str

    @property
    def right(self) -> bool:
        return self.text.strip() == self.problem.answer


class Examiner:
    """Asks questions of whatever weights it is given, with one small engine."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        options = EngineOptions(
            model=ModelSource(path=str(folder)),
            dtype=torch.float32,
            device=torch.device("cpu"),
            eos_ids=(tokenizer.eos_token_id,),
            max_model_len=64,
            own_thread=False,
        )
        self.engine = BuiltinEngine(options)
        self.asked = 0

    def ask(self, backend: Backend, problems: list[Problem]) -> list[Answered]:
        self.asked += 1
        self.engine.load_weights(backend.weights(), self.asked)
        greedy = Sampling(MAX_ANSWER, do_sample=False)
        futures = self.engine.generate(
            [Request(ModelInput(tuple(prompt_ids(self.tokenizer, p))), greedy, 0) for p in problems]
        )
        texts = [self.tokenizer.decode(future.result().ids, skip_special_tokens=True) for future in futures]
        return [Answered(problem, text) for problem, text in zip(problems, texts, strict=True)]

    def accuracy(self, backend: Backend, problems: list[Problem]) -> float:
        answered = self.ask(backend, problems)
        return sum(answer.right for answer in answered) / len(answered)

    def close(self) -> None:
        self.engine.close()
