"""The task of colored shapes: rows by seed, and answers that are in the pictures."""

import io
import random

import numpy as np
import PIL.Image
import pytest

from burnish.data.shapes import COLORS, MAX_SHAPES, SHAPES, Scene, Shape, draw_scene, picture, shape_rows
from burnish.errors import UserError


def pixels(row):
    return np.asarray(PIL.Image.open(io.BytesIO(row["images"][0]["bytes"])))


def colored(image):
    """How many quarters of the picture are not white, and the color of each."""
    half = image.shape[0] // 2
    centers = [image[half * y + half // 2, half * x + half // 2] for y in (0, 1) for x in (0, 1)]
    return [tuple(int(part) for part in center) for center in centers if center.tolist() != [255, 255, 255]]


@pytest.mark.parametrize("task", ["count", "color", "shape"])
def test_answers_are_in_the_pictures(task):
    rows = list(shape_rows(task, 40, seed=1))
    truths = [row["reward_model"]["ground_truth"] for row in rows]
    assert len(set(truths)) == {"count": MAX_SHAPES, "color": len(COLORS), "shape": len(SHAPES)}[task]
    for row, truth in zip(rows, truths, strict=True):
        found = colored(pixels(row))
        if task == "count":
            assert len(found) == int(truth)
        if task == "color":
            assert found == [COLORS[truth]]
        assert row["prompt"][0]["content"].count("<image>") == 1
    if task == "shape":
        areas = {truth: int((pixels(row) != 255).any(-1).sum()) for row, truth in zip(rows, truths, strict=True)}
        assert areas["square"] > areas["circle"] > areas["triangle"]


def test_a_row_depends_on_task_split_seed_and_number_alone():
    rows = list(shape_rows("count", 8, seed=3))
    assert list(shape_rows("count", 3, seed=3)) == rows[:3]
    assert list(shape_rows("count", 8, seed=4)) != rows
    assert next(shape_rows("count", 8, seed=3, split="test"))["images"] != rows[0]["images"]
    assert next(shape_rows("count", 1, seed=3, size=112, question="How many?"))["prompt"][0]["content"] == (
        "<image>How many?"
    )


def test_shapes_differ():
    scenes = {name: Scene((shape := Shape(name, "red", 0),), shape) for name in SHAPES}
    assert len({picture(scene, 56) for scene in scenes.values()}) == len(SHAPES)
    assert max(len(draw_scene(random.Random(seed)).shapes) for seed in range(50)) == MAX_SHAPES


@pytest.mark.parametrize(("arguments", "key"), [(("sort", 1), "--task"), (("count", 0), "--size")])
def test_bad_arguments_are_named(arguments, key):
    with pytest.raises(UserError, match=key):
        next(shape_rows(*arguments, seed=0))
    with pytest.raises(UserError, match="--image-size"):
        next(shape_rows("count", 1, seed=0, size=4))
