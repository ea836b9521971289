"""burnish export: checkpoints become folders that transformers loads, with exactly the same weights."""

import functools
import json
import shutil
from contextlib import nullcontext

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

import burnish
from burnish.cli.main import main
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.errors import UserError
from burnish.jobs.export import ExportOptions, export, role_folder
from burnish.models.load import align_weights

IDS = {"input_ids": torch.arange(3, 11)[None], "use_cache": False}
LORA = ("actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, make_tokenizer("0123456789+"), hidden=32, layers=2, seed=0)
    return folder


@pytest.fixture(scope="session")
def run_folder(model_folder, tmp_path_factory):
    """run_folder(*overrides): a run of two steps that saved both, created once for equal overrides."""
    folders = {}

    def make(*overrides):
        if overrides not in folders:
            folders[overrides] = tmp_path_factory.mktemp("run")
            train(model_folder, folders[overrides], overrides)
        return folders[overrides]

    return make


def train(model_folder, out, overrides):
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{number}+1"}],
            "data_source": "any",
            "reward_model": {"ground_truth": "1"},
        }
        for number in range(8)
    ]
    settings = [
        f"actor_rollout_ref.model.path={model_folder}",
        "algorithm.adv_estimator=gae",
        "data.train_batch_size=4",
        "data.max_prompt_length=16",
        "data.max_response_length=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.optim.lr=1e-2",
        "critic.optim.lr=1e-2",
        "reward.num_workers=0",
        "trainer.logger=[]",
        "trainer.device=cpu",
        "trainer.total_training_steps=2",
        "trainer.save_freq=1",
        f"trainer.default_local_dir={out}",
    ]
    burnish.train([*settings, *overrides], reward=lambda solution_str: sum(map(ord, solution_str)) % 5, dataset=rows)


def logits(folder, family=AutoModelForCausalLM):
    return align_weights(family.from_pretrained(folder)).eval()(**IDS).logits


@functools.cache
def live(model_folder, run, *overrides):
    """Logits and weights of policy and critic in the resumed run, by role."""
    from burnish.config import load
    from burnish.loop.build import build
    from burnish.loop.state import resume

    settings = [f"actor_rollout_ref.model.path={model_folder}", "algorithm.adv_estimator=gae", "trainer.device=cpu"]
    settings += [
        f"trainer.default_local_dir={run}",
        "data.train_batch_size=4",
        "reward.num_workers=0",
        "trainer.logger=[]",
        "trainer.resume_changes=accept",
    ]
    settings += [
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "data.max_prompt_length=16",
        "data.max_response_length=4",
    ]
    loaded = load([*settings, *overrides], given=["data.train_files"])
    row = {"prompt": [{"role": "user", "content": "1"}], "data_source": "any", "reward_model": {"ground_truth": "1"}}
    resumed = build(loaded.cfg, lambda solution_str: 0.0, [row] * 8)
    try:
        resume(resumed)
        assert resumed.step == 2
        backends = {"policy": resumed.learner.policy.backend, "critic": resumed.learner.critic.backend}
        return {
            role: (backend.model.eval()(**IDS, segments=[8]).logits, dict(backend.weights()))
            for role, backend in backends.items()
        }
    finally:
        resumed.close()


@pytest.mark.parametrize("path", ["", "global_step_2", "global_step_2/actor"])
def test_the_policy_of_a_run_a_checkpoint_or_a_role(run_folder, model_folder, tmp_path, path):
    run = run_folder()
    export(run / path, tmp_path / "out")
    expected, weights = live(model_folder, run)["policy"]
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(p, weights[name]) for name, p in exported.named_parameters())
    torch.testing.assert_close(logits(tmp_path / "out"), expected, rtol=0, atol=1e-5)
    assert exported.generation_config.eos_token_id == exported.config.eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(model_folder).chat_template


def test_equal_weights_give_equal_bits(run_folder, model_folder, tmp_path):
    """With the policy's kernels, the exported model computes the same logits, bit by bit."""
    from burnish.models.attention import PACKED
    from burnish.models.compiled import use_cpu_kernels
    from burnish.models.load import ModelSource, load_causal_lm

    run = run_folder()
    export(run, tmp_path / "out")
    expected, _ = live(model_folder, run)["policy"]
    exported = load_causal_lm(ModelSource(str(tmp_path / "out")), PACKED, torch.float32).eval()
    use_cpu_kernels(exported)
    assert torch.equal(exported(**IDS, segments=[8]).logits, expected)


def test_an_earlier_step_is_another_model(run_folder, tmp_path):
    export(run_folder() / "global_step_1", tmp_path / "one")
    export(run_folder() / "global_step_2", tmp_path / "two")
    assert not torch.equal(logits(tmp_path / "one"), logits(tmp_path / "two"))


