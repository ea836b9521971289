import textwrap

import pytest

from burnish.reward.sample import Sample
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings


@pytest.fixture
def sample():
    """sample("response", uid=..., ...) with everything else filled in."""

    def make(response="42", truth="42", *, source="burnish/sums", extra=None, uid="row-0", number=0):
        return Sample(source, response, truth, extra if extra is not None else {}, uid, number)

    return make


@pytest.fixture
def reward_file(tmp_path):
    """reward_file(code) writes the code to a file and returns its path."""

    def write(code, name="my_reward.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(code))
        return str(path)

    return write


@pytest.fixture
def scorer():
    """scorer(reward=None, **settings): one worker by default; closed after the test."""
    scorers = []

    def make(reward=None, **settings):
        scorers.append(Scorer(RewardSettings(**({"num_workers": 1} | settings)), reward))
        return scorers[-1]

    yield make
    for scorer in scorers:
        scorer.close()
