"""Whole runs with adapters, 4-bit weights, other number formats, and a reference of their own."""

import dataclasses
import json

import peft
import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

import burnish
from burnish.batch import Batch
from burnish.config import load
from burnish.errors import UserError
from burnish.loop.backends import Precision
from burnish.loop.state import save
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm, load_value_model

from ..stepping import one_step

LORA = ("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.actor.optim.lr=1e-2")
CRITIC_LORA = ("algorithm.adv_estimator=gae", "critic.model.lora_rank=4", "critic.optim.lr=1e-2")
KL = ("actor_rollout_ref.actor.use_kl_loss=true",)
CPU = torch.device("cpu")


def varied(solution_str):
    """A reward that differs between almost any two responses."""
    return sum(map(ord, solution_str)) % 7 / 7


def base_weights(backend):
    """What was loaded: everything but the adapters and the heads that are trained with them."""
    return {name: p.detach().clone() for name, p in backend.model.named_parameters() if not p.requires_grad}


def test_only_adapters_are_trained_and_the_engine_gets_them_merged(make_run, next_prompts, equal):
    run = make_run(*LORA, reward=varied)
    trained = [name for name, p in run.learner.policy.backend.model.named_parameters() if p.requires_grad]
    assert trained and all(".lora_" in name for name in trained)
    assert len(run.learner.policy.optimizer.parameters) == len(trained)
    before = base_weights(run.learner.policy.backend)
    engine_before = {name: p.clone() for name, p in run.rollout.engine.runner.model.named_parameters()}
    one_step(run)
    assert equal(before, base_weights(run.learner.policy.backend))
    changed = {n for n, p in run.rollout.engine.runner.model.named_parameters() if not torch.equal(p, engine_before[n])}
    assert changed and all(name.endswith("proj.weight") for name in changed)


def test_the_engine_answers_as_the_policy_does(make_run, next_prompts):
    run = make_run(*LORA, reward=varied)
    for _ in range(2):
        batch, _ = one_step(run)
    kept = [name for name in batch if name in ("prompt_ids", "responses")]
    read = run.learner.policy.compute_log_probs(batch.keep(*kept))["old_log_probs"].flat
    rows = [p + r for p, r in zip(batch["prompt_ids"].lists(), batch["responses"].lists(), strict=True)]
    scored = run.rollout.engine.score(rows)
    ours = [x for row, r in zip(scored, batch["responses"].lists(), strict=True) for x in row[len(row) - len(r) :]]
    torch.testing.assert_close(torch.tensor(ours), read, rtol=0, atol=1e-5)


def test_the_base_does_not_drift_over_many_syncs(make_run, next_prompts, equal):
    run = make_run(*LORA, reward=varied)
    one_step(run)
    base, sent = base_weights(run.learner.policy.backend), dict(run.learner.policy.weights())
    for _ in range(100):
        run.sync_weights()
    assert equal(base, base_weights(run.learner.policy.backend))
    assert equal(sent, dict(run.learner.policy.weights()))


def test_the_reference_is_the_policy_without_its_adapters(make_run, next_prompts):
    run = make_run(*LORA, *KL, reward=varied)
    assert run.learner.reference.backend is run.learner.policy.backend
    first, metrics = one_step(run)
    assert metrics["actor/kl_loss"] == 0.0
    fresh = make_run(*KL, out="plain", reward=varied)
    second, metrics = one_step(run)
    assert metrics["actor/kl_loss"] > 0
    plain = second.keep("prompt_ids", "responses")
    torch.testing.assert_close(
        fresh.learner.reference.compute_log_probs(plain).flat, second["ref_log_prob"].flat, rtol=0, atol=1e-5
    )
    assert len(first) == len(second)


def test_an_exact_kl_leaves_the_shared_model_in_training(make_run, next_prompts):
    run = make_run(*LORA, *KL, "actor_rollout_ref.actor.kl_loss_type=full", reward=varied)
    _, metrics = one_step(run)
    assert metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert run.learner.policy.backend.model.training
    _, metrics = one_step(run)
    assert metrics["actor/kl_loss"] > 0


def test_a_critic_with_adapters_trains_its_head_too(make_run, next_prompts):
    run = make_run(*CRITIC_LORA, reward=varied)
    trained = {name for name, p in run.learner.critic.backend.model.named_parameters() if p.requires_grad}
    assert {"score.weight", "score.bias"} < trained and all(
        ".lora_" in name or name.startswith("score.") for name in trained
    )
    one_step(run)
    assert run.learner.critic.backend.model.score.weight.abs().max() > 0


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("actor_rollout_ref.model.lora.type=dora",)], ids=["lora", "dora"])
def test_a_resumed_run_with_adapters_ends_in_the_same_bits(launch, make_run, tmp_path, equal, weights, more):
    both = (*LORA, *CRITIC_LORA, *more, "trainer.save_freq=1")
    launch(*both, "trainer.total_training_steps=4", out="whole", reward=varied)
    launch(*both, "trainer.total_training_steps=2", out="parts", reward=varied)
    launch(*both, "trainer.total_training_steps=4", out="parts", reward=varied)
    whole, parts = (
        make_run(*both, "trainer.total_training_steps=4", out=out, reward=varied) for out in ("whole", "parts")
    )
    assert whole.step == parts.step == 4
    for role in ("policy", "critic"):
        assert equal(weights(getattr(whole.learner, role)), weights(getattr(parts.learner, role)))


