"""Small batches decode through explicit layers, and nothing but the speed changes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, LlamaConfig, SmolLM3Config

from burnish.models.attention import PAGED, register
from burnish.models.fused.replace import replace_modules
from burnish.rollout.engine import Sampling
from burnish.rollout.engines.builtin import decode_layers, shared_prefix
from burnish.rollout.engines.builtin.decode_layers import DecodeLayers, Family, UnsupportedLayersError
from burnish.rollout.engines.builtin.device_batch import PLAIN

from .test_graph_decode import LOOP, assert_same
from .test_graphs import SyncRecorder, ready

GREEDY = Sampling(12, temperature=0, ignore_eos=True)
SIZES = {"vocab_size": 53, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "pad_token_id": 0}


@pytest.fixture
def make_loop(make_engine):
    """make_loop(folder, few_rows, **extra): an engine with the device loop and the model's own or explicit layers."""

    def make(folder, few_rows=8, max_num_seqs=8, own_thread=True, **extra):
        extra = {"block_size": 16, "sync_interval": 4, "triton": False, "few_rows": few_rows, **extra}
        options = {"max_num_seqs": max_num_seqs, "own_thread": own_thread, "max_model_len": 96}
        return make_engine(folder, **{**LOOP, "extra": extra, **options})

    return make


@pytest.fixture
def calls(monkeypatch):
    """Rows of every step through the explicit layers."""
    seen, call = [], DecodeLayers.__call__
    monkeypatch.setattr(
        DecodeLayers, "__call__", lambda layers, ids, *rest: seen.append(len(ids)) or call(layers, ids, *rest)
    )
    return seen


@pytest.mark.parametrize("shared", [False, True])
def test_families(shared, family_folder, make_loop, prompt, ask, calls, monkeypatch):
    monkeypatch.setattr(shared_prefix, "MIN_TOKENS", 16)
    prompts = [prompt(21), prompt(40), prompt(21), prompt(3)]
    expected = ask(make_loop(family_folder, few_rows=0), prompts, GREEDY)
    assert not calls
    engine = make_loop(family_folder, shared_prefix=shared)
    found = ask(engine, prompts, GREEDY)
    assert [one.ids for one in found] == [one.ids for one in expected] and 4 in calls
    for one, other in zip(found, expected, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    assert (engine.stats()["kv_tokens_saved"] > 0) == shared


def test_in_triton(tiny_folder, make_loop, prompt, ask, calls, monkeypatch):
    """In Triton's interpreter, where comparing the layers takes longer than all else."""
    prompts, sampling = [prompt(18), prompt(5)], Sampling(3, ignore_eos=True)
    plain = make_loop(tiny_folder)
    expected = ask(plain, prompts, sampling)
    calls.clear()
    monkeypatch.setattr(decode_layers, "check_layers", lambda layers: plain.decoder.layers.attention)
    engine = make_loop(tiny_folder, max_num_seqs=2, triton=True)
    assert_same(ask(engine, prompts, sampling), expected)
    assert calls == [2, 2] and not engine.decoder.layers.products.counters.any()


def test_larger_batches_run_the_models_own_layers(tiny_folder, make_loop, prompt, ask, calls):
    prompts = [prompt(9, salt) for salt in range(6)]
    engine = make_loop(tiny_folder, few_rows=2)
    assert_same(ask(engine, prompts, GREEDY), ask(make_loop(tiny_folder, few_rows=0), prompts, GREEDY))
    assert not calls
    assert_same(ask(engine, prompts[:2], GREEDY), ask(make_loop(tiny_folder, few_rows=0), prompts[:2], GREEDY))
    assert set(calls) <= {1, 2} and 2 in calls


def test_no_family_syncs_with_the_host(family_folder, make_loop, prompt):
    decoder = ready(make_loop(family_folder, own_thread=False), prompt, Sampling(30, ignore_eos=True))
    body, known = decoder.graphs.get(2, PLAIN)
    with SyncRecorder() as recorder:
        body.run()
    assert known and decoder.layers is not None and recorder.seen == set()


def test_new_weights(tiny_folder, make_loop, their_model, prompt, ask):
    """In the same storage, and in other storage after a deep sleep."""
    weights = {name: tensor.flip(0).clone() for name, tensor in their_model(tiny_folder).named_parameters()}
    engine, plain = make_loop(tiny_folder), make_loop(tiny_folder, few_rows=0)
    before = ask(engine, [prompt(30)], GREEDY)
    for each in (engine, plain):
        each.load_weights(weights.items(), version=2)
    assert_same(ask(engine, [prompt(30)], GREEDY), ask(plain, [prompt(30)], GREEDY))
    engine.sleep(level=2)
    engine.load_weights(their_model(tiny_folder).named_parameters(), version=1)
    engine.wake()
    assert ask(engine, [prompt(30)], GREEDY) == before


def build(config, dtype=torch.float32):
    register()
    model = AutoModelForCausalLM.from_config(config, attn_implementation=PAGED, dtype=dtype).requires_grad_(False)
    replace_modules(model, None, F.linear)
    return model.eval()


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
REFUSED = {
    "'smollm3'": SmolLM3Config(**SIZES, **HEADS),
    "activation 'gelu'": LlamaConfig(**SIZES, **HEADS, hidden_act="gelu"),
    "self_attn.o_proj.bias": LlamaConfig(**SIZES, **HEADS, attention_bias=True),
    "mlp.down_proj.bias": LlamaConfig(**SIZES, **HEADS, mlp_bias=True),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_has_no_explicit_layers(reason):
    with pytest.raises(UnsupportedLayersError, match=reason):
        DecodeLayers(build(REFUSED[reason]), max_positions=64, triton=False)


def test_half_precision():
    config = LlamaConfig(**SIZES, **HEADS)
    DecodeLayers(build(config, torch.bfloat16), max_positions=64, triton=False)
    with pytest.raises(UnsupportedLayersError, match=r"torch\.float16"):
        DecodeLayers(build(config, torch.float16), max_positions=64, triton=False)


@pytest.mark.parametrize(
    ("attribute", "what"),
    [("heads", "queries"), ("gate_up", "results"), ("add", "results")],
)
def test_layers_are_compared_and_not_trusted(attribute, what, monkeypatch):
    """An operation that is wrong by a little is noticed, also with random weights."""
    products = decode_layers.TorchProducts
    operation = getattr(products, attribute)

    def wrong(self, stream, *rest):
        result = operation(self, stream, *rest)
        (stream.hidden if result is None else result)[:, ::2] *= 1.01
        return result

    monkeypatch.setattr(products, attribute, wrong)
    with pytest.raises(UnsupportedLayersError, match=f"{what} of layer 0 differ"):
        DecodeLayers(build(LlamaConfig(**SIZES, **HEADS)), max_positions=64, triton=False)


def test_a_refusal_is_reported_and_decoding_goes_on(tiny_folder, make_loop, prompt, ask, monkeypatch):
    monkeypatch.setitem(decode_layers.FAMILIES, "qwen2", Family(offset=1.0))
    engine, plain = make_loop(tiny_folder), make_loop(tiny_folder, few_rows=0)
    (remark,) = engine.capabilities.remarks
    assert remark.startswith("engine_kwargs.builtin.few_rows has no effect: the queries of layer 0 differ")
    assert plain.capabilities.remarks == () and plain.decoder.layers is None
    assert ask(engine, [prompt(9)], GREEDY) == ask(plain, [prompt(9)], GREEDY)
