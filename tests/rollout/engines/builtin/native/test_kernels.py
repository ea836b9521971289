"""The C kernels of an engine, and the engine without a compiler."""

from burnish.models.cpu import library
from burnish.models.cpu.layers import Layers
from burnish.rollout.engine import Sampling


def test_without_a_compiler_the_engine_reports_it(tiny_folder, make_engine, prompt, ask, monkeypatch):
    prompts = [prompt(5), prompt(30)]
    with_it = make_engine(tiny_folder)
    assert with_it.runner.cpu_kernels and with_it.capabilities.remarks == ()
    library.compiled.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    without = make_engine(tiny_folder)
    assert without.runner.cpu_kernels is None and "no C compiler found" in without.capabilities.remarks[0]
    greedy = Sampling(12, do_sample=False)
    both = [[completion.ids for completion in ask(engine, prompts, greedy)] for engine in (with_it, without)]
    assert both[0] == both[1]
    library.compiled.cache_clear()


def test_which_kernels_an_engine_uses(family_folder, make_engine, prompt, ask, monkeypatch):
    called = []
    for name in ("product", "norm", "gate", "rotate"):
        own = getattr(Layers, name)

        def note(self, *given, name=name, own=own):
            called.append(name)
            return own(self, *given)

        monkeypatch.setattr(Layers, name, note)
    engine = make_engine(family_folder)
    called.clear()  # they were tried
    ask(engine, [prompt(9)], Sampling(3, do_sample=False, ignore_eos=True))
    gated = set() if "gemma" in engine.runner.model.config.model_type else {"gate"}  # theirs is another
    assert set(called) == {"product", "norm", "rotate"} | gated
    assert engine.runner.cpu_kernels.layers.packed
    engine.sleep()
    assert not engine.runner.cpu_kernels.layers.packed, "laid-out weights sleep too"
