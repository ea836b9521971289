"""An engine with weights of 8 bits computes what a model computes whose weights were rounded before."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

from burnish.errors import UserError
from burnish.models.fused.fp8 import FP8, FP8_BLOCK, dequantize, round_to_fp8
from burnish.rollout.engine import DraftOptions, Sampling
from burnish.rollout.engines.digests import sync_weights
from tests.conftest import SIZES, sharpen

TEN = Sampling(10, ignore_eos=True)
TOKEN_BY_TOKEN = {}
DEVICE_LOOP = {"device_loop": True, "eager": False, "extra": {"block_size": 16, "sync_interval": 4, "triton": False}}
TRITON = {**DEVICE_LOOP, "extra": {**DEVICE_LOOP["extra"], "triton": True}, "max_num_seqs": 2, "max_model_len": 64}
DECODERS = {"token by token": TOKEN_BY_TOKEN, "device loop": DEVICE_LOOP}


def rounded_model(model, by_block=True, factor=1.0):
    """A copy whose layers' matrices were rounded and expanded again."""
    found = copy.deepcopy(model)
    for name, parameter in found.named_parameters():
        parameter.data = parameter.data * factor
        if name.endswith("_proj.weight"):
            values, scales = round_to_fp8(parameter.data, by_block)
            rows = torch.arange(len(values), dtype=torch.int32) // (FP8_BLOCK if by_block else len(values))
            parameter.data = dequantize(values, scales, rows)
    return found


def sent(model):
    """The stream of a policy, which has a tied head under both names."""
    return list(model.named_parameters(remove_duplicate=False))


def log_probs(model, ids):
    """Of every token but the first, given those before it."""
    tokens = torch.tensor(ids)
    logits = model(tokens[None], use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(-1, tokens[1:, None]).squeeze(-1)


def assert_computes(engine, model, prompts, ask, atol=1e-5):
    """Scores and the log-probs of sampled tokens are the model's."""
    for ids, scores in zip(prompts, engine.score(prompts), strict=True):
        assert torch.allclose(torch.tensor(scores[1:]), log_probs(model, ids), atol=atol)
    for ids, completion in zip(prompts, ask(engine, prompts, TEN), strict=True):
        expected = log_probs(model, [*ids, *completion.ids])[len(ids) - 1 :]
        assert torch.allclose(torch.tensor(completion.log_probs), expected, atol=atol)


@pytest.fixture(scope="session")
def wide_folder(tmp_path_factory):
    """Several blocks in every matrix, none of which they fill."""
    folder = tmp_path_factory.mktemp("wide")
    torch.manual_seed(2)
    sizes = {**SIZES, "hidden_size": 160, "intermediate_size": 300}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, attention_bias=True, mlp_bias=True))
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1, generator=generator)
    model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("decoder", DECODERS)
def test_families(decoder, family_folder, make_engine, their_model, prompt, ask):
    engine = make_engine(family_folder, quantization="block", **DECODERS[decoder])
    prompts = [prompt(21), prompt(40), prompt(21)]
    assert_computes(engine, rounded_model(their_model(family_folder)), prompts, ask)
    moved = torch.tensor(engine.score(prompts)[0][1:]) - log_probs(their_model(family_folder), prompts[0])
    assert moved.abs().max() > 1e-3


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("how", ["block", "tensor"])
def test_scales_of_blocks_and_of_matrices(how, decoder, wide_folder, make_engine, their_model, prompt, ask):
    engine = make_engine(wide_folder, quantization=how, **DECODERS[decoder])
    expected = rounded_model(their_model(wide_folder), how == "block")
    assert_computes(engine, expected, [prompt(21), prompt(5)], ask, atol=3e-5)


def test_in_triton(tiny_folder, make_engine, their_model, prompt, ask):
    """The same with all Triton kernels, in Triton's interpreter."""
    engine = make_engine(tiny_folder, quantization="block", **TRITON)
    prompts = [prompt(18), prompt(5)]
    for ids, completion in zip(prompts, ask(engine, prompts, Sampling(4, ignore_eos=True)), strict=True):
        expected = log_probs(rounded_model(their_model(tiny_folder)), [*ids, *completion.ids])[len(ids) - 1 :]
        assert torch.allclose(torch.tensor(completion.log_probs), expected, atol=2e-5)
    assert not engine.capabilities.remarks


