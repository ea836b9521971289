"""The page of flags is what the translator does."""

from pathlib import Path

from burnish.dialects.openrlhf.flags import PPO
from burnish.dialects.openrlhf.page import NAME, render, write

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_current():
    assert (DOCS / NAME).read_text(encoding="utf-8") == render(), "run: python -m burnish.dialects.openrlhf.page"


def test_every_flag_has_a_row_that_says_something(tmp_path):
    rows = [line for line in write(tmp_path).read_text(encoding="utf-8").splitlines() if line.startswith("| `--")]
    cells = {row.split("`")[1].removeprefix("--"): row.split(" | ") for row in rows}
    assert cells.keys() >= PPO.keys()
    assert [name for name in PPO if not cells[name][3].strip()] == []