def test_the_critic(run_folder, model_folder, tmp_path):
    export(run_folder(), tmp_path / "out", ExportOptions(critic=True))
    expected, weights = live(model_folder, run_folder())["critic"]
    exported = AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    assert exported.config.num_labels == 1
    assert all(torch.equal(p, weights[name]) for name, p in exported.named_parameters())
    torch.testing.assert_close(logits(tmp_path / "out", AutoModelForTokenClassification), expected, rtol=0, atol=1e-5)


def test_dtype(run_folder, tmp_path):
    export(run_folder(), tmp_path / "out", ExportOptions(dtype="bf16"))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert {p.dtype for p in exported.parameters()} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("more", [(), ("actor_rollout_ref.model.load_in_4bit=true",)], ids=["full", "4bit"])
def test_adapters_are_merged(run_folder, model_folder, tmp_path, more):
    run = run_folder(*LORA, *more)
    export(run, tmp_path / "out")
    _, weights = live(model_folder, run, *LORA, *more)["policy"]
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(p, weights[name]) for name, p in exported.named_parameters())
    export(run, tmp_path / "critic", ExportOptions(critic=True))
    _, weights = live(model_folder, run, *LORA, *more)["critic"]
    values = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic")
    assert all(torch.equal(p, weights[name]) for name, p in values.named_parameters())


def test_exporting_the_adapter(run_folder, model_folder, tmp_path):
    export(run_folder(*LORA), tmp_path / "adapter", ExportOptions(adapter=True))
    export(run_folder(*LORA), tmp_path / "merged")
    adapted = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folder), tmp_path / "adapter")
    torch.testing.assert_close(adapted.eval()(**IDS).logits, logits(tmp_path / "merged"), rtol=0, atol=1e-5)


def test_base_option(run_folder, model_folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(run_folder(*LORA) / "global_step_2" / "actor", run)
    config = run / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "/gone"}))
    with pytest.raises(UserError, match="no such folder"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))
    export(run, tmp_path / "out", ExportOptions(base=str(model_folder)))
    export(run_folder(*LORA), tmp_path / "other")
    assert torch.equal(logits(tmp_path / "out"), logits(tmp_path / "other"))


@pytest.mark.parametrize("adapted", [(), LORA], ids=["whole", "lora"])
def test_the_moving_average(run_folder, tmp_path, adapted):
    run = run_folder("actor_rollout_ref.actor.ema_beta=0.5", *adapted)
    export(run, tmp_path / "average", ExportOptions(average=True))
    export(run, tmp_path / "weights")
    assert not torch.equal(logits(tmp_path / "average"), logits(tmp_path / "weights"))
    one, other = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("average", "weights"))
    assert (one.model.layers[0].mlp.up_proj.weight - other.model.layers[0].mlp.up_proj.weight).abs().max() < 0.1
    assert one.lm_head.weight is one.model.embed_tokens.weight


def test_a_checkpoint_that_holds_only_a_hugging_face_model(run_folder, tmp_path):
    run = run_folder("actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]")
    export(run, tmp_path / "out")
    stored = run / "global_step_2" / "actor" / "huggingface"
    assert torch.equal(logits(tmp_path / "out"), logits(stored))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (ExportOptions(adapter=True), "no adapter"),
        (ExportOptions(average=True), "no moving average"),
        (ExportOptions(dtype="int3"), "unknown dtype"),
    ],
)
def test_options_that_the_checkpoint_does_not_support(run_folder, tmp_path, options, text):
    with pytest.raises(UserError, match=text):
        export(run_folder(), tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_invalid_folders(run_folder, tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        role_folder(tmp_path / "nowhere", "actor")
    with pytest.raises(UserError, match="not a checkpoint"):
        role_folder(tmp_path, "actor")
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        export(run_folder(), full)
    run = tmp_path / "global_step_2"
    shutil.copytree(run_folder() / "global_step_2", run)
    shutil.rmtree(run / "critic")
    with pytest.raises(UserError, match="damaged"):
        role_folder(run, "actor")


def test_the_command(run_folder, tmp_path, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("burnish.log.console.activity", lambda text, console: shown.append(text) or nullcontext())
    assert main(["export", str(run_folder()), str(tmp_path / "out"), "--dtype", "fp16"]) == 0
    printed = capsys.readouterr()
    assert "global_step_2" in printed.out and shown == ["loading PyTorch", f"exporting {run_folder()}"]
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert main(["export", str(run_folder()), str(tmp_path / "out")]) == 1
