"""Whole runs of a tiny vision-language model: pictures from the rows to the gradient, through files and processes."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

import burnish
from burnish.data.shapes import shape_rows
from burnish.demo.tiny_vision import make_vision_model
from burnish.log.file import read_metrics
from burnish.loop.fit import _one_step
from burnish.models.load import ModelSource
from burnish.models.vision.encoder import load_vision_encoder
from burnish.models.vision.values import token_classifier

TIMES = ("timing", "perf/")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    network = make_vision_model(folder, "qwen2_5_vl", hidden=32, seed=1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter *= 2.5
    network.save_pretrained(folder)
    return folder


def rows(count: int, seed: int = 0) -> list[dict]:
    return list(islice(shape_rows("count", count, seed, size=28, question="?"), count))


def digits(solution_str: str, ground_truth: str) -> float:
    """Something that a random model gets now and then."""
    return solution_str.count(ground_truth) + 0.1 * sum(map(str.islower, solution_str))


def launch(model: Path, folder: Path, *overrides: str, steps: int = 2, dataset=None, reward=digits, **options):
    return burnish.train(
        [
            f"actor_rollout_ref.model.path={model}",
            "actor_rollout_ref.model.enable_gradient_checkpointing=false",
            "algorithm.adv_estimator=grpo",
            "data.train_batch_size=4",
            "data.max_prompt_length=64",
            "data.max_response_length=4",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            f"trainer.total_training_steps={steps}",
            "reward.num_workers=0",
            "trainer.logger=[file]",
            f"trainer.default_local_dir={folder}",
            *overrides,
        ],
        reward=reward,
        dataset=rows(16) if dataset is None else dataset,
        **options,
    )


def numbers(folder: Path) -> list[tuple[int, dict]]:
    found = sorted(read_metrics(folder / "metrics.jsonl").items())
    return [(step, {k: v for k, v in line.items() if not k.startswith(TIMES)}) for step, line in found]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    actor = folder / f"global_step_{step}" / "actor"
    return {name: tensor for path in sorted(actor.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def test_engine_and_trainer_see_the_same_pictures(model, tmp_path):
    """On policy the two agree on every token, and the gradient reaches the tower."""
    seen = []

    def reward(solution_str, ground_truth, multi_modal_data):
        seen.append([image.size for image in multi_modal_data["image"]])
        return digits(solution_str, ground_truth)

    contents = "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]"
    launch(model, tmp_path, contents, "trainer.save_freq=2", reward=reward, val_dataset=rows(4, seed=9))
    for _, line in numbers(tmp_path)[1:]:
        assert line["training/rollout_probs_diff_max"] < 2e-5 and line["actor/ppo_kl"] == 0.0
        assert line["actor/grad_norm"] > 0
    trained = load_file(tmp_path / "global_step_2" / "actor" / "huggingface" / "model.safetensors")
    before = load_file(model / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], trained[name])}
    assert any("visual" in name for name in moved) and any("visual" not in name for name in moved)
    assert seen and all(sizes == [(28, 28)] for sizes in seen)
    check_dump(tmp_path)


def check_dump(folder: Path) -> None:
    """A readable record shows each picture as one token, and names its file."""
    records = [json.loads(line) for line in (folder / "rollouts" / "1.jsonl").read_text().splitlines()]
    for record in records:
        (media,) = record["media"]
        assert record["input"].count("<|image_pad|>") == 1 and media["kind"] == "image"
        assert Image.open(folder / "pictures" / media["files"][0]).size == (28, 28)
    assert len({record["media"][0]["digest"] for record in records}) == 4


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm.adv_estimator=remax",),
        ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=score", "data.gen_batch_size=6"),
        ("async_training.mode=one_step_off", "trainer.save_freq=1"),
        ("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"),
        ("actor_rollout_ref.actor.freeze_vision_tower=true",),
        ("actor_rollout_ref.rollout.name=hf",),
    ],
    ids=["remax", "filter", "one step off", "kl loss", "frozen", "hf"],
)
def test_other_ways_to_train(model, tmp_path, overrides):
    result = launch(model, tmp_path, *overrides)
    assert result.step == 2
    first = numbers(tmp_path)[0][1]  # later weights are newer than those that sampled, where generation overlaps
    assert first["training/rollout_probs_diff_max"] < 1e-4


def test_a_reward_model_sees_the_pictures(model, tmp_path):
    """Its scores are those of transformers' own forward of prompt, pictures and response."""
    judge = tmp_path / "judge"
    shutil.copytree(model, judge)
    config = AutoConfig.from_pretrained(judge)
    config.num_labels = 1
    torch.manual_seed(5)
    network = token_classifier(config)(config).eval()
    torch.nn.init.normal_(network.score.weight)
    network.save_pretrained(judge)
    launch(
        model,
        tmp_path / "run",
        "reward_model.enable=true",
        f"reward_model.model.path={judge}",
        "reward_model.model.input_tokenizer=null",
        steps=1,
        reward=None,
    )

    tokens = load_file(tmp_path / "run" / "tokens" / "1.safetensors")
    prompts, responses = (
        tokens[ids].split(tokens[lengths].tolist())
        for ids, lengths in (("prompt_ids", "prompt_lengths"), ("ids", "lengths"))
    )
    records = [json.loads(line) for line in (tmp_path / "run" / "rollouts" / "1.jsonl").read_text().splitlines()]
    encoder = load_vision_encoder(ModelSource(str(judge)), AutoTokenizer.from_pretrained(judge))
    given, expected = [], []
    for prompt, response, record in zip(prompts, responses, records, strict=True):
        if config.image_token_id in response:  # sampled by the policy: transformers expects a picture there
            continue
        picture = Image.open(tmp_path / "run" / "pictures" / record["media"][0]["files"][0])
        input = encoder.attach(prompt.tolist(), [picture])
        ids = torch.cat([prompt, response])[None].long()
        types = (ids == config.image_token_id).int()
        arguments = {**encoder.family.model_arguments(input.media), "mm_token_type_ids": types}
        with torch.no_grad():
            given.append(record["score"])
            expected.append(float(network(input_ids=ids, **arguments).logits[0, -1, 0]))
    assert given == pytest.approx(expected, abs=1e-4) and len({round(score, 3) for score in expected}) > 4


