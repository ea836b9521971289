"""burnish sft over ranks: the numbers and weights of one process, and checkpoints that any number of ranks resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from burnish.distributed.processes import Processes
from burnish.errors import UserError
from burnish.jobs.sft import fit as job
from burnish.jobs.sft.fit import sft
from burnish.log.file import read_metrics
from burnish.loop.handles import SftHandle
from burnish.training.export import export

from .test_pictures import examples
from .test_pictures import model as vision_model
from .test_sft import model, overrides

__all__ = ["model", "vision_model"]
CPU = ("trainer.device=cpu",)
TWO = (*CPU, "trainer.n_gpus_per_node=2", "trainer.launcher=processes")
ONE_HEAD = "{num_attention_heads: 1, num_key_value_heads: 1, attention_dropout: 0.1}"
SHORT = ("trainer.total_training_steps=3", "trainer.save_freq=1", "trainer.test_freq=1", "optim.clip_grad=0.5")
ROWS = [{"question": "12 + 34 =" * (1 + number % 4), "answer": "abcd"[: 1 + number % 3]} for number in range(16)]


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch):
    monkeypatch.setattr("burnish.jobs.sft.fit.draw_curves", lambda metrics, picture: None)


def train(model, folder: Path, *more: str, rows=ROWS):
    return sft(overrides(model, folder, *SHORT, *more), dataset=rows, val_dataset=rows[:5])


def numbers(folder: Path) -> dict[int, dict[str, float]]:
    """What every step computed."""
    return {
        step: {name: value for name, value in metrics.items() if name.startswith(("train/", "val/"))}
        for step, metrics in read_metrics(folder / "metrics.jsonl").items()
    }


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def check_same(ours: Path, theirs: Path) -> None:
    found, expected = numbers(ours), numbers(theirs)
    assert found.keys() == expected.keys()
    for step, metrics in expected.items():
        assert {"train/loss", "train/grad_norm", "val/loss"} < metrics.keys()
        assert found[step] == pytest.approx(metrics, rel=1e-5), step
    trained = weights(ours)
    assert trained.keys() == weights(theirs).keys()
    for name, tensor in weights(theirs).items():
        torch.testing.assert_close(trained[name], tensor, rtol=1e-5, atol=1e-5, msg=name)


def back_to(folder: Path, step: int) -> None:
    """As if the run had been killed after this step."""
    for later in range(step + 1, 4):
        shutil.rmtree(folder / f"global_step_{later}")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    (folder / "finished.json").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    """Three steps of one process."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("burnish.jobs.sft.fit.draw_curves", lambda metrics, picture: None)
        train(model, folder, *CPU)
    return folder


def test_two_ranks_train_as_one_and_one_resumes_them(model, tmp_path, alone):
    """FSDP; validation and a checkpoint after every step. The third step is made by one process."""
    train(model, tmp_path, *TWO, "model.fsdp_config.reshard_after_forward=false")
    check_same(tmp_path, alone)
    metrics = read_metrics(tmp_path / "metrics.jsonl")[1]
    assert 0 < metrics["perf/transport_rank_bytes"] < metrics["perf/transport_put_bytes"]
    assert "trainer: 2 x cpu for model" in (tmp_path / "notes.txt").read_text()
    shards = {path.name for path in (tmp_path / "global_step_1" / "actor").glob("*.safetensors")}
    assert shards == {f"shards-0000{rank}-000.safetensors" for rank in range(2)}
    back_to(tmp_path, 2)
    train(model, tmp_path, *CPU)
    check_same(tmp_path, alone)
    export(tmp_path / "global_step_1", tmp_path / "exported")
    assert load_file(tmp_path / "exported" / "model.safetensors").keys() == weights(alone).keys()


@pytest.mark.long
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(("model.fsdp_config.fsdp_size=1",), id="replicated"),
        pytest.param(("model.fsdp_config.wrap_policy.min_num_params=1000",), id="sharded"),
        pytest.param(("ulysses_sequence_parallel_size=2",), id="sequence"),
        pytest.param(
            ("ulysses_sequence_parallel_size=2", "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=64"),
            id="sequence, by tokens",
        ),
        pytest.param(("data.micro_batch_size=4", "model.enable_gradient_checkpointing=true"), id="recomputed"),
    ],
)
def test_every_layout_trains_as_one_process(model, tmp_path, alone, layout):
    train(model, tmp_path, *TWO, *layout)
    check_same(tmp_path, alone)


