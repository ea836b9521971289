import os
import pickle

import pytest

from burnish.data import measure as measure_module
from burnish.data.encode import PromptEncoder
from burnish.data.measure import LengthCounter, PromptLength, measure
from burnish.data.prompt import Prompt
from burnish.errors import UserError


def prompts(count):
    for number in range(count):
        role = "narrator" if number % 50 == 7 else "user"
        yield Prompt([{"role": role, "content": "x" * (number % 13)}])


def test_two_workers_measure_what_one_does(tokenizer, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    encoder = PromptEncoder(tokenizer, {"tail": "."})
    alone = measure(prompts(300), encoder, workers=1)
    assert measure(prompts(300), encoder, workers=2) == alone
    assert len(alone) == 300
    assert alone[3] == PromptLength(len(encoder.ids(Prompt([{"role": "user", "content": "xxx"}]))))
    assert "no narrators" in alone[57].failure


def test_a_length_counter_can_be_pickled(tokenizer):
    counter = LengthCounter(PromptEncoder(tokenizer, {}))
    assert pickle.loads(pickle.dumps(counter))(list(prompts(20))) == counter(list(prompts(20)))


def test_no_worker_is_started_for_one(tokenizer, monkeypatch):
    monkeypatch.setattr(measure_module, "ProcessPoolExecutor", None)
    assert len(measure(prompts(5), PromptEncoder(tokenizer, {}), workers=None)) == 5


def test_a_tokenizer_that_cannot_be_sent_is_an_error_that_helps(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(UserError, match=r"cannot be sent to worker processes.*filter_overlong_prompts_workers=1"):
        measure(prompts(5), PromptEncoder(lambda text: text, {}), workers=2)