def test_rows_without_pictures(model, tmp_path):
    """Beside rows with some, and in a run of text alone."""
    text = [{**row, "prompt": [{"role": "user", "content": "no picture?"}]} for row in rows(16, seed=3)]
    for row in text:
        del row["images"]
    mixed = [{**row, "images": None} if number % 2 else rows(16)[number] for number, row in enumerate(text)]
    for name, dataset in (("text", text), ("mixed", mixed)):
        launch(model, tmp_path / name, dataset=dataset)
        assert numbers(tmp_path / name)[-1][1]["training/rollout_probs_diff_max"] < 2e-5


@pytest.mark.parametrize("mode", ["sync", "one_step_off"])
def test_a_resumed_run_ends_as_one_that_was_never_stopped(model, tmp_path, monkeypatch, mode):
    """To the last bit; with one step off, a checkpoint has a batch that is not learned yet, and its pictures."""

    def fail(run, result):
        if run.step == 2:
            raise OSError("pulled the plug")
        _one_step(run, result)

    options = (f"async_training.mode={mode}", "trainer.save_freq=1")
    launch(model, tmp_path / "whole", *options, steps=4)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="plug"):
        patch.setattr("burnish.loop.fit._one_step", fail)
        launch(model, tmp_path / "parts", *options, steps=4)
    launch(model, tmp_path / "parts", *options, steps=4)
    ours, theirs = (weights(tmp_path / name, 4) for name in ("parts", "whole"))
    assert ours.keys() == theirs.keys() and ours
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert numbers(tmp_path / "parts")[-1] == numbers(tmp_path / "whole")[-1]


def test_recorded_rollouts(model, tmp_path):
    folder = f"actor_rollout_ref.rollout.skip_dump_dir={tmp_path / 'recorded'}"
    options = ("actor_rollout_ref.rollout.skip_rollout=true", folder)
    launch(model, tmp_path / "first", *options)
    line = json.loads((tmp_path / "recorded" / "1.jsonl").read_text().splitlines()[0])
    assert line["prompt_media"][0]["kind"] == "image" and "tensors" not in line["prompt_media"][0]
    launch(model, tmp_path / "second", *options)
    names = ("critic/score/mean", "actor/grad_norm", "actor/pg_loss")
    one, two = (
        [{name: line[name] for name in names} for _, line in numbers(tmp_path / run)] for run in ("first", "second")
    )
    assert one == two


def test_two_processes(model, tmp_path):
    """Pixels go to each worker once; rank and engine agree with one process."""
    launch(model, tmp_path / "one")
    launch(model, tmp_path / "two", "trainer.n_gpus_per_node=2", "trainer.launcher=processes")
    for (_, ours), (_, theirs) in zip(numbers(tmp_path / "two"), numbers(tmp_path / "one"), strict=True):
        for name in ("critic/score/mean", "actor/grad_norm", "actor/pg_loss", "response_length/mean"):
            assert ours[name] == pytest.approx(theirs[name], rel=2e-4, abs=2e-6), name
