"""NullScorer, which replaces Scorer when only a reward model scores."""

import inspect

from burnish.reward.null_scorer import NullScorer
from burnish.reward.sample import Sample, Score
from burnish.reward.score import Scorer


def test_it_has_the_public_interface_of_a_scorer():
    public = {name: member for name, member in vars(Scorer).items() if not name.startswith("_") and name != "caller"}
    assert public.keys() == {name for name in vars(NullScorer) if not name.startswith("_")}
    for name, member in public.items():
        if inspect.isfunction(member):
            assert inspect.signature(member) == inspect.signature(getattr(NullScorer, name))


def test_it_scores_any_data_source_zero():
    scorer = NullScorer()
    scorer.check_sources(["no rule scores this"])
    sample = Sample("no rule scores this", "1", None, {}, "uid", 0)
    assert scorer.submit(sample).result() == Score(0.0)
    assert scorer.score([sample, sample]) == [Score(0.0)] * 2
    assert scorer.drain_problems() == []
