"""A few real commands rehearse one step; `make test-all` rehearses more, and bench/rehearse_all.py all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.dialects.translate import translate_command
from burnish.rehearsal.rehearse import rehearse

CASES = Path(__file__).parents[3] / "shared" / "cases"
QUICK = (
    ("verl", "0.4.1", "examples/grpo_trainer/run_qwen2-7b_math.sh"),
    ("verl", "0.5.0", "recipe/dapo/test_dapo_7b_math.sh"),
    ("openrlhf", "0.9.2", "examples/scripts/train_prorlv2_math_hybrid_engine.sh"),
    ("openrlhf", "0.9.2", "examples/scripts/train_sft_mixtral_lora.sh"),
)
MORE = (
    ("verl", "0.4.1", "examples/ppo_trainer/run_deepseek7b_llm.sh"),
    ("verl", "0.4.1", "examples/grpo_trainer/run_qwen2_5_vl-7b_seq_balance.sh"),
    ("verl", "0.5.0", "examples/grpo_trainer/run_qwen2_5_vl-7b_lora.sh"),
    ("verl", "0.8dev", "examples/grpo_trainer/run_qwen2_5_vl-7b_freeze_vision.sh"),
    ("verl", "0.4.1", "examples/ppo_trainer/run_qwen2-7b_rm.sh"),
    ("verl", "0.4.1", "tests/special_e2e/run_gsm8k_fsdp_sgl_multiturn_w_tool.sh"),
    ("verl", "0.5.0", "recipe/one_step_off_policy/dapo_7b_math_megatron_4_12.sh"),
)


def command_of(dialect, version, name):
    path = CASES / f"{dialect}.jsonl"
    if not path.exists():
        pytest.skip("shared folder is not here")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    cases = [row for row in rows if (row["version"], row.get("name")) == (version, name)]
    assert cases, f"no case {name}"
    return ["python3", "-m", cases[0]["entry"], *cases[0]["argv"]]


def check(case):
    report = rehearse(translate_command(command_of(*case)))
    assert not report.refused and not [finding for finding in report.findings if finding.breaks], report.findings
    assert report.passed or report.unsupported
    assert report.seconds > 0 and report.not_tested


@pytest.mark.long
@pytest.mark.parametrize("case", QUICK, ids=lambda case: Path(case[2]).stem)
def test_a_real_command_rehearses(case):
    check(case)


@pytest.mark.long
@pytest.mark.parametrize("case", MORE, ids=lambda case: Path(case[2]).stem)
def test_more_real_commands_rehearse(case):
    check(case)
