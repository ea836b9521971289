import sys
import types

import pytest

from burnish.data.source import raw_rows
from burnish.errors import UserError


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"SRC='openai/gsm8k'.*pip install -e .\.\[datasets\]"):
        raw_rows("openai/gsm8k", subset="main", split="train")


def test_rows_of_a_split_and_errors_of_the_library(monkeypatch):
    calls = []

    def load_dataset(name, subset, split):
        calls.append((name, subset, split))
        if split == "nowhere":
            raise ValueError("unknown split")
        return [{"question": "a", "answer": "#### 1"}]

    library = types.ModuleType("datasets")
    library.load_dataset = load_dataset
    library.config = types.ModuleType("datasets.config")
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setitem(sys.modules, "datasets.config", library.config)
    assert raw_rows("openai/gsm8k", subset="main", split="test").row(0) == {"question": "a", "answer": "#### 1"}
    assert calls == [("openai/gsm8k", "main", "test")]
    with pytest.raises(UserError, match=r"cannot load split 'nowhere'.*ValueError: unknown split"):
        raw_rows("openai/gsm8k", subset="main", split="nowhere")
