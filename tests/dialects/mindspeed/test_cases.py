"""Every RL config that MindSpeed RL ships is understood: no key is lost, and refusals have a reason that holds."""

import json
from pathlib import Path

import pytest

from burnish.config import load
from burnish.dialects.mindspeed.dialect import MindSpeed
from burnish.dialects.mindspeed.sections import GENERATE, MEGATRON, RL, SAMPLING
from burnish.errors import UserError

CASES = Path(__file__).parents[4] / "shared" / "cases" / "mindspeed.jsonl"
SEED = Path(__file__).parents[4] / "shared" / "seeds"
# What a person would have to mend, and in which of the configs.
TRUE_REASONS = {
    ("dpo_qwen3_30b_a3b_A3", "megatron_training.stage"),  # DPO is no RL job
    ("orca_rlhf", "handler_name"),  # pairs for DPO
}


def cases():
    if not CASES.exists():
        pytest.skip("shared folder is not here")
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if MindSpeed().knows_config(row["config"])]


def written(config):
    for section, values in config.items():
        if not isinstance(values, dict):
            yield from () if section in ("defaults", "model") else [section]
            continue
        for key, value in values.items():
            nested = isinstance(value, dict) and key in ("sampling_config", "actor_resource")
            yield from (f"{section}.{key}.{inner}" for inner in value) if nested else [f"{section}.{key}"]


def test_every_key_that_was_written_has_an_item():
    read = 0
    for case in cases():
        if "rl_config" not in case["config"]:
            continue
        told = {item.theirs for item in MindSpeed().read_config(case["config"]).items}
        assert [key for key in written(case["config"]) if key not in told] == [], case["file"]
        read += 1
    assert read > 20


def test_refused_only_for_reasons_that_hold():
    refused = {
        (Path(case["file"]).stem, item.theirs)
        for case in cases()
        for item in MindSpeed().read_config(case["config"]).items
        if item.status == "refused"
    }
    assert refused == TRUE_REASONS


def test_what_they_become_breaks_no_rule():
    """Beside keys that wait, and the length that was refused, the translated config is one that loads."""
    checked = 0
    for case in cases():
        translation = MindSpeed().read_config(case["config"])
        if "rl_config" not in case["config"] or translation.exit_status:
            continue
        problems = []
        try:
            load(translation.overrides())
        except UserError as error:
            problems = [one.problem for one in getattr(error, "errors", [error])]
        assert [one for one in problems if "not supported yet" not in one] == [], case["file"]
        checked += 1
    assert checked > 18


def test_every_key_that_the_seed_names_is_known():
    """Its tables have a key in backquotes at the start of each row, below the heading of a section."""
    files = sorted(SEED.glob("004*.txt"))
    if not files:
        pytest.skip("shared folder is not here")
    known = {*MEGATRON, *RL, *GENERATE, *SAMPLING, "defaults", "megatron_training", "actor_config", "rl_config"}
    rows = [line.split("`")[1] for line in files[0].read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = [row for row in rows if row.isascii()]
    assert len(named) > 75
    assert [row for row in named if row not in known | {"generate_config"}] == []
