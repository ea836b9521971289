"""Many programs at a time: bench/sandbox_load.py with fewer of them."""

import sys
from pathlib import Path

import pytest

from burnish.isolation.probe import isolation

from .attacks import attack

BENCH = Path(__file__).parents[2] / "bench"


@attack("programs of the model", "leave processes, mounts, files or memory behind under load")
@pytest.mark.parametrize(
    ("num_programs", "parallel"), [(40, 8), pytest.param(600, 50, marks=pytest.mark.long)] if isolation().strong else []
)
def test_nothing_is_left_behind(num_programs, parallel, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import sandbox_load

    row = sandbox_load.run(num_programs, parallel, burst=num_programs // 2)
    sys.modules.pop("sandbox_load")
    assert (row["right"], row["wrong"], row["failed"]) == (num_programs, 0, 0), row
    assert [row[name] for name in ("processes", "mounts", "descriptors")] == [0, 0, 0], row
