"""Accuracy of a model with greedy decoding."""

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

MAX_ANSWER = DIGITS + 3  # allows answers that are too long, and EOS


@dataclass(frozen=True)
class Answer:
    """A problem and the model's answer."""

    problem: Problem
    text: str

    @property
    def correct(self) -> bool:
        return self.text.strip() == self.problem.answer


class GreedyEvaluator:
    """Generates answers with one small engine, for the current weights of a backend."""

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
        self.version = 0

    def generate(self, backend: Backend, problems: list[Problem]) -> list[Answer]:
        self.version += 1
        self.engine.load_weights(backend.weights(), self.version)
        greedy = Sampling(MAX_ANSWER, do_sample=False)
        futures = self.engine.generate(
            [Request(ModelInput(tuple(prompt_ids(self.tokenizer, p))), greedy, 0) for p in problems]
        )
        texts = [self.tokenizer.decode(future.result().ids, skip_special_tokens=True) for future in futures]
        return [Answer(problem, text) for problem, text in zip(problems, texts, strict=True)]

    def accuracy(self, backend: Backend, problems: list[Problem]) -> float:
        answers = self.generate(backend, problems)
        return sum(answer.correct for answer in answers) / len(answers)

    def close(self) -> None:
        self.engine.close()