def test_a_checkpoint_holds_the_adapters_alone(make_run, next_prompts, model_folder):
    run = make_run(*LORA, *CRITIC_LORA, reward=varied)
    one_step(run)
    save(run)
    folder = run.recorder.checkpoints.path(0)
    saved = json.loads((folder / "actor" / "shards.json").read_text())["tensors"]
    assert saved and all(name.startswith("optimizer.") for name in saved)
    for role, loaded in (
        ("actor", load_causal_lm(ModelSource(str(model_folder)), PACKED, torch.float32)),
        ("critic", load_value_model(ModelSource(str(model_folder)), torch.float32)),
    ):
        theirs = peft.PeftModel.from_pretrained(loaded, str(folder / role / "adapter")).eval()
        ours = (run.learner.policy if role == "actor" else run.learner.critic).backend.model.eval()
        inputs = {"input_ids": torch.arange(3, 9)[None], "segments": [6], "use_cache": False}
        torch.testing.assert_close(theirs(**inputs).logits, ours(**inputs).logits, rtol=1e-5, atol=1e-6)


def test_the_hugging_face_folder_holds_the_merged_model(make_run, next_prompts):
    run = make_run(*LORA, "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]", reward=varied)
    one_step(run)
    save(run)
    hub = run.recorder.checkpoints.path(0) / "actor" / "huggingface"
    merged = load_causal_lm(ModelSource(str(hub)), PACKED, torch.float32)
    inputs = {"input_ids": torch.arange(3, 9)[None], "segments": [6], "use_cache": False}
    policy = run.learner.policy.backend.model.eval()
    torch.testing.assert_close(merged(**inputs).logits, policy(**inputs).logits, rtol=0, atol=1e-5)
    sent = dict(run.learner.policy.weights())
    assert all(torch.equal(p, sent[name]) for name, p in merged.named_parameters())


def test_adapters_and_whole_weights_do_not_go_on_from_each_other(launch):
    launch("trainer.save_freq=1", "trainer.total_training_steps=1")
    with pytest.raises(UserError, match="holds full weights, but this run trains LoRA adapters"):
        launch(*LORA, "trainer.total_training_steps=2", "trainer.resume_changes=accept")


def test_an_adapter_to_start_from(make_run, next_prompts, tmp_path):
    first = make_run(*LORA, reward=varied)
    one_step(first)
    save(first)
    path = first.recorder.checkpoints.path(0) / "actor" / "adapter"
    second = make_run(f"actor_rollout_ref.model.lora_adapter_path={path}", out="second", reward=varied)
    assert second.learner.policy.backend.adapters.config.r == 4
    one, other = first.learner.policy.backend.adapters.state(), second.learner.policy.backend.adapters.state()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_four_bits_train_through_adapters(make_run, next_prompts):
    run = make_run(
        *LORA,
        *CRITIC_LORA,
        *KL,
        "actor_rollout_ref.model.load_in_4bit=true",
        "critic.model.load_in_4bit=true",
        reward=varied,
    )
    packed = [p for p in run.learner.policy.backend.model.parameters() if p.dtype == torch.uint8]
    assert len(packed) == 14 and run.learner.critic.backend.model.score.weight.dtype == torch.float32
    batch, metrics = one_step(run)
    assert metrics["actor/kl_loss"] == 0.0 and metrics["actor/grad_norm"] > 0
    batch, metrics = one_step(run)
    read = run.learner.policy.compute_log_probs(batch.keep("prompt_ids", "responses"))["old_log_probs"].flat
    rows = [p + r for p, r in zip(batch["prompt_ids"].lists(), batch["responses"].lists(), strict=True)]
    scored = run.rollout.engine.score(rows)
    ours = [x for row, r in zip(scored, batch["responses"].lists(), strict=True) for x in row[len(row) - len(r) :]]
    torch.testing.assert_close(torch.tensor(ours), read, rtol=0, atol=2e-3)
    save(run)
    config = (run.recorder.checkpoints.path(0) / "actor" / "huggingface" / "config.json").read_text()
    assert "quantization_config" not in config


def test_four_bits_need_adapters(settings):
    with pytest.raises(UserError) as caught:
        load(settings("actor_rollout_ref.model.load_in_4bit=true"), given=["data.train_files"])
    assert caught.value.key == "actor_rollout_ref.model.load_in_4bit" and "lora_rank" in caught.value.hint


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_training_in_sixteen_bits_comes_near_the_same_gradient(make_run, compute):
    def gradient(*more, out):
        run = make_run(*more, out=out, reward=varied)
        run.learner.policy.plan = dataclasses.replace(run.learner.policy.plan, grad_clip=0.0)
        return run.learner.policy.update(fixed(run), 1).metrics["actor/grad_norm"], run

    plain, _ = gradient(out="plain")
    key = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
    other, run = gradient(f"{key}={compute}", out=compute)
    assert other != plain and other == pytest.approx(plain, rel=0.1)
    assert run.learner.policy.optimizer.scale.enabled == (compute == "fp16")
    assert next(run.learner.policy.backend.model.parameters()).dtype == torch.float32


