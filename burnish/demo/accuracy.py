"""Accuracy of a model with greedy decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from burnish.demo.problems import Problem
from burnish.demo.tiny import prompt_ids
from burnish.models.load import ModelSource
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.training.backend import Backend


class GreedyEvaluator:
    """Generates answers of at most `max_answer` tokens with one small engine, for the current weights of a backend."""

    def __init__(self, folder: Path, tokenizer: Any, max_answer: int) -> None:
        self.tokenizer = tokenizer
        self.max_answer = max_answer
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

    def accuracy(self, backend: Backend, problems: list[Problem]) -> float:
        self.version += 1
        self.engine.load_weights(backend.weights(), self.version)
        greedy = Sampling(self.max_answer, do_sample=False)
        futures = self.engine.generate(
            [Request(ModelInput(tuple(prompt_ids(self.tokenizer, p.question))), greedy, 0) for p in problems]
        )
        texts = [self.tokenizer.decode(future.result().ids, skip_special_tokens=True) for future in futures]
        correct = [text.strip() == problem.answer for text, problem in zip(texts, problems, strict=True)]
        return sum(correct) / len(correct)

    def close(self) -> None:
        self.engine.close()
