"""Real launch commands: convert accepts all that are not broken, and run accepts all whose features exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from burnish.dialects.report import PENDING, REFUSED, load_errors, missing_keys
from burnish.dialects.translate import translate_command, translate_yaml
from burnish.errors import NotSupportedYet, UserError

CASES = Path(__file__).parents[3] / "shared" / "cases"
EVERY = 16  # in `make test`; `make test-all` takes all
FLOOR = 0.97
# Cases that the source system itself cannot run as they are written, or that are no runs, each with the reason.
BROKEN = {
    "run_deepseek671b_math_megatron_80gb": "a placeholder that Hydra cannot parse",
    "train_rejection_sampling_llama": "no column with a response: nothing to train on",
    "runtime_env": "variables of a Ray cluster",
}
# Features that Burnish does not have, and refuses by name.
MISSING = {
    "run_qwen2-7b_math_megatron_lora": "LoRA with tensor parallelism",
    "dapo_7b_math_fsdp2_4_12": "12 ranks that do not divide the batch",
    **dict.fromkeys(
        (
            "run_deepseek671b_math_megatron_96gb",
            "run_qwen3_vl-235b-megatron",
            "qwen2-70b_grpo_32_h800_fsdp_vllm",
        ),
        "a vLLM server over several nodes",
    ),
    "run_qwen2-7b_math_trtllm": "TensorRT-LLM",
    "dpo_qwen3_30b_a3b_A3": "preference training",
    "orca_rlhf": "data of preference training",
    "run_glm41v_9b": "the family GLM-V",
    "run_minicpmo2_6": "the family MiniCPM-V",
    "train_vlm_math_hybrid_engine": "the family Qwen3.5",
}


def translations(dialect: str, every: int, folder: Path):
    """(name, how to translate it) of every case, or of some."""
    path = CASES / f"{dialect}.jsonl"
    if not path.exists():
        pytest.skip("shared folder is not here")
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if dialect != "mindspeed":
        for case in cases[::every]:
            words = ["python3", "-m", case["entry"], *case["argv"]]
            yield Path(case["name"]).stem, lambda words=words: translate_command(words)
        return
    for case in cases:  # all files, because configs refer to one another
        file = folder / case["version"] / case["file"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(case["config"], sort_keys=False), encoding="utf-8")
    runs = [case for case in cases if "/model/" not in case["file"]]
    for case in runs[:: max(1, every // 3)]:
        file = str(folder / case["version"] / case["file"])
        yield Path(case["file"]).stem, lambda file=file: translate_yaml(file)


def check(dialect: str, every: int, folder: Path) -> None:
    num_cases, refused = 0, {}
    for name, translate in translations(dialect, every, folder):
        num_cases += 1
        try:
            translation = translate()
        except NotSupportedYet:
            continue  # a program for a feature that does not exist, refused by name
        except UserError as error:
            refused[name] = error.text()
            continue
        reasons = [f"{item.theirs}: {item.why}" for item in translation.items if item.status == REFUSED]
        if reasons:
            refused[name] = reasons
        elif not translation.count(PENDING):  # nothing is missing: loading it, as `burnish run` does, must work
            assert [error.key for error in load_errors(translation)] == missing_keys(translation), name
    unexpected = {name: why for name, why in refused.items() if name not in BROKEN | MISSING}
    assert unexpected == {}
    num_refused = len(refused.keys() - BROKEN.keys() - MISSING.keys())
    assert num_cases > 2 and num_refused <= (1 - FLOOR) * num_cases + (every > 1)


@pytest.mark.parametrize("dialect", ["verl", "openrlhf", "mindspeed"])
def test_a_sample_of_real_commands_is_accepted(dialect, tmp_path):
    check(dialect, EVERY if dialect == "verl" else EVERY // 2, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("dialect", ["verl", "openrlhf", "mindspeed"])
def test_real_commands_are_accepted(dialect, tmp_path):
    check(dialect, 1, tmp_path)


@pytest.mark.parametrize("dialect", ["verl", "openrlhf", "mindspeed"])
def test_settings_of_conversations_act_in_real_commands(dialect, tmp_path):
    """Every command of the cases that has tools, simulated users or agents."""
    path = CASES / f"{dialect}.jsonl"
    if not path.exists():
        pytest.skip("shared folder is not here")
    words = ("rollout.multi_turn.", "rollout.agent.", "agent_func_path", "multi_turn_enable", "tool_config_path")
    named = {
        Path(case.get("name") or case["file"]).stem
        for case in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if any(word in json.dumps(case) for word in words)
    }
    for name, translate in translations(dialect, 1, tmp_path):
        if name not in named:
            continue
        items = [item for item in translate().items if any(word in f"{item.theirs} {item.ours}" for word in words)]
        assert items and not [item for item in items if item.status in (PENDING, REFUSED)], name
