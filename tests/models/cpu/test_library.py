"""Compiled once, threads shared with torch, and an error that says why where it cannot be."""

from pathlib import Path

import pytest

from burnish.models.cpu import library

SIZES = ("-DGROUP=5", "-DHEAD_DIM=8", "-DBLOCK=16")


def test_compiled_once(monkeypatch):
    library.compiled("decode", *SIZES)
    library.compiled.cache_clear()
    compiled = []
    monkeypatch.setattr(library, "_compile", lambda *given: compiled.append(given))
    assert library.compiled("decode", *SIZES) is not None and compiled == []


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


def test_a_home_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(library.CannotCompileError, match="file/burnish"):
        library.compiled("layers")


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(library.CannotCompileError, match="broken-cc failed: no such option"):
        library.compiled("layers")
