"""Pictures of colored shapes, drawn from a seed, with questions about them: a small visual task.

A model can only answer by looking: the question of every row of a task is the same.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.registry import Registry
from burnish.seeding import derive_seed

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

SHAPE_TASKS = Registry("visual task", key="--task")

COLORS = {"red": (220, 40, 40), "green": (40, 170, 70), "blue": (50, 80, 220), "yellow": (240, 210, 40)}
SHAPES = ("circle", "square", "triangle")
BACKGROUND = (255, 255, 255)
MAX_SHAPES = 4  # in one picture: each has a quarter of it
DATA_SOURCE = "burnish/shapes"


@dataclass(frozen=True)
class Shape:
    name: str
    color: str
    cell: int  # 0..3: which quarter of the picture it is in


@dataclass(frozen=True)
class Scene:
    """What is in a picture; `asked` is the shape that the question is about."""

    shapes: tuple[Shape, ...]
    asked: Shape


@SHAPE_TASKS.register("count", question="How many shapes are in the image? Answer with a number.")
def count(scene: Scene) -> str:
    return str(len(scene.shapes))


@SHAPE_TASKS.register("color", question="What color is the shape in the image?", most=1)
def color(scene: Scene) -> str:
    return scene.asked.color


@SHAPE_TASKS.register("shape", question="What shape is in the image?", most=1)
def shape(scene: Scene) -> str:
    return scene.asked.name


def shape_rows(
    task: str, num_rows: int, seed: int, *, size: int = 56, split: str = "train", question: str | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of verl's schema, with a PNG of `size` x `size` pixels each. Row n depends on task, split, seed and n."""
    if task not in SHAPE_TASKS:
        raise UserError("no such task", key="--task", value=task, allowed=SHAPE_TASKS.names())
    if num_rows < 1:
        raise UserError("must be at least 1", key="--size", value=num_rows)
    if not 16 <= size <= 4096:
        raise UserError("must be between 16 and 4096", key="--image-size", value=size)
    entry = SHAPE_TASKS[task]
    answer: Callable[[Scene], str] = entry.load()
    question = entry.metadata["question"] if question is None else question
    for number in range(num_rows):
        scene = draw_scene(random.Random(derive_seed("shapes", task, split, seed, number)), entry.metadata.get("most"))
        truth = answer(scene)
        yield {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": f"<image>{question}"}],
            "images": [{"bytes": picture(scene, size), "path": None}],
            "ability": "vision",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"split": split, "index": number, "task": task, "answer": truth},
        }


def draw_scene(rng: random.Random, most: int | None = None) -> Scene:
    """Up to `most` shapes, each in a quarter of its own; all numbers of shapes are equally likely."""
    cells = rng.sample(range(MAX_SHAPES), rng.randint(1, most or MAX_SHAPES))
    shapes = tuple(Shape(rng.choice(SHAPES), rng.choice(list(COLORS)), cell) for cell in sorted(cells))
    return Scene(shapes, rng.choice(shapes))


def picture(scene: Scene, size: int) -> bytes:
    """The picture as PNG."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (size, size), BACKGROUND)
    canvas = ImageDraw.Draw(image)
    for each in scene.shapes:
        _draw(canvas, each, size / 2)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _draw(canvas: ImageDraw, each: Shape, cell: float) -> None:
    left, top = cell * (each.cell % 2), cell * (each.cell // 2)
    box = (left + cell / 8, top + cell / 8, left + cell * 7 / 8, top + cell * 7 / 8)
    fill = COLORS[each.color]
    outlines: dict[str, Callable[[], None]] = {
        "circle": lambda: canvas.ellipse(box, fill=fill),
        "square": lambda: canvas.rectangle(box, fill=fill),
        "triangle": lambda: canvas.polygon([(box[0], box[3]), (box[2], box[3]), (left + cell / 2, box[1])], fill=fill),
    }
    outlines[each.name]()
