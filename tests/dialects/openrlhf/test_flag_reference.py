"""The flag reference page is generated from the translator."""

from pathlib import Path

from burnish.dialects.openrlhf.flag_reference import NAME, write
from burnish.dialects.openrlhf.flags import PPO

DOCS = Path(__file__).parents[3] / "docs"


def test_page_is_up_to_date_and_has_every_flag(tmp_path):
    page = write(tmp_path).read_text(encoding="utf-8")
    hint = "run: python -m burnish.dialects.openrlhf.flag_reference"
    assert (DOCS / NAME).read_text(encoding="utf-8") == page, hint
    rows = [line for line in page.splitlines() if line.startswith("| `--")]
    cells = {row.split("`")[1].removeprefix("--"): row.split(" | ") for row in rows}
    assert cells.keys() >= PPO.keys()
    assert [name for name in PPO if not cells[name][3].strip()] == []