@pytest.mark.long
def test_adapters_over_ranks(model, tmp_path):
    lora = ("model.lora_rank=4", "model.lora.lora_B_init_method=normal", "optim.lr=1e-2")
    train(model, tmp_path / "alone", *CPU, *lora)
    train(model, tmp_path / "two", *TWO, *lora)
    check_same(tmp_path / "two", tmp_path / "alone")
    back_to(tmp_path / "two", 2)
    train(model, tmp_path / "two", *TWO, *lora)
    check_same(tmp_path / "two", tmp_path / "alone")


@pytest.mark.long
def test_pictures_over_ranks(vision_model, tmp_path):
    chat = ("data.multiturn.enable=true",)
    train(vision_model, tmp_path / "alone", *CPU, *chat, rows=examples())
    train(vision_model, tmp_path / "two", *TWO, *chat, rows=examples())
    check_same(tmp_path / "two", tmp_path / "alone")


@pytest.mark.long
@pytest.mark.parametrize("async_save", ["false", "true"])
def test_two_ranks_resume_to_the_bit(model, tmp_path, async_save):
    more = (*TWO, "ulysses_sequence_parallel_size=2", f"trainer.checkpoint.async_save={async_save}")
    train(model, tmp_path / "whole", *more)
    train(model, tmp_path / "parts", *more)
    back_to(tmp_path / "parts", 1)
    train(model, tmp_path / "parts", *more)
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")
    trained = weights(tmp_path / "parts")
    assert all(torch.equal(trained[name], tensor) for name, tensor in weights(tmp_path / "whole").items())


@pytest.mark.long
def test_a_run_restarts_when_a_rank_dies(model, tmp_path, alone, monkeypatch):
    one_step, killed = job.one_step, []

    def killing(run, result):
        if run.step == 1 and not killed:
            assert isinstance(run.model, SftHandle) and isinstance(run.model.group.starter, Processes)
            killed.append(run.model.group.starter.pid(run.model.group.names[1]))
            os.kill(killed[0], signal.SIGKILL)
        one_step(run, result)

    monkeypatch.setattr(job, "one_step", killing)
    result = train(model, tmp_path, *TWO)
    assert len(killed) == 1 and result.metrics["training/restarts"] == 1
    check_same(tmp_path, alone)


@pytest.mark.long
def test_a_rank_that_hangs_is_named_and_the_run_starts_again(model, tmp_path, alone, monkeypatch):
    """In the first update. A recording of the second has a file of each rank."""
    one_step, stopped = job.one_step, []

    def stopping(run, result):
        if not stopped:
            stopped.append(run.model.group.starter.pid(run.model.group.names[1]))
            os.kill(stopped[0], signal.SIGSTOP)
        one_step(run, result)

    monkeypatch.setattr(job, "one_step", stopping)
    train(model, tmp_path, *TWO, "trainer.hang_timeout=20", "trainer.profile_steps=[2]")
    check_same(tmp_path, alone)
    assert "trainer rank 1 of 2 does not respond" in (tmp_path / "hang_rank_0.txt").read_text()
    traces = {path.name for path in (tmp_path / "profile").rglob("*.gz")}
    assert traces == {f"model.rank_{rank}.json.gz" for rank in range(2)}


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "ray"])
def test_other_launchers(model, tmp_path, alone, launcher):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:5]))
    files = (f"data.train_files={tmp_path}/train.jsonl", f"data.val_files={tmp_path}/val.jsonl")
    more = (*TWO[:2], f"trainer.launcher={launcher}", *files)
    command = [sys.executable, "-m", "burnish"]
    if launcher == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["-m", "burnish"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "sft", *overrides(model, tmp_path / "run", *SHORT, *more)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    check_same(tmp_path / "run", alone)


@pytest.mark.parametrize(
    ("more", "key", "text"),
    [
        (("trainer.n_gpus_per_node=3",), "data.train_batch_size", "do not divide evenly over 3"),
        (("ulysses_sequence_parallel_size=4",), "ulysses_sequence_parallel_size", "groups of 4"),
        (
            ("ulysses_sequence_parallel_size=2", f"model.override_config={ONE_HEAD}"),
            "ulysses_sequence_parallel_size",
            "not divisible by 2 ranks",
        ),
        (("trainer.launcher=torchrun",), "trainer.launcher", "torchrun did not start this process"),
    ],
)
def test_impossible_layouts_are_refused_before_a_model_is_loaded(model, tmp_path, monkeypatch, more, key, text):
    monkeypatch.setattr("burnish.jobs.sft.build.build_model", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(UserError, match=text) as caught:
        train(model, tmp_path, *TWO, *more)
    assert caught.value.key == key
