"""Real verl commands are examined without errors, and most get a memory plan by the model's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.dialects.translate import translate_command
from burnish.doctor.examine import examine
from burnish.sizing import GIB

CASES = Path(__file__).parents[3] / "shared" / "cases" / "verl.jsonl"
EVERY = 16


@pytest.mark.long
def test_real_commands_are_examined():
    if not CASES.exists():
        pytest.skip("shared folder is not here")
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    planned = []
    for case in cases[::EVERY]:
        words = ["python3", "-m", case["entry"], *case["argv"]]
        result = examine(translate_command(words), capacity=80 * GIB, check_files=False)
        assert json.dumps(result.to_json(), default=str)
        planned.append(result.plan is not None)
    assert len(planned) >= 10
    assert sum(planned) / len(planned) > 0.8