def test_responses_do_not_depend_on_the_batch(wide_folder, make_engine, prompt, ask):
    """As without rounding on a CPU: products have tiles of equal size."""
    engine = make_engine(wide_folder, quantization="block")
    assert engine.capabilities.invariant
    together = ask(engine, [prompt(21), prompt(21), prompt(40)], TEN)
    assert together[:1] == ask(engine, [prompt(21)], TEN)


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_sync_rounds_anew(decoder, tiny_folder, make_engine, their_model, prompt, ask):
    engine, model = make_engine(tiny_folder, quantization="block", **DECODERS[decoder]), their_model(tiny_folder)
    for version, factor in ((2, 0.5), (3, 1.5)):
        stream = [(name, weight * factor) for name, weight in sent(model)]
        sync_weights(engine, stream, version, torch.float32)  # compares values and scales
        assert_computes(engine, rounded_model(model, factor=factor), [prompt(21), prompt(5)], ask)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("decoder", DECODERS)
def test_sleep_and_wake(level, decoder, tiny_folder, make_engine, their_model, prompt, ask):
    engine, model = make_engine(tiny_folder, quantization="block", **DECODERS[decoder]), their_model(tiny_folder)
    before = ask(engine, [prompt(21)], TEN)
    engine.sleep(level)
    assert (sum(tensor.numel() for tensor in engine.memory()["weights"]) == 0) == (level == 2)
    sync_weights(engine, sent(model), 1, torch.float32)
    engine.wake()
    assert ask(engine, [prompt(21)], TEN) == before


def test_layers_have_one_byte_per_weight(tiny_folder, make_engine, their_model):
    sizes = {}
    for name in (None, "block"):
        weights = make_engine(tiny_folder, quantization=name).memory()["weights"]
        sizes[name] = sum(weight.nbytes for weight in weights)
        assert {weight.dtype for weight in weights} == ({torch.float32} if name is None else {torch.float32, FP8})
    model = their_model(tiny_folder)
    matrices = [weight for name, weight in model.named_parameters() if name.endswith("_proj.weight")]
    assert sizes[None] - sizes["block"] == 3 * sum(weight.numel() for weight in matrices)


@pytest.mark.parametrize("part", ["weight", "scales"])
def test_a_wrong_value_or_scale_is_noticed(part, tiny_folder, make_engine, their_model, monkeypatch):
    engine, name = make_engine(tiny_folder, quantization="block"), "model.layers.1.mlp.up_proj.weight"
    layer, load = engine.runner.rounded[name], engine.runner.load_weights

    def load_wrongly(stream):
        load(stream)
        flat = getattr(layer, part).view(-1)
        flat[:1] = flat[:1].float() * -1

    monkeypatch.setattr(engine.runner, "load_weights", load_wrongly)
    with pytest.raises(RuntimeError, match=rf"{name} \(1 of"):
        sync_weights(engine, sent(their_model(tiny_folder)), 2, torch.float32)


class TestCombinations:
    def test_a_cpu_reports_that_it_is_slow(self, tiny_folder, make_engine):
        (remark,) = make_engine(tiny_folder, quantization="block").capabilities.remarks
        assert remark.startswith("actor_rollout_ref.rollout.quantization: ") and "slow" in remark

    def test_explicit_layers_of_small_batches_have_no_effect(self, tiny_folder, make_engine):
        loop = {**DEVICE_LOOP, "extra": {**DEVICE_LOOP["extra"], "few_rows": 8}}
        remarks = make_engine(tiny_folder, quantization="block", **loop).capabilities.remarks
        assert "few_rows has no effect: no explicit layers for weights in 8 bits" in remarks[-1]

    def test_the_trainers_kernels_do_not_round(self, tiny_folder, make_engine):
        loop = {**TRITON, "extra": {"triton": True}}
        with pytest.raises(UserError, match="training has no weights of 8 bits") as caught:
            make_engine(tiny_folder, quantization="block", invariant=True, **loop)
        assert caught.value.key == "actor_rollout_ref.rollout.quantization"

    def test_experts_stay_and_that_is_reported(self, tmp_path, make_engine, prompt, ask):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))
        sharpen(model, seed=1)
        model.save_pretrained(tmp_path)
        engine = make_engine(str(tmp_path), quantization="block")
        assert any("experts stay in torch.float32" in remark for remark in engine.capabilities.remarks)
        assert_computes(engine, rounded_model(model.eval()), [prompt(21), prompt(5)], ask)

    def test_drafts_are_verified_by_the_same_layers(self, tiny_folder, make_engine, their_model, prompt, ask):
        engine = make_engine(tiny_folder, quantization="block", drafts=DraftOptions(4, 8))
        assert_computes(engine, rounded_model(their_model(tiny_folder)), [prompt(21)] * 2, ask)
