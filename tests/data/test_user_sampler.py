import pytest
import torch

from burnish.data.user_sampler import UserSampler, load_user_sampler
from burnish.errors import UserError

TEN = range(10)

FILE = """
class Hardest:
    def __init__(self, data_source, data_config):
        self.order = sorted(range(len(data_source)), key=lambda index: -len(data_source[index]["prompt"]))
        self.size = data_config.get("train_batch_size", 0)
    def __iter__(self):
        return iter(self.order)

class Broken:
    def __init__(self, data_source, data_config):
        raise KeyError("what")
"""


class Shuffled:
    """Stateless to look at, but every epoch draws on."""

    def __init__(self, count=10):
        self.count = count
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self):
        return self.count

    def __iter__(self):
        yield from torch.randperm(self.count, generator=self.generator)


class Curriculum:
    """Counts up from `level`; each update moves it."""

    def __init__(self, position=0):
        self.position = position
        self.level = torch.tensor(0)

    def __iter__(self):
        while True:
            self.position += 1
            yield (self.position + int(self.level)) % 10

    def update(self, batch):
        self.level = self.level + batch

    def state_dict(self):
        return {"position": self.position, "level": self.level}

    def load_state_dict(self, state):
        self.position, self.level = state["position"], state["level"]


def test_batches_are_full_and_an_epoch_is_one_iteration():
    sampler = UserSampler(range(10), TEN, 4)
    assert [sampler.next() for _ in range(3)] == [([0, 1, 2, 3], 0), ([4, 5, 6, 7], 0), ([0, 1, 2, 3], 1)]
    assert sampler.batches_per_epoch == 2 and sampler.epochs_done == 1


def test_drawn_prompts_cross_epochs_and_can_be_given_back():
    sampler = UserSampler(range(3), TEN, 2)
    assert sampler.draw(4) == ([0, 1, 2, 0], [0, 0, 0, 1])
    sampler.give_back(2)
    assert sampler.draw(3) == ([2, 0, 1], [0, 1, 1])
    assert sampler.epochs_done == 1


def test_updates_change_what_comes_next():
    sampler = UserSampler(Curriculum(), TEN, 2)
    assert sampler.next()[0] == [1, 2]
    sampler.update(5)
    assert sampler.next()[0] == [8, 9]


@pytest.mark.parametrize("make", [Shuffled, Curriculum])
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_a_resumed_sampler_continues_exactly(make, steps):
    whole, first = UserSampler(make(), TEN, 4), UserSampler(make(), TEN, 4)
    for sampler in (whole, first):
        for _ in range(steps):
            sampler.next()
            sampler.update(3)
    second = UserSampler(make(), TEN, 4)
    second.load_state_dict(first.state_dict())
    assert [second.next() for _ in range(6)] == [whole.next() for _ in range(6)]


def test_what_was_given_back_is_in_the_state():
    first, second = UserSampler(Shuffled(), TEN, 4), UserSampler(Shuffled(), TEN, 4)
    drawn = first.draw(6)
    first.give_back(2)
    second.load_state_dict(first.state_dict())
    assert second.draw(2) == (drawn[0][4:], drawn[1][4:])
    assert second.draw(5) == (first.draw(2) and first.draw(5))


def test_a_state_of_another_sampler_is_refused():
    with pytest.raises(UserError, match="is of another sampler"):
        UserSampler(Shuffled(), TEN, 4).load_state_dict({"epoch": 0, "offset": 4, "num_rows": 10})


@pytest.mark.parametrize(
    ("indices", "problem"),
    [
        ([0, 10], "yields 10. Allowed: whole numbers from 0 to 9"),
        ([-1, 0], "yields -1"),
        (["a", "b"], "yields 'a'"),
        ([0.5], "yields 0.5"),
        ([], "yields nothing"),
        ([1, 2], r"fewer prompts than a batch \(4\)"),
    ],
)
def test_bad_indices_are_named(indices, problem):
    with pytest.raises(UserError, match=rf"data\.sampler\.class_name='Mine'.*{problem}"):
        UserSampler(indices, TEN, 4, "Mine").next()


def test_a_state_that_cannot_be_read_back_is_reported_at_the_save():
    curriculum = Curriculum()
    curriculum.level = object()
    with pytest.raises(UserError, match=r"data\.sampler\.class_name: the state_dict cannot be saved"):
        UserSampler(curriculum, TEN, 4).state_dict()


def test_who_forgets():
    class Forgetful:
        def update(self, batch):
            pass

        def __iter__(self):
            return iter(TEN)

    (notice,) = UserSampler(Forgetful(), TEN, 4).notices()
    assert "its state is lost when the run resumes" in notice
    assert UserSampler(Curriculum(), TEN, 4).notices() == UserSampler(Shuffled(), TEN, 4).notices() == []


def test_a_class_of_a_file(config, tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    cfg = config(train_batch_size=2)
    cfg.sampler.class_path, cfg.sampler.class_name = str(tmp_path / "mine.py"), "Hardest"
    rows = [{"prompt": "1"}, {"prompt": "333"}, {"prompt": "22"}]
    sampler = load_user_sampler(cfg, rows)
    assert sampler.next() == ([1, 2], 0) and sampler.sampler.size == 2
    cfg.sampler.class_name = "Broken"
    with pytest.raises(UserError, match=r"Broken\(data_source=\.\.\., data_config=\.\.\.\) raised KeyError: 'what'"):
        load_user_sampler(cfg, rows)
    cfg.sampler.class_name = "Nobody"
    with pytest.raises(UserError, match=r"data\.sampler\.class_path=.*has no 'Nobody'.*Hardest, Broken"):
        load_user_sampler(cfg, rows)
