import pytest

from burnish.errors import UserError
from burnish.reward.managers import REWARD_MANAGERS, make_scorer
from burnish.reward.settings import RewardSettings

ONE = RewardSettings(num_workers=1)


@pytest.mark.parametrize("name", REWARD_MANAGERS.names())
def test_every_manager_uses_the_built_in_rules(name, sample):
    with make_scorer(name, {}, ONE, None) as scorer:
        assert [score.value for score in scorer.score([sample("42"), sample("1")])] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("naive", lambda solution_str: 0.25),
        ("dapo", lambda solution_str: 0.25),
        ("prime", lambda task, text, truth, extra: 0.25),
        ("batch", lambda solution_strs: [0.25 for _ in solution_strs]),
    ],
)
def test_calling_conventions(name, function, sample):
    with make_scorer(name, {}, ONE, function) as scorer:
        assert [score.value for score in scorer.score([sample(), sample()])] == [0.25, 0.25]


def test_prime_fails_samples_individually(sample):
    def fussy(task, text, truth, extra):
        import time

        time.sleep(60 if text == "hang" else 0)
        return int(text)

    settings = RewardSettings(num_workers=2, timeout=0.5, fallback_score=-1.0)
    with make_scorer("prime", {}, settings, fussy) as scorer:
        scores = scorer.score([sample("1"), sample("x"), sample("hang"), sample("2")])
    assert [score.value for score in scores] == [1.0, -1.0, -1.0, 2.0]
    assert scorer.problems == {"raised": 1, "timed out": 1}


def test_arguments_of_a_manager(tmp_path, sample):
    file = tmp_path / "mine.py"
    file.write_text(
        "from burnish.reward.score import Scorer\n"
        "class Scaled(Scorer):\n"
        "    def __init__(self, settings, reward=None, factor=1.0):\n"
        "        super().__init__(settings, reward)\n"
        "        self.factor = factor\n"
        "    def _finish(self, job, outcome):\n"
        "        super()._finish(job, outcome._replace(value=outcome.value * self.factor))\n"
    )
    name = f"{file}:Scaled"
    with make_scorer(name, {"factor": 3.0}, ONE, None) as scorer:
        assert scorer.score([sample("42")])[0].value == 3.0
    with pytest.raises(UserError, match=r"reward_kwargs.facter=3: .* does not accept 'facter'. Did you mean 'factor'"):
        make_scorer(name, {"facter": 3}, ONE, None)


@pytest.mark.parametrize("name", REWARD_MANAGERS.names())
def test_a_manager_without_arguments_refuses_them(name):
    with pytest.raises(UserError, match=r"reward_kwargs.num_examine=1: .* does not accept 'num_examine'"):
        make_scorer(name, {"num_examine": 1}, ONE, None)
