"""docs/keys.md is what the config says."""

from pathlib import Path

import pytest

from burnish.config.keys_doc import render, write
from burnish.config.tree import tree

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "lang"), [("keys.md", "en"), ("keys.zh.md", "zh")])
def test_the_pages_are_current(page, lang):
    assert (DOCS / page).read_text(encoding="utf-8") == render(lang), "run: python -m burnish.config.keys_doc"


def test_the_page_has_every_key_in_one_row(tmp_path):
    english, _ = write(tmp_path)
    rows = [line for line in english.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    train = rows[: len(tree().leaves)]
    assert [row.split("`")[1] for row in train] == list(tree().leaves)
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)
