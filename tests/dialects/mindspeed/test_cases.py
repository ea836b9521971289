"""Every RL config of MindSpeed RL translates: no key is lost, and only expected settings are refused."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from burnish.config import load
from burnish.dialects.mindspeed.dialect import MindSpeed
from burnish.dialects.mindspeed.schema import GENERATE, MEGATRON, RL, SAMPLING
from burnish.errors import UserError

CASES = Path(__file__).parents[4] / "shared" / "cases" / "mindspeed.jsonl"
PENDING = re.compile(r"not supported yet")
SEED = Path(__file__).parents[4] / "shared" / "seeds"
# (config, setting) that are expected to be refused.
EXPECTED_REFUSALS = {
    ("dpo_qwen3_30b_a3b_A3", "megatron_training.stage"),  # DPO is not an RL stage
    ("orca_rlhf", "handler_name"),  # preference pairs
}


@cache
def translated_cases():
    if not CASES.exists():
        pytest.skip("shared folder is not here")
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    known = [row for row in rows if MindSpeed().knows_config(row["config"])]
    return [(row, MindSpeed().translate_config(row["config"])) for row in known]


def written(config):
    for section, values in config.items():
        if not isinstance(values, dict):
            yield from () if section in ("defaults", "model") else [section]
            continue
        for key, value in values.items():
            nested = isinstance(value, dict) and key in ("sampling_config", "actor_resource")
            yield from (f"{section}.{key}.{inner}" for inner in value) if nested else [f"{section}.{key}"]


def test_every_written_key_has_an_item():
    num_configs = 0
    for case, translation in translated_cases():
        if "rl_config" not in case["config"]:
            continue
        reported = {item.theirs for item in translation.items}
        assert [key for key in written(case["config"]) if key not in reported] == [], case["file"]
        num_configs += 1
    assert num_configs > 20


def test_only_expected_refusals():
    refused = {
        (Path(case["file"]).stem, item.theirs)
        for case, translation in translated_cases()
        for item in translation.items
        if item.status == "refused"
    }
    assert refused == EXPECTED_REFUSALS


def test_translated_configs_load():
    """Apart from pending keys, the translated config loads without errors."""
    num_checked = 0
    for case, translation in translated_cases():
        if "rl_config" not in case["config"] or translation.exit_status:
            continue
        problems = []
        try:
            load(translation.overrides())
        except UserError as error:
            problems = [inner.problem for inner in getattr(error, "errors", [error])]
        assert [text for text in problems if not PENDING.search(text)] == [], case["file"]
        num_checked += 1
    assert num_checked > 18


def test_every_key_of_the_seed_is_known():
    """Rows of its tables start with a key in backquotes."""
    files = sorted(SEED.glob("004*.txt"))
    if not files:
        pytest.skip("shared folder is not here")
    known = {*MEGATRON, *RL, *GENERATE, *SAMPLING, "defaults", "megatron_training", "actor_config", "rl_config"}
    rows = [line.split("`")[1] for line in files[0].read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = [row for row in rows if row.isascii()]
    assert len(named) > 75
    assert [row for row in named if row not in known | {"generate_config"}] == []
