"""How many sequences an engine generates at once, and the rough duration of a step: printed, and the low one first."""

from __future__ import annotations

import json

import pytest

from burnish.cli.main import main
from burnish.doctor.gpus import gpu_of_device

COMMAND = [
    *("python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo"),
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "trainer.n_gpus_per_node=8",
]
LONG = [
    "data.max_prompt_length=2048",
    "data.max_response_length=30000",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.28",
]


def doctor(capsys, *words: str, as_json: bool = True):
    flags = ["--json"] if as_json else []
    status = main(["doctor", *flags, "--no-files", "--gpu-memory", "80", "--", *COMMAND, *words])
    printed = capsys.readouterr().out
    return status, json.loads(printed) if as_json else printed


def test_a_cache_for_few_sequences_is_the_first_finding_after_refusals(capsys):
    _, output = doctor(capsys, *LONG)
    first = next(finding for finding in output["findings"] if finding["severity"] != "refused")
    assert "the KV cache holds" in first["text"] and "sequences of" in first["text"], output["findings"]
    held = output["arithmetic"]["sequences_at_once"]
    assert held < 20 and f"holds {held:,} of 1,024" in first["text"]
    _, roomy = doctor(capsys)
    assert roomy["arithmetic"]["sequences_at_once"] > 10 * held
    assert not any("the KV cache holds" in finding["text"] for finding in roomy["findings"])


def test_the_duration_of_a_step_is_an_estimate_of_its_phases(capsys):
    _, once = doctor(capsys)
    estimate = once["estimate"]
    assert estimate["kind"] == "estimate" and {"generation", "log-probs", "policy update"} <= set(estimate["phases"])
    assert estimate["step_seconds"] == pytest.approx(sum(estimate["phases"].values()), abs=0.5)
    assert any("an assumption" in text for text in estimate["assumptions"])
    _, twice = doctor(capsys, "data.train_batch_size=2048")
    for phase in ("generation", "log-probs", "policy update"):
        assert twice["estimate"]["phases"][phase] == pytest.approx(2 * estimate["phases"][phase], rel=0.1)
    _, with_reference = doctor(capsys, "actor_rollout_ref.actor.use_kl_loss=true")
    assert with_reference["estimate"]["phases"]["reference"] > 0 and "reference" not in estimate["phases"]


def test_both_are_printed(capsys):
    _, page = doctor(capsys, as_json=False)
    assert "sequences at once" in page and "estimate" in page.lower()


def test_tokens_of_a_response_never_exceed_the_models_limit(capsys):
    _, full = doctor(capsys, *LONG)
    _, limited = doctor(capsys, *LONG, "actor_rollout_ref.rollout.max_model_len=4096")
    assert limited["arithmetic"]["sequences_at_once"] > full["arithmetic"]["sequences_at_once"]
    assert limited["estimate"]["phases"]["policy update"] < 0.2 * full["estimate"]["phases"]["policy update"]


def test_a_gpu_is_known_by_its_name():
    assert gpu_of_device("NVIDIA H200 144G HBM3e").name == "H200"
    assert gpu_of_device("an unknown device").name == gpu_of_device(None).name == "A100"
