"""The engine says so where there is no compiler, and answers all the same."""

from burnish.native import library
from burnish.rollout.engine import Sampling


def test_without_a_compiler_the_engine_says_so(tiny_folder, make_engine, prompt, ask, monkeypatch):
    prompts = [prompt(5), prompt(30)]
    with_it = make_engine(tiny_folder)
    assert with_it.runner.native and with_it.capabilities.remarks == ()
    library.compiled.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    without = make_engine(tiny_folder)
    assert without.runner.native is None and "there is no C compiler" in without.capabilities.remarks[0]
    greedy = Sampling(12, do_sample=False)
    both = [[completion.ids for completion in ask(engine, prompts, greedy)] for engine in (with_it, without)]
    assert both[0] == both[1]
    library.compiled.cache_clear()
