"""Compiled once, shared threads, and the engine says so where there is no compiler."""

from pathlib import Path

import pytest

from burnish.rollout.builtin.native import library
from burnish.rollout.builtin.native.decode import decode_function
from burnish.rollout.engine import Sampling


def test_compiled_once(monkeypatch):
    decode_function(5, 8, 16)
    library.compiled.cache_clear()
    compiled = []
    monkeypatch.setattr(library, "_compile", lambda *given: compiled.append(given))
    assert decode_function(5, 8, 16) is not None and compiled == []


def test_a_header_that_changes_is_compiled_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for text in ("#define ANSWER 41", "#define ANSWER 42"):
        (tmp_path / "answer.h").write_text(text)
        (tmp_path / "ask.c").write_text('#include "answer.h"\nint ask(void) { return ANSWER; }\n')
        monkeypatch.setattr(library, "FOLDER", tmp_path)
        library.compiled.cache_clear()
        assert library.compiled("ask").ask() == int(text[-2:])


def test_one_pool_of_threads():
    """torch's OpenMP is the one that is linked, wherever its wheel has put it."""
    library.compiled("layers")
    loaded = Path("/proc/self/maps").read_text().splitlines()
    assert len({line.split()[-1] for line in loaded if "libgomp" in line}) == 1


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


def test_a_home_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(library.CannotCompileError, match="file/burnish"):
        decode_function(2, 8, 16)


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(library.CannotCompileError, match="broken-cc failed: no such option"):
        decode_function(2, 8, 16)
