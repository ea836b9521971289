import asyncio
import sys
from pathlib import Path

import pytest

import burnish
from burnish.errors import UserError
from burnish.loop.api import guarantees
from burnish.loop.fit import Result

API_KEY = "sk-abcdefghij0123456789klmnop"
HUB_TOKEN = "hf_abcdefghijklmnopqrstuvwx"


def test_a_run_gives_its_result(launch, rows, tmp_path):
    result = launch(val_dataset=rows(2))
    assert isinstance(result, Result)
    assert result.folder == tmp_path / "run" and result.step == 2
    assert result.metrics["critic/score/mean"] >= 0
    assert list(result.validation) == [0]


def test_a_notebook_has_a_running_loop(launch):
    async def cell():
        return launch()

    assert asyncio.run(cell()).step == 2


def test_a_closure_is_a_reward_also_in_a_worker_process(launch, tmp_path):
    bonus = {"seven": 0.25}

    def reward(solution_str):
        return bonus["seven"]

    result = launch("reward.num_workers=1", "trainer.total_training_steps=1", reward=reward)
    assert result.metrics["critic/score/mean"] == 0.25 and result.metrics["reward/failed"] == 0


def test_train_stays_a_function_after_the_training_package_is_imported():
    import burnish.training.packing as packing

    assert packing is sys.modules["burnish.training.packing"]
    with pytest.raises(UserError, match=r"actor_rollout_ref\.model\.path"):
        burnish.train(["trainer.total_epochs=1"])


def test_a_yaml_file_may_hold_the_settings(launch, settings, rows, tmp_path):
    (tmp_path / "tiny.yaml").write_text("trainer:\n  total_training_steps: 1\n  experiment_name: from a file\n")
    overrides = [one for one in settings() if not one.startswith("trainer.total_training_steps")]
    result = burnish.train(
        overrides,
        reward=lambda solution_str: 0.0,
        dataset=rows(),
        config_path=str(tmp_path),
        config_name="tiny",
    )
    assert result.step == 1
    assert "experiment_name: from a file" in (tmp_path / "run" / "config.yaml").read_text()


def files_with(folder: Path, text: str):
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_secrets_do_not_reach_the_run_folder(launch, monkeypatch, capfd, tmp_path):
    seen = []

    def reward(solution_str, api_key):
        seen.append(api_key)
        raise ValueError(f"the service refused {api_key}")

    setting = f"+custom_reward_function.reward_kwargs.api_key={API_KEY}"
    monkeypatch.setenv("HF_TOKEN", HUB_TOKEN)
    monkeypatch.setattr(sys, "argv", ["burnish", "train", setting, f"--hub-token={HUB_TOKEN}"])
    settings = (setting, "trainer.logger=[console,file]", "trainer.save_freq=2")
    launch(*settings, "reward.failure_threshold=null", reward=reward)
    assert set(seen) == {API_KEY}, "the reward itself gets it"
    assert "<hidden>" in (tmp_path / "run" / "config.yaml").read_text()
    printed = "".join(capfd.readouterr())
    assert "the service refused" in printed
    for secret in (API_KEY, HUB_TOKEN):
        assert files_with(tmp_path / "run", secret) == []
        assert secret not in printed


def test_the_run_says_what_it_can_promise(make_run):
    run = make_run()
    assert guarantees(run) == [
        "deterministic rollout: responses depend only on seed, prompt and weights (rollout.invariant=true)"
    ]
    biased = make_run("actor_rollout_ref.rollout.top_k=3", "actor_rollout_ref.rollout.invariant=false", out="biased")
    first, second = guarantees(biased)
    assert "biased" in first and "the batch composition" in second


def test_notices_reach_the_log(launch, tmp_path):
    launch("trainer.logger=[file]", "trainer.balance_batch=false", "trainer.total_training_steps=1")
    assert "trainer.balance_batch" in (tmp_path / "run" / "notes.txt").read_text()
