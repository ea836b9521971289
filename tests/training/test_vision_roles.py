"""Critic, adapters, frozen towers, reward models and files of models with images."""

from __future__ import annotations

import shutil

import pytest
import torch
from transformers import AutoModelForImageTextToText

from burnish.config.adapters import AdapterSettings
from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.compiled import use_cpu_kernels
from burnish.models.liger import check_liger_model
from burnish.models.load import ModelSource, load_causal_lm, load_value_model
from burnish.models.lora import add_adapters
from burnish.models.recompute import enable_recompute
from burnish.models.reward_model import check_score, load_reward_model
from burnish.models.vision.family import freeze_vision_tower, vision_modules
from burnish.training.backend import MicroBatch
from burnish.training.backends.single import SingleBackend
from burnish.training.inference import compute_log_probs, compute_scores, compute_values
from burnish.training.packing import MicroBatchSize
from burnish.training.state import hub_weights, write_hub
from tests.training.conftest import CPU, settings
from tests.vlm import FAMILIES, Vlm, rows_of

ALL_ROWS, ONE_ROW = MicroBatchSize(rows=100), MicroBatchSize(rows=1)


@pytest.fixture(scope="session", params=FAMILIES)
def vlm(request, tmp_path_factory):
    return Vlm.make(tmp_path_factory.mktemp(request.param), request.param)


def backend_of(model, adapters=None, **optim):
    backend = SingleBackend(model, CPU, torch.float32, adapters=adapters)
    if any(parameter.requires_grad for parameter in model.parameters()):
        backend.create_optimizer(settings("actor_rollout_ref.actor", optim).optim, 10, 1)
    return backend


def adapter_settings(**changes):
    values = {
        **{"key": "actor_rollout_ref.model", "rank": 2, "alpha": 4, "dropout": 0.0, "target_modules": "all-linear"},
        **{"exclude_modules": None, "adapter_path": None, "dora": False, "dtype": None, "init_a": None, "init_b": None},
    }
    return AdapterSettings(**(values | changes))


def test_trained_weights_load_as_transformers_model(vlm, tmp_path):
    backend = backend_of(vlm.load())
    names = {name for name, _ in backend.weights()}
    write_hub(tmp_path, backend, vlm.tokenizer, hub_weights(backend))
    again = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    found = dict(again.named_parameters(remove_duplicate=False))
    assert found.keys() == names
    for name, tensor in backend.weights():
        assert torch.equal(found[name], tensor), name
    copied = Vlm.at(tmp_path, vlm.name)  # with the processor's files
    assert copied.prompts() == vlm.prompts()


def test_a_critic_of_images(vlm, tmp_path):
    backend = backend_of(load_value_model(ModelSource(str(vlm.folder)), torch.float32))
    batch = rows_of(vlm.prompts())
    assert not compute_values(backend, batch, ALL_ROWS).flat.any()
    policy = dict(vlm.load().named_parameters())
    for name, parameter in backend.model.named_parameters():
        assert name == "score.weight" or torch.equal(parameter, policy[name]), name
    torch.nn.init.normal_(backend.model.score.weight)
    packed, single = (compute_values(backend, batch, size).flat for size in (ALL_ROWS, ONE_ROW))
    assert packed.unique().numel() > len(batch)
    torch.testing.assert_close(packed, single, rtol=0, atol=2e-5)
    write_hub(tmp_path, backend, vlm.tokenizer, hub_weights(backend))
    again = backend_of(load_value_model(ModelSource(str(tmp_path)), torch.float32))
    assert torch.equal(compute_values(again, batch, ALL_ROWS).flat, packed)


def test_a_reward_model_of_images(vlm, tmp_path):
    source = ModelSource(str(tmp_path), key="reward_model.model.path")
    shutil.copytree(vlm.folder, tmp_path, dirs_exist_ok=True)
    with pytest.raises(UserError, match="no trained score head"):
        load_reward_model(source, torch.float32)
    critic = backend_of(load_value_model(ModelSource(str(vlm.folder)), torch.float32))
    torch.nn.init.normal_(critic.model.score.weight)
    write_hub(tmp_path, critic, None, hub_weights(critic))
    model = load_reward_model(source, torch.float32)
    check_score(model, source)
    prompts = vlm.prompts()
    rows = rows_of(prompts)["prompt_ids"]
    media = [prompt.media for prompt in prompts]
    packed, single = (compute_scores(backend_of(model), rows, size, media) for size in (ALL_ROWS, ONE_ROW))
    torch.testing.assert_close(packed, single, rtol=0, atol=2e-5)
    without = compute_scores(backend_of(model), rows, ALL_ROWS)
    differs = ((packed - without).abs() > 1e-6).tolist()
    assert differs == [bool(prompt.media) for prompt in prompts]