def fixed(run):
    prompts = run.rollout.train_data.batch(range(4), epoch=0)
    from burnish.batch import Ragged

    responses = Ragged.of([torch.tensor([3, 4, 5, 6])] * 4, torch.int64)
    return Batch(
        **{name: prompts[name] for name in prompts},
        responses=responses,
        response_mask=Ragged.like(torch.ones(16), responses),
        old_log_probs=Ragged.like(torch.full((16,), -2.0), responses),
        advantages=Ragged.like(torch.linspace(-1, 1, 16), responses),
    )


def test_weights_kept_in_bfloat16(make_run, next_prompts):
    run = make_run(
        "actor_rollout_ref.actor.fsdp_config.model_dtype=bf16", "actor_rollout_ref.actor.optim.lr=1e-2", reward=varied
    )
    assert {p.dtype for p in run.learner.policy.backend.model.parameters()} == {torch.bfloat16}
    _, metrics = one_step(run)
    assert metrics["actor/grad_norm"] == metrics["actor/grad_norm"]


def test_a_number_format_is_asked_for_once():
    overrides = ["actor_rollout_ref.model.path=m", "actor_rollout_ref.model.torch_dtype=bf16"]
    given = ["data.train_files"]
    with pytest.raises(UserError, match="have different values"):
        load([*overrides, "actor_rollout_ref.actor.fsdp_config.model_dtype=fp16"], given=given)
    with pytest.raises(UserError, match="lose small updates"):
        load(["actor_rollout_ref.model.path=m", "actor_rollout_ref.model.torch_dtype=fp16"], given=given)
    cfg = load(overrides, given=given).cfg
    fsdp = cfg.actor_rollout_ref.actor.fsdp_config
    assert Precision.of(fsdp, "k", CPU, "bf16").weights == torch.bfloat16
    assert Precision.of(fsdp, "k", CPU) == Precision(torch.float32, torch.float32, torch.float32)


def test_another_model_may_be_the_reference(make_run, next_prompts, tmp_path, model_folder):
    other = load_causal_lm(ModelSource(str(model_folder)), PACKED, torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    other.save_pretrained(tmp_path / "other")
    run = make_run(*KL, f"actor_rollout_ref.ref.model.path={tmp_path / 'other'}", reward=varied)
    assert run.learner.reference.backend is not run.learner.policy.backend
    _, metrics = one_step(run)
    assert metrics["actor/kl_loss"] > 0
    adapted = make_run(
        *KL, *LORA, f"actor_rollout_ref.ref.model.path={tmp_path / 'other'}", out="adapted", reward=varied
    )
    assert adapted.learner.reference.backend is not adapted.learner.policy.backend
    assert not any(p.requires_grad for p in adapted.learner.reference.backend.model.parameters())


def test_what_cannot_run_here_is_refused_before_a_model_is_loaded(launch, monkeypatch):
    def never(*arguments, **named):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("burnish.loop.backends.load_causal_lm", never)
    model = "actor_rollout_ref.model"
    for override, words in (
        (f"{model}.attn_implementation=flash_attention_2", "NVIDIA GPUs only"),
        (f"+{model}.override_config.attn_implementation=flash_attention_2", "NVIDIA GPUs only"),
        (f"{model}.attn_implementation=flex_attention", "not supported for packed sequences"),
        (f"+{model}.override_config.attn_implementation=fastest", "no such attention"),
        (f"{model}.use_liger=true", "GPUs only"),
    ):
        with pytest.raises(UserError, match=words):
            launch(override)


def test_remote_code_is_reported_once():
    given = ["data.train_files"]
    loaded = load(["actor_rollout_ref.model.path=m", "actor_rollout_ref.model.trust_remote_code=true"], given=given)
    assert sum("Python code" in line for line in loaded.notices) == 1
    assert not any("Python code" in line for line in load(["actor_rollout_ref.model.path=m"], given=given).notices)
    assert burnish.training


def test_use_torch_compile_on_a_cpu_is_c(make_run):
    """The compiler takes longer than it saves there; norms, gates and rotations are in C instead."""

    def norms(*overrides, out):
        run = make_run(*overrides, "algorithm.use_kl_in_reward=true", out=out)
        return [
            type(role.backend.model.model.norm) is Qwen2RMSNorm for role in (run.learner.policy, run.learner.reference)
        ]

    assert norms(out="both") == [False, False]
    assert norms("actor_rollout_ref.actor.use_torch_compile=false", out="none") == [True, True]
    assert norms("actor_rollout_ref.ref.use_torch_compile=false", out="policy") == [False, True]
