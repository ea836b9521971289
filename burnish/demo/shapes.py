"""The task `vision`: pictures of colored shapes, and questions about them.

`color?` asks for the color of the shapes, `count?` for their number. The warm-up teaches the form of an answer, with
answers drawn at random: whatever the model sees in a picture, it has learned from rewards.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from burnish.batch import Batch, Ragged
from burnish.demo.problems import Problem, Problems
from burnish.demo.tasks import Progress
from burnish.demo.tiny import END
from burnish.demo.tiny_vision import make_vision_model
from burnish.demo.warmup import Warmup
from burnish.models.load import ModelSource, load_tokenizer, quiet_transformers
from burnish.models.vision.encoder import VisionEncoder, load_vision_encoder
from burnish.seeding import derive_seed

FAMILY = "qwen2_5_vl"
SIDE = 56  # pixels; four tokens
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "black": (25, 25, 25),
}
SHAPES = ("circle", "square", "triangle")
MAX_COUNT = 4  # shapes in a picture, one in each quarter
COLOR, COUNT = "color?", "count?"
ANSWERS = {COLOR: tuple(COLORS), COUNT: tuple(str(number) for number in range(1, MAX_COUNT + 1))}
WORDS = (COLOR, COUNT, *COLORS)  # one token each
HIDDEN, LAYERS = 64, 2
GAIN = 2.5
WARMUP, TRAIN, HELD_OUT = 256, 2000, 256
WARMUP_UPDATES = 40
LEARNING_RATE = 2e-3  # of the warm-up


@dataclass(frozen=True)
class Scene:
    """What is in a picture."""

    color: str
    shapes: tuple[tuple[str, int, int, int], ...]  # kind, center and radius

    def draw(self) -> bytes:
        """The picture as a PNG file."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (SIDE, SIDE), (255, 255, 255))
        pen, fill = ImageDraw.Draw(image), COLORS[self.color]
        for kind, x, y, radius in self.shapes:
            box = (x - radius, y - radius, x + radius, y + radius)
            if kind == "circle":
                pen.ellipse(box, fill=fill)
            elif kind == "square":
                pen.rectangle(box, fill=fill)
            else:
                pen.polygon([(x, box[1]), (box[0], box[3]), (box[2], box[3])], fill=fill)
        content = io.BytesIO()
        image.save(content, format="PNG")
        return content.getvalue()

    def answer(self, question: str) -> str:
        return self.color if question == COLOR else str(len(self.shapes))


def random_scene(rng: random.Random) -> Scene:
    """One to four shapes of one color, each somewhere in a quarter of its own."""
    quarters = [(x, y) for x in (SIDE // 4, 3 * SIDE // 4) for y in (SIDE // 4, 3 * SIDE // 4)]
    shapes = []
    for x, y in rng.sample(quarters, rng.randint(1, MAX_COUNT)):
        radius = rng.randint(7, 10)
        free = SIDE // 4 - radius
        shapes.append((rng.choice(SHAPES), x + rng.randint(-free, free), y + rng.randint(-free, free), radius))
    return Scene(rng.choice(tuple(COLORS)), tuple(shapes))


@dataclass(frozen=True)
class PictureProblem(Problem):
    """A question about a picture."""

    picture: bytes = field(default=b"", repr=False)

    def row(self, data_source: str) -> dict[str, Any]:
        row = super().row(data_source)
        return row | {
            "prompt": [{"role": "user", "content": f"<image>{self.question}"}],
            "images": [{"bytes": self.picture}],
        }


def random_problem(rng: random.Random) -> PictureProblem:
    scene, question = random_scene(rng), rng.choice((COLOR, COUNT))
    return PictureProblem(question, scene.answer(question), {"question": question}, scene.draw())


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
    model = make_vision_model(folder, FAMILY, words=WORDS, hidden=HIDDEN, layers=LAYERS, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= GAIN
    with quiet_transformers():
        model.save_pretrained(folder)


class VisionTask:
    """Name the color of shapes, and count them."""

    model = "Qwen2.5-VL"
    goal = "name the color of shapes in a picture, and to count them"
    heading = "question"
    data_source = "burnish/shapes"
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
        rng = random.Random(derive_seed(seed, "pictures"))
        problems: dict[bytes, Problem] = {}
        while len(problems) < WARMUP + TRAIN + HELD_OUT:
            problem = random_problem(rng)
            problems[problem.picture] = problem
        return Problems.split(list(problems.values()), WARMUP, TRAIN)

    def warm_up(self, model: Path, problems: Problems, seed: int, progress: Progress) -> str:
        """Create a random model and teach it the form of an answer; the answers themselves are random."""
        model.mkdir(parents=True, exist_ok=True)
        make_model(model, seed)
        warmup, renderer = Warmup(model, LEARNING_RATE), Renderer(model)
        rng = random.Random(derive_seed(seed, "warm-up"))
        for number in range(WARMUP_UPDATES):
            chosen: list[Any] = rng.choices(problems.warmup, k=warmup.batch_size)
            answers = [rng.choice(ANSWERS[problem.question]) for problem in chosen]
            warmup.update(renderer.batch(chosen, answers), lr_scale=1.0 - number / WARMUP_UPDATES)
            progress(f"update {number + 1} of {WARMUP_UPDATES}")
        warmup.save()
        return f"{WARMUP} pictures with random answers ({WARMUP_UPDATES} updates)"

    def reward(self) -> Callable[..., Any] | None:
        return compute_score

    def tools(self) -> Sequence[Any]:
        return ()

    def sample(self, record: Mapping[str, Any]) -> tuple[str, str]:
        """The number of the row tells pictures of one question apart."""
        question = next(question for question in (COLOR, COUNT) if question in record["input"].rpartition(END)[0])
        return f"{question} (picture {record['uid'].split('-')[-2]})", record["output"]