@pytest.mark.parametrize("frozen", [False, True])
def test_adapters_with_and_without_the_tower(vlm, tmp_path, frozen):
    model = vlm.load()
    base = {name: tensor.clone() for name, tensor in model.named_parameters(remove_duplicate=False)}
    tower = vision_modules(model)
    adapters = add_adapters(model, adapter_settings(), dtype=torch.float32, frozen=tower if frozen else {})
    backend = backend_of(model, adapters)
    assert any(name.startswith(tuple(tower)) for name in adapters.layers) == (not frozen)
    batch = rows_of(vlm.prompts())
    before = compute_log_probs(backend, batch, 1.0, ALL_ROWS).flat
    for layer in adapters.layers.values():
        torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    after = compute_log_probs(backend, batch, 1.0, ALL_ROWS).flat
    assert float((before - after).abs().max()) > 1e-3
    torch.testing.assert_close(compute_log_probs(backend, batch, 1.0, ALL_ROWS, adapters=False).flat, before)
    weights = dict(backend.weights())
    assert weights.keys() == base.keys()
    changed = {name for name, tensor in weights.items() if not torch.equal(tensor, base[name])}
    assert changed == {f"{name}.weight" for name in adapters.layers}
    write_hub(tmp_path / "merged", backend, vlm.tokenizer, hub_weights(backend))
    merged = backend_of(load_causal_lm(ModelSource(str(tmp_path / "merged")), PACKED, torch.float32))
    torch.testing.assert_close(compute_log_probs(merged, batch, 1.0, ALL_ROWS).flat, after, rtol=0, atol=2e-5)
    adapters.write(tmp_path / "adapter", adapters.state())
    second = vlm.load()
    add_adapters(second, adapter_settings(adapter_path=str(tmp_path / "adapter")), dtype=torch.float32)
    torch.testing.assert_close(compute_log_probs(backend_of(second), batch, 1.0, ALL_ROWS).flat, after)


def test_excluded_modules_and_a_frozen_tower_add_up(vlm):
    for excluded in (["o_proj"], ".*o_proj"):
        model = vlm.load()
        adapters = add_adapters(
            model, adapter_settings(exclude_modules=excluded), dtype=torch.float32, frozen=vision_modules(model)
        )
        assert adapters.layers
        assert not any(name.endswith("o_proj") for name in adapters.layers)
        assert not any(name.startswith(tuple(vision_modules(model))) for name in adapters.layers)


def test_an_update_moves_the_tower_unless_it_is_frozen(vlm):
    batch = rows_of(vlm.prompts())
    for frozen in (False, True):
        model = vlm.load()
        if frozen:
            freeze_vision_tower(model, "actor_rollout_ref.actor.freeze_vision_tower")
        before = {name: tensor.clone() for name, tensor in model.named_parameters()}
        backend = backend_of(model, **{"optim.lr": 1e-3})
        micro_batches = [MicroBatch.select(batch, [row]) for row in range(len(batch))]
        backend.forward_backward(micro_batches, lambda output: (output.log_probs(1.0, False)[0].sum(), None))
        backend.step(1.0)
        moved = {name for name, tensor in model.named_parameters() if not torch.equal(tensor, before[name])}
        assert any(name.startswith(tuple(vision_modules(model))) for name in moved) == (not frozen)
        assert any("layers.0.mlp" in name for name in moved)


def test_liger_is_refused(vlm):
    with pytest.raises(UserError, match="not supported for models with images"):
        check_liger_model(vlm.load().config, "actor_rollout_ref.model.use_liger")


def test_faster_layers(vlm):
    batch = rows_of(vlm.prompts())
    expected = compute_log_probs(backend_of(vlm.load()), batch, 1.0, ALL_ROWS).flat
    model = vlm.load()
    use_cpu_kernels(model)
    torch.testing.assert_close(
        compute_log_probs(backend_of(model), batch, 1.0, ALL_ROWS).flat, expected, rtol=0, atol=2e-5
    )


@pytest.mark.parametrize("method", [None, "block", "uniform"])
def test_recomputation(vlm, method):
    batch = rows_of(vlm.prompts())
    grads = []
    for recompute in (False, True):
        model = vlm.load().train()
        if recompute:
            if vlm.name == "qwen3_vl" and method == "uniform":
                with pytest.raises(UserError, match="between layers"):
                    enable_recompute(model, method, 2, "actor_rollout_ref.model")
                enable_recompute(model, method, 1, "actor_rollout_ref.model")
            else:
                enable_recompute(model, method, 2 if method == "uniform" else 1, "actor_rollout_ref.model")
        backend = backend_of(model)
        backend.forward_backward(
            [MicroBatch.select(batch, list(range(len(batch))))],
            lambda output: (output.log_probs(1.0, False)[0].sum(), None),
        )
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(
            grads[1][name], grad, rtol=1e-5, atol=1e-6 * max(1.0, float(grad.abs().max())), msg=name
        )
