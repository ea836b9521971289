import json

import pytest

from burnish.data.datagen import RowGenerator, load_row_generator
from burnish.data.dataset import PromptDataset
from burnish.data.sampler import PromptSampler
from burnish.errors import UserError

FILE = """
class Maker:
    def __init__(self, config):
        self.path = config.path
    def generate(self, dataset):
        return []

class Idle:
    pass
"""


class Doubler:
    """The first row once more, with the number of rows as its question."""

    def __init__(self):
        self.calls = 0

    def generate(self, dataset):
        self.calls += 1
        return [{**dataset[0], "prompt": f"{len(dataset)}\u2028"}]

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


@pytest.fixture
def data(tokenizer, config, sums):
    return lambda count=3, **changes: PromptDataset(sums(count), tokenizer, config(**changes))


def test_rows_are_made_saved_and_taken_up_again(data, tmp_path):
    first = RowGenerator(Doubler(), data())
    assert [first.grow(), first.grow()] == [4, 5]
    write = first.writer()
    first.grow()
    write(tmp_path)
    assert len((tmp_path / "rows.jsonl").read_text().split("\n")) == 3
    second = RowGenerator(Doubler(), data())
    second.load(tmp_path, json.loads(json.dumps(first.state_dict())))
    assert second.generator.calls == 3 and len(second.dataset) == 5
    assert second.grow() == 6
    assert [second.dataset.uid(i, 0) for i in range(6)] == [first.dataset.uid(i, 0) for i in range(6)]
    assert (
        second.dataset.batch(range(6), 0)["prompt_ids"].lists()
        == first.dataset.batch(range(6), 0)["prompt_ids"].lists()
    )


def test_new_prompts_join_with_the_next_epoch(data):
    generator, sampler = RowGenerator(Doubler(), data(4)), PromptSampler(4, 2, True, seed=0)
    seen = []
    for _ in range(5):
        seen.append(sampler.next())
        sampler.grow(generator.grow())
    assert sorted(seen[0][0] + seen[1][0]) == [0, 1, 2, 3]
    assert [epoch for _, epoch in seen] == [0, 0, 1, 1, 1]
    assert sorted(seen[2][0] + seen[3][0] + seen[4][0]) == [0, 1, 2, 3, 4, 5]  # four, and one after each of two steps


def test_a_sampler_that_grew_is_resumed_within_an_epoch_and_across():
    whole = PromptSampler(4, 2, True, seed=0)
    for step in range(4):
        state = json.loads(json.dumps(whole.state_dict()))
        second = PromptSampler(4, 2, True, seed=0)
        second.load_state_dict(state)
        assert second.next() == PromptSampler.next(whole) and second.state_dict() == whole.state_dict()
        whole.grow(5 + step)


def test_prompts_can_be_given_back_across_epochs_of_different_size():
    sampler = PromptSampler(4, 2, True, seed=0)
    sampler.grow(6)
    drawn = sampler.draw(4 + 6 + 3)
    sampler.give_back(8)
    assert sampler.draw(8) == (drawn[0][-8:], drawn[1][-8:])


def test_rows_that_are_too_long_are_left_out_and_not_saved(data):
    class Long(Doubler):
        def generate(self, dataset):
            return [{**dataset[0], "prompt": "9" * 500}, {**dataset[0], "prompt": "9"}]

    generator = RowGenerator(Long(), data(filter_overlong_prompts=True, max_prompt_length=40))
    assert generator.grow() == 4 and len(generator.rows) == 1


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["text"], "returned a str among its rows, not a dict"),
        ([{"prompt": object()}], "cannot be saved in a checkpoint"),
        ([{"prompt": "1"}], "rows of Mine, row 0: no 'data_source'"),
        (5, "."),
    ],
)
def test_bad_rows_are_named(data, rows, problem):
    class Bad:
        def generate(self, dataset):
            return rows if rows != 5 else 1 / 0

    if rows == 5:
        problem = r"generate\(dataset\) raised ZeroDivisionError"
    with pytest.raises(UserError, match=problem) as caught:
        RowGenerator(Bad(), data(), "Mine").grow()
    assert caught.value.key == "data.datagen.name"


def test_a_checkpoint_made_without_it_is_refused(data, tmp_path):
    with pytest.raises(UserError, match="the checkpoint has no generated rows"):
        RowGenerator(Doubler(), data()).load(tmp_path, None)


def test_a_class_of_a_file(config, data, tmp_path):
    (tmp_path / "maker.py").write_text(FILE)
    cfg = config()
    cfg.datagen.path, cfg.datagen.name = str(tmp_path / "maker.py"), "Maker"
    generator = load_row_generator(cfg, data())
    assert generator.generator.path == cfg.datagen.path and generator.grow() == 3
    cfg.datagen.name = "Idle"
    with pytest.raises(UserError, match=r"data\.datagen\.name='Idle': not a generator class"):
        load_row_generator(cfg, data())


def test_generated_rows_that_are_dropped_are_counted(tokenizer, config, sums):
    class Long:
        def generate(self, dataset):
            return [{**dataset[0], "prompt": "1+1="}, {**dataset[0], "prompt": "x" * 100}]

    dataset = PromptDataset(sums(2), tokenizer, config(filter_overlong_prompts=True, max_prompt_length=50))
    generator = RowGenerator(Long(), dataset, "Long")
    assert generator.take_notices() == []
    generator.grow()
    assert generator.take_notices() == ["1 of 2 rows of Long were dropped as too long"]
    assert generator.take_notices() == []
    generator.grow()
    assert generator.take_notices() == ["2 of 4 rows of Long were dropped as too long"]
