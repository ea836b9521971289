"""An engine whose weights have 16 bits adds its layers up in 32, as the trainer does: its log-probs come closer."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from burnish.batch import Batch, Ragged
from burnish.models import wide
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.model_input import ModelInput
from burnish.models.parts import backbone
from burnish.models.wide import is_wide
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.device_batch import PLAIN
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.rollout.engines.builtin.graphs import CompiledLayers
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows

BF16 = torch.bfloat16
SIZES = {"vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "pad_token_id": 0}
CPU = torch.device("cpu")
WAYS = [{}, {"device_loop": True, "eager": True}, {"invariant": True}]


@pytest.fixture(autouse=True)
def without_onednn():
    """Its products of 16 bits end the process on some virtual machines."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A folder with the config of a model of many layers, and the trainer's weights for it."""
    folder = tmp_path_factory.mktemp("deep")
    Qwen2Config(**SIZES, num_hidden_layers=20, num_key_value_heads=2).save_pretrained(folder)
    model = load_causal_lm(ModelSource(str(folder)), PACKED, torch.float32, empty=True).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                values = torch.randn(parameter.shape, generator=generator) * 0.6 * parameter.shape[1] ** -0.5
                parameter.copy_(values.bfloat16())  # as published weights are: all that differs is how they are used
    return folder, model


@contextlib.contextmanager
def opened(deep, **way):
    folder, model = deep
    engine = BuiltinEngine(EngineOptions(ModelSource(str(folder)), BF16, CPU, eos_ids=(2,), max_model_len=80, **way))
    try:
        engine.load_weights(model.named_parameters(), 1)
        yield engine
    finally:
        engine.close()


def gap(deep, prompt, ask, **way) -> float:
    """Mean difference between the log-probs of sampled tokens and those that the trainer computes."""
    model = deep[1]
    prompts = [prompt(20, salt) for salt in range(8)]
    with opened(deep, **way) as engine:
        answers = ask(engine, prompts, Sampling(48, ignore_eos=True))
    rows = Batch(
        prompt_ids=Ragged.of([list(ids) for ids in prompts], torch.int64),
        responses=Ragged.of([answer.ids for answer in answers], torch.int64),
    )
    with torch.no_grad():
        found, _ = SingleBackend(model, CPU, BF16).log_probs(PackedRows.of(rows, CPU), 1.0, False)
    told = torch.tensor([value for answer in answers for value in answer.log_probs])
    return float((found - told).abs().mean())


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS, ids=["by token", "in windows", "invariant"])
def test_engine_and_trainer_come_closer(way, deep, prompt, ask, monkeypatch):
    widely = gap(deep, prompt, ask, **way)
    monkeypatch.setattr(wide, "FLOAT32_RESIDUAL_FAMILIES", frozenset())
    narrowly = gap(deep, prompt, ask, **way)
    assert 0 < widely < 0.75 * narrowly


def test_the_stream_is_wide_and_the_cache_is_not(deep, prompt, ask):
    seen = []
    with opened(deep, device_loop=True, eager=True) as engine:
        for layer in backbone(engine.runner.model).layers:
            layer.register_forward_pre_hook(lambda layer, given: seen.append(given[0].dtype))
        (answer,) = ask(engine, [prompt(9)], Sampling(4, ignore_eos=True))
        kept = {tensor.dtype for tensor in engine.scheduler.blocks.cache.keys}
    assert len(answer.ids) == 4 and set(seen) == {torch.float32} and kept == {BF16}


@pytest.mark.parametrize("config", [Gemma2Config, Gemma3TextConfig])
def test_embeddings_of_gemma_are_those_of_the_trainer(config, tmp_path):
    """Their factor, the square root of the hidden size, is not rounded to 16 bits."""
    config(**SIZES | {"hidden_size": 72}, num_hidden_layers=1, num_key_value_heads=2).save_pretrained(tmp_path)
    trained = load_causal_lm(ModelSource(str(tmp_path)), PACKED, torch.float32, empty=True)
    weights = {name: weight.detach().bfloat16().float() for name, weight in trained.named_parameters()}
    trained.load_state_dict(weights, strict=False)
    ids = torch.arange(61)
    with opened((tmp_path, trained)) as engine:
        found = engine.runner.model.get_input_embeddings()(ids)
    torch.testing.assert_close(found, trained.get_input_embeddings()(ids).detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("way", WAYS[:2], ids=["by token", "in windows"])
def test_weights_of_8_bits_move_log_probs_by_their_rounding_alone(way, deep, prompt, ask):
    """Here that is nothing: powers of two stay what they are."""
    folder, model = deep
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.sign() * 2.0 ** parameter.abs().log2().round().clamp(-8, 1))
    whole, rounded = (gap((folder, model), prompt, ask, quantization=how, **way) for how in (None, "block"))
    assert 0 < rounded < 1.5 * whole


def test_weights_of_32_bits_and_experts_stay_as_they_are():
    sizes = {**SIZES, "num_hidden_layers": 1, "num_key_value_heads": 2}
    plain, experts = Qwen2ForCausalLM(Qwen2Config(**sizes)), MixtralForCausalLM(MixtralConfig(**sizes))
    assert not is_wide(plain) and is_wide(plain.to(BF16)) and not is_wide(experts.to(BF16))


@pytest.mark.usefixtures("decoding_as_on_a_gpu")
@pytest.mark.parametrize("quantization", [None, "block"])
def test_a_layer_stays_one_program(quantization, deep, prompt):
    """Formats are changed inside it: where rotations and norms end, and where products begin."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    loop = {"device_loop": True, "own_thread": False, "extra": {"block_size": 16, "sync_interval": 4}}
    with opened(deep, quantization=quantization, **loop) as engine:
        engine.generate([Request(ModelInput(prompt(20)), Sampling(30, ignore_eos=True), seed) for seed in (1, 2)])
        engine.step()
        decoder = engine.decoder
        layers = CompiledLayers(engine.runner.model, backend=counter)
        for size in (3, 5, 6):
            body = decoder._make_step(size, PLAIN, 0)
            decoder.batch.deactivate()
            layers.around(body)()
            assert decoder.batch.log_probs.device[:2].isfinite().all()
    assert counter.frame_count == 2  # for the first size, and for all others
