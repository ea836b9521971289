"""Where no function is asked."""

import re
from pathlib import Path

import burnish
from burnish.reward.absent import NoFunction
from burnish.reward.sample import Sample, Score
from burnish.reward.score import Scorer


def test_it_can_stand_wherever_the_loop_has_a_scorer():
    loop = Path(burnish.__file__).parent / "loop"
    used = {name for file in loop.glob("*.py") for name in re.findall(r"\bscorer\.([a-z]\w*)", file.read_text())}
    assert {"submit", "drain_problems", "close"} <= used
    assert used - set(dir(NoFunction)) == set()
    assert set(vars(NoFunction)) - set(dir(Scorer)) - {"__weakref__", "__annotations__"} == set()


def test_it_scores_nothing_of_any_data_source():
    nobody = NoFunction()
    nobody.check_sources(["no rule scores this"])
    sample = Sample("no rule scores this", "1", None, {}, "uid", 0)
    assert nobody.submit(sample).result() == Score(0.0)
    assert nobody.score([sample, sample]) == [Score(0.0)] * 2
    assert nobody.drain_problems() == []
