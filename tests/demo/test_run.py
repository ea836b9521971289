"""A demo that is stopped says so."""

from __future__ import annotations

import pytest

from burnish.demo import run
from burnish.demo.calculator import CalculatorTask
from burnish.errors import UserError
from burnish.loop.finish import Result


def test_a_stopped_demo_names_its_step(tmp_path, monkeypatch):
    monkeypatch.setattr(CalculatorTask, "warm_up", lambda *args: "nothing")
    monkeypatch.setattr(run, "reinforce", lambda *args, **kwargs: Result(tmp_path, 3))
    with pytest.raises(UserError, match=r"stopped at step 3 of 50.*Type: the same command again"):
        run.run_demo(tmp_path, 1, steps=50, task="tools")
