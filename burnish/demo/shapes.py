"""The task `vision`: how many shapes are in a picture?

The warm-up trains the form of an answer, with random numbers: whatever the model sees in a picture, it has learned from
rewards. Pictures are those of `burnish.data.shapes`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from burnish.batch import Batch, Ragged
from burnish.data.shapes import DATA_SOURCE, MAX_SHAPES, shape_rows
from burnish.demo.problems import Problem, Problems
from burnish.demo.tasks import Progress
from burnish.demo.tiny_vision import make_vision_model
from burnish.demo.warmup import Warmup
from burnish.models.load import ModelSource, load_tokenizer, quiet_transformers
from burnish.models.vision.encoder import VisionEncoder, load_vision_encoder
from burnish.seeding import derive_seed

FAMILY = "qwen2_5_vl"
QUESTION = "count?"  # one token
ANSWERS = tuple(str(number) for number in range(1, MAX_SHAPES + 1))
HIDDEN, LAYERS = 64, 2
GAIN = 2.5
WARMUP, TRAIN, HELD_OUT = 128, 1000, 256
NUM_PROBLEMS = WARMUP + TRAIN + HELD_OUT
WARMUP_UPDATES = 40
LEARNING_RATE = 2e-3  # of the warm-up


@dataclass(frozen=True)
class PictureProblem(Problem):
    """A question about a picture, a PNG file."""

    picture: bytes = field(default=b"", repr=False)

    def row(self, data_source: str) -> dict[str, Any]:
        prompt = [{"role": "user", "content": f"<image>{self.question}"}]
        return super().row(data_source) | {"prompt": prompt, "images": [{"bytes": self.picture}]}


def shuffled(problems: Sequence[PictureProblem], seed: int) -> list[PictureProblem]:
    """The same questions and answers, each with the picture of another problem."""
    pictures = [problem.picture for problem in problems]
    random.Random(seed).shuffle(pictures)
    return [
        PictureProblem(problem.question, problem.answer, problem.extra_info, picture)
        for problem, picture in zip(problems, pictures, strict=True)
    ]


class Renderer:
    """Problems with an answer as tokens and processed pictures, as in a rollout."""

    def __init__(self, folder: Path) -> None:
        source = ModelSource(path=str(folder))
        self.tokenizer = load_tokenizer(str(folder), key=source.key)
        self.encoder: VisionEncoder = load_vision_encoder(source, self.tokenizer)

    def batch(self, problems: Sequence[PictureProblem], answers: Sequence[str]) -> Batch:
        from burnish.media import read_image

        prompts = []
        for problem in problems:
            content = [{"type": "image"}, {"type": "text", "text": problem.question}]
            messages = [{"role": "user", "content": content}]
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            prompts.append(self.encoder.encode(str(text), [read_image(problem.picture, "picture")]))
        end = [self.tokenizer.eos_token_id]
        responses = [self.tokenizer.encode(answer, add_special_tokens=False) + end for answer in answers]
        return Batch(
            prompt_ids=Ragged.of([list(prompt.ids) for prompt in prompts], torch.int64),
            media=[prompt.media for prompt in prompts],
            responses=Ragged.of(responses, torch.int64),
        )


def compute_score(solution_str: str, ground_truth: str) -> dict[str, float]:
    correct = float(solution_str.strip() == ground_truth)
    return {"score": correct, "acc": correct}


def make_model(folder: Path, seed: int) -> None:
    """A random model, with larger weights than such models start from: at their size a tiny one hardly looks."""
    model = make_vision_model(folder, FAMILY, words=[QUESTION], hidden=HIDDEN, layers=LAYERS, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= GAIN
    with quiet_transformers():
        model.save_pretrained(folder)


class VisionTask:
    """Count the shapes in a picture."""

    model = "Qwen2.5-VL"
    goal = "count the shapes in a picture"
    heading = "picture"
    data_source = DATA_SOURCE
    accuracy = f"val-core/{data_source}/acc/mean@1"
    steps = 120
    settings = (
        "data.train_batch_size=32",
        "data.max_prompt_length=32",
        "data.max_response_length=4",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=5",
    )

    def make_problems(self, seed: int) -> Problems:
        """Problems with distinct pictures, determined by the seed."""
        problems: dict[bytes, Problem] = {}
        for row in shape_rows("count", 2 * NUM_PROBLEMS, seed):
            answer, picture = row["reward_model"]["ground_truth"], row["images"][0]["bytes"]
            problems.setdefault(picture, PictureProblem(QUESTION, answer, {}, picture))
        return Problems.split(list(problems.values())[:NUM_PROBLEMS], WARMUP, TRAIN)

    def warm_up(self, model: Path, problems: Problems, seed: int, progress: Progress) -> str:
        """Create a random model and train it on the form of an answer, with random answers."""
        model.mkdir(parents=True, exist_ok=True)
        make_model(model, seed)
        warmup, renderer = Warmup(model, LEARNING_RATE), Renderer(model)
        rng = random.Random(derive_seed(seed, "warm-up"))
        for number in range(WARMUP_UPDATES):
            chosen: list[Any] = rng.choices(problems.warmup, k=warmup.batch_size)
            answers = rng.choices(ANSWERS, k=len(chosen))
            warmup.update(renderer.batch(chosen, answers), lr_scale=1.0 - number / WARMUP_UPDATES)
            progress(f"update {number + 1} of {WARMUP_UPDATES}")
        warmup.save()
        return f"{WARMUP} pictures with random answers ({WARMUP_UPDATES} updates)"

    def reward(self) -> Callable[..., Any] | None:
        return compute_score

    def tools(self) -> Sequence[Any]:
        return ()

    def sample(self, record: Mapping[str, Any]) -> tuple[str, str]:
        """The picture by the number of its row."""
        return f"picture {record['uid'].split('-')[-2]}", record["output"]
