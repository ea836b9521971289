"""burnish sft: learning, micro-batches, resuming, and invalid data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import burnish.training.checkpoint as checkpoint
from burnish.config import load
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.errors import UserError
from burnish.jobs.sft.fit import sft
from burnish.jobs.sft.memory import next_change
from burnish.log.file import read_metrics
from burnish.log.folder import RunFolder
from burnish.models.load import load_tokenizer
from burnish.profiling.summary import summarize

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer("0123456789 +=abcdefghijklmnopqrstuvwxyz")
    make_model(folder, tokenizer, hidden=32, layers=2, seed=0)
    return folder


ROWS = [{"question": f"{a} + {b} =", "answer": "abcd"[b]} for a in range(4) for b in range(4)]


def overrides(model: Path, folder: Path, *more: str) -> list[str]:
    return [
        f"model.partial_pretrain={model}",
        "model.enable_gradient_checkpointing=false",
        f"trainer.default_local_dir={folder}",
        "trainer.logger=[file]",
        "data.train_batch_size=8",
        "data.micro_batch_size_per_gpu=4",
        "data.max_length=64",
        "optim.lr=3e-3",
        "optim.weight_decay=0",
        *more,
    ]


def lines(folder: Path) -> dict[int, dict[str, float]]:
    steps = read_metrics(folder / "metrics.jsonl")
    return {
        step: {name: value for name, value in numbers.items() if not name.startswith(("timing_s/", "perf/"))}
        for step, numbers in steps.items()
    }


def test_a_model_learns_its_examples(model, tmp_path):
    more = ("trainer.total_epochs=100", "optim.lr=5e-3")
    result = sft(overrides(model, tmp_path, *more), dataset=ROWS, val_dataset=ROWS[:8])
    steps = lines(tmp_path)
    assert result.step == 200 == len(steps)
    assert steps[200]["train/loss"] < 0.3 * steps[1]["train/loss"]
    assert result.validation[200]["val/loss"] < 0.3
    assert (tmp_path / "curves.png").is_file() and (tmp_path / "global_step_200/actor").is_dir()


def test_micro_batches_do_not_change_the_result(model, tmp_path):
    settings = {
        "four rows": (),
        "one row": ("data.micro_batch_size_per_gpu=1",),
        "dynamic": ("data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70"),
    }
    for name, more in settings.items():
        sft(overrides(model, tmp_path / name, "trainer.total_training_steps=3", *more), dataset=ROWS)
    expected, *others = (lines(tmp_path / name) for name in settings)
    for other in others:
        for step in (1, 2, 3):
            assert expected[step]["train/loss"] == pytest.approx(other[step]["train/loss"], rel=1e-5)
            assert expected[step]["train/grad_norm"] == pytest.approx(other[step]["train/grad_norm"], rel=1e-4)


def test_the_loss_is_the_mean_cross_entropy_of_the_answers(model, tmp_path):
    sft(overrides(model, tmp_path, "trainer.total_training_steps=1", "optim.lr=0"), dataset=ROWS[:8])
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    tokenizer = load_tokenizer(str(model), key="model.partial_pretrain")
    total = count = 0.0
    for row in ROWS[:8]:
        messages = [{"role": "user", "content": row["question"]}]
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        else:
            text = row["question"]
        prompt = tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"]
        answer = [*tokenizer(row["answer"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        logits = reference(torch.tensor([prompt + answer])).logits[0]
        chosen = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].gather(-1, torch.tensor(answer)[:, None])
        total, count = total - float(chosen.detach().sum()), count + len(answer)
    assert lines(tmp_path)[1]["train/loss"] == pytest.approx(total / count, rel=1e-5)


def test_a_resumed_run_is_identical(model, tmp_path):
    more = ("trainer.total_training_steps=6", "trainer.save_freq=2", "optim.lr_scheduler=wsd")
    sft(overrides(model, tmp_path / "whole", *more), dataset=ROWS, val_dataset=ROWS[:4])
    sft(overrides(model, tmp_path / "parts", *more), dataset=ROWS, val_dataset=ROWS[:4])
    shutil.rmtree(tmp_path / "parts/global_step_6")
    (tmp_path / "parts/latest_checkpointed_iteration.txt").write_text("4")
    sft(overrides(model, tmp_path / "parts", *more), dataset=ROWS, val_dataset=ROWS[:4])
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_after_each_epoch(model, tmp_path):
    more = ("trainer.total_epochs=2", "trainer.save_freq=after_each_epoch", "trainer.test_freq=after_each_epoch")
    result = sft(overrides(model, tmp_path, *more, "trainer.max_ckpt_to_keep=1"), dataset=ROWS, val_dataset=ROWS[:4])
    assert sorted(result.validation) == [2, 4]
    assert [path.name for path in tmp_path.glob("global_step_*")] == ["global_step_4"]


def test_conversations_train_on_assistant_turns_only(model, tmp_path):
    chat = [
        {"role": "user", "content": "1 + 1 ="},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2 + 2 ="},
        {"role": "assistant", "content": "4"},
    ]
    rows = [{"messages": chat}] * 8
    template = f"data.chat_template={json.dumps(TEMPLATE)}"
    sft(
        overrides(model, tmp_path, "data.multiturn.enable=true", "trainer.total_training_steps=1", template),
        dataset=rows,
    )
    numbers = lines(tmp_path)[1]
    # "2<|im_end|>\n" and "4<|im_end|>\n" are trained on; everything else is context.
    assert 0 < numbers["train/taught_tokens"] < numbers["train/tokens"] / 2


@pytest.mark.parametrize(
    ("rows", "more", "text"),
    [
        ([{"a": "x", "b": "y"}] * 8, (), "data.prompt_key"),
        ([{"question": "x", "answer": 3}] * 8, (), "data.response_key"),
        ([{"question": "x" * 90, "answer": "y"}] * 8, (), "data.max_length"),
        ([{"question": {"text": "x"}, "answer": "y"}] * 8, ("data.prompt_dict_keys=[words]",), "words"),
        ([{"messages": [{"role": "user", "content": "x"}]}] * 8, ("data.multiturn.enable=true",), "assistant"),
        (ROWS, ("data.train_batch_size=100",), "data.train_batch_size"),
    ],
)
def test_invalid_rows_are_reported_before_the_model_is_loaded(model, tmp_path, monkeypatch, rows, more, text):
    monkeypatch.setattr(
        "burnish.jobs.sft.build.trained_language_model", lambda *a, **k: pytest.fail("the model was loaded")
    )
    with pytest.raises(UserError) as caught:
        sft(overrides(model, tmp_path, *more), dataset=rows)
    assert text in caught.value.text()


def test_truncation(model, tmp_path):
    rows = [{"question": "a" * 90, "answer": "y"}] * 8
    sft(overrides(model, tmp_path, "data.truncation=left", "trainer.total_training_steps=1"), dataset=rows)
    assert lines(tmp_path)[1]["train/tokens"] == 8 * 64


def test_what_is_cut_or_left_out_is_reported(model, tmp_path, capsys):
    rows = [{"question": "a" * 90, "answer": "y"}, *ROWS[:8], {"question": "a" * 90, "answer": "y"}]
    settings = ("data.truncation=right", "trainer.total_training_steps=1", "trainer.logger=[console]")
    sft(overrides(model, tmp_path, *settings, "data.train_max_samples=9"), dataset=rows)
    told = " ".join(capsys.readouterr().out.split())
    assert "data.train_files: data.train_max_samples selects 9 of 10 rows" in told
    assert "1 of 9 examples are truncated to data.max_length=64 (data.truncation=right)" in told
    assert "1 of 9 examples have no token to train on" in told
    assert "1 of 9 training rows are left out of every epoch: data.train_batch_size=8 does not divide them" in told
    with pytest.raises(UserError, match="none of the 8 examples has a token to train on after truncation"):
        sft(overrides(model, tmp_path / "none", *settings), dataset=[rows[0]] * 8)


def test_loading_weights_of_another_system(model, tmp_path):
    """A Hugging Face folder as OpenRLHF saves it: the first loss is that of its weights, at step 1."""
    trained = tmp_path / "global_step9_hf"
    short = ("trainer.total_training_steps=2", "optim.lr=1e-2")
    sft(overrides(model, tmp_path / "first", *short, f"trainer.export_dir={trained}"), dataset=ROWS[:8])
    path = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={trained}")
    sft(overrides(model, tmp_path / "on", "trainer.total_training_steps=1", "optim.lr=0", *path), dataset=ROWS[:8])
    sft(overrides(trained, tmp_path / "same", "trainer.total_training_steps=1", "optim.lr=0"), dataset=ROWS[:8])
    assert lines(tmp_path / "on")[1]["train/loss"] == lines(tmp_path / "same")[1]["train/loss"]
    assert "everything else starts anew" in (tmp_path / "on" / "notes.txt").read_text()


@pytest.mark.parametrize("async_save", ["false", "true"])
def test_a_full_disk_is_reported_and_saving_is_retried(model, tmp_path, monkeypatch, async_save):
    write = checkpoint._write_manifest

    def refuse(folder):
        if folder.name == ".global_step_2.partial":
            raise OSError(28, "No space left on device")
        write(folder)

    monkeypatch.setattr("burnish.training.checkpoint._write_manifest", refuse)
    steps = ("trainer.total_training_steps=4", "trainer.save_freq=2", f"trainer.checkpoint.async_save={async_save}")
    result = sft(overrides(model, tmp_path, *steps), dataset=ROWS)
    assert result.step == 4 and (tmp_path / "global_step_4").is_dir() and not (tmp_path / "global_step_2").exists()
    assert "No space left on device" in (tmp_path / "notes.txt").read_text()
    monkeypatch.setattr(
        "burnish.training.checkpoint._write_manifest", lambda folder: refuse(tmp_path / ".global_step_2.partial")
    )
    with pytest.raises(UserError, match="checkpoint of step 5 could not be written"):
        sft(overrides(model, tmp_path, *steps, "trainer.total_training_steps=5"), dataset=ROWS)


def test_a_finished_run_leaves_a_model_and_is_not_trained_again(model, tmp_path, capfd):
    short = ("trainer.total_training_steps=2",)
    result = sft(overrides(model, tmp_path / "run", *short), dataset=ROWS)
    assert result.model_path == tmp_path / "run" / "model"
    trained, tokenizer = result.load()
    assert trained.config.vocab_size >= len(tokenizer)
    assert "burnish generate model.path=" in (tmp_path / "run" / "notes.txt").read_text()
    again = sft(overrides(model, tmp_path / "run", *short), dataset=ROWS)
    assert "already finished: 2 steps" in capfd.readouterr().out and again.model_path == result.model_path
    next_run = sft(overrides(tmp_path / "run", tmp_path / "next", *short), dataset=ROWS)
    assert next_run.step == 2, "a run folder is a model path"


def test_another_experiment_does_not_resume(model, tmp_path):
    sft(overrides(model, tmp_path / "run", "trainer.total_training_steps=2"), dataset=ROWS)
    more = ("trainer.total_training_steps=3",)
    with pytest.raises(UserError, match=r"optim\.lr: 0\.003 -> 0\.5"):
        sft(overrides(model, tmp_path / "run", *more, "optim.lr=0.5"), dataset=ROWS)
    with pytest.raises(UserError, match=r"data\.train_files: passed in Python"):
        sft(overrides(model, tmp_path / "run", *more), dataset=ROWS[1:])
    with RunFolder(tmp_path / "run").locked(), pytest.raises(UserError, match="another run is using this run folder"):
        sft(overrides(model, tmp_path / "run", *more), dataset=ROWS)
    accepted = ("optim.lr=0.5", "trainer.resume_changes=accept")
    assert sft(overrides(model, tmp_path / "run", *more, *accepted), dataset=ROWS).step == 3


def test_a_profiled_step_computes_the_same_and_leaves_a_trace(model, tmp_path):
    plain, profiled = tmp_path / "plain", tmp_path / "profiled"
    sft(overrides(model, plain, "trainer.total_training_steps=3"), dataset=ROWS)
    sft(overrides(model, profiled, "trainer.total_training_steps=3", "trainer.profile_steps=[2]"), dataset=ROWS)
    losses = [{step: values["train/loss"] for step, values in lines(run).items()} for run in (plain, profiled)]
    assert losses[0] == losses[1]
    (trace,) = (profiled / "profile").rglob("*.*")
    assert trace.relative_to(profiled).as_posix() == "profile/step_2/model.rank_0.json.gz"
    summary = summarize(trace)
    assert "step" in summary.phases and any("mm" in entry.name for entry in summary.top)
    assert trace.name in (profiled / "notes.txt").read_text()


def test_a_device_without_memory_names_the_phase_and_the_next_key(model, tmp_path, monkeypatch):
    def run_out(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")

    monkeypatch.setattr("burnish.training.backends.module.ModuleBackend.log_probs", run_out)
    with pytest.raises(UserError) as caught:
        sft(overrides(model, tmp_path), dataset=ROWS)
    assert "ran out of memory in the phase 'update', allocating 3.00 GiB more" in caught.value.text()
    assert "model weights 0.00 GiB" in caught.value.text()
    assert "data.micro_batch_size_per_gpu=1  (" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "next_key"),
    [
        (("data.use_dynamic_bsz=true",), "data.max_token_len_per_gpu=64"),
        (("data.micro_batch_size=4",), "data.micro_batch_size=null data.micro_batch_size_per_gpu=1"),
        (("data.micro_batch_size_per_gpu=1",), "model.enable_gradient_checkpointing=true"),
        (
            ("data.micro_batch_size_per_gpu=1", "model.enable_gradient_checkpointing=true"),
            "model.fsdp_config.offload_policy=true",
        ),
    ],
)
def test_what_saves_memory_next(model, tmp_path, given, next_key):
    cfg = load(overrides(model, tmp_path, *given), job="sft", given=["data.train_files"]).cfg
    change = next_change(cfg)
    assert change is not None and change[0] == next_key
