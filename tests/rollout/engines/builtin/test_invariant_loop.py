"""Invariant mode in the device loop: log-probs of samples are those of training, bit for bit; here a CPU interprets the
kernels."""

from __future__ import annotations

import pytest
import torch

from burnish.batch import Batch, Ragged
from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.invariant.head import InvariantHead
from burnish.models.invariant.modules import use_invariant_modules
from burnish.models.kernels import invariant as kernels
from burnish.models.kernels import sample
from burnish.models.kernels.lazy_triton import ordered_products
from burnish.models.load import ModelSource, load_causal_lm, load_config
from burnish.models.logits import TORCH
from burnish.models.model_input import ModelInput
from burnish.models.parts import all_weights
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.decode_plan import decode_plan, uses_device_loop
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.rollout.engines.builtin.graph_decode import GraphDecoder
from burnish.sizing import INVARIANT_FAMILIES
from burnish.training.backend import BackendOptions
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows

CPU = torch.device("cpu")
HEAT = 0.8
PATIENCE = 300.0


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of which several are needed, though not many: interpreting a program takes a millisecond."""
    for name, size in {"ROWS": 16, "COLUMNS": 128, "QUERIES": 16, "KEYS": 16, "DEPTH_BYTES": 128}.items():
        monkeypatch.setattr(kernels, name, size)
    monkeypatch.setattr(sample, "CHUNK", 32)
    with ordered_products(), torch.backends.mkldnn.flags(enabled=False):
        yield


def options(folder, dtype=torch.float32, device=CPU, **more):
    extra = {"triton": True, "block_size": 16, "sync_interval": 3, **more.pop("extra", {})}
    settings = {"max_model_len": 80, "max_num_seqs": 3, "device_loop": True, "invariant": True, **more}
    return EngineOptions(ModelSource(folder), dtype, device, eos_ids=(2,), extra=extra, **settings)


def make_engine(model, given):
    engine = BuiltinEngine(given)
    assert isinstance(engine.decoder, GraphDecoder) and engine.capabilities.invariant is bool(given.invariant)
    engine.load_weights(all_weights(model), 1)
    return engine


def requests(prompt):
    """Prompts of several lengths, two samples each, which end one after the other; one is restricted."""
    found = []
    for number, length in enumerate((3, 18)):
        for index in range(2):
            more = {"top_k": 5} if number == index == 1 else {}
            sampling = Sampling(2 + 2 * number + index, temperature=HEAT, ignore_eos=True, **more)
            found.append(Request(ModelInput(prompt(length)), sampling, 10 * number + index))
    return found


def respond(engine, requests):
    return [future.result(PATIENCE) for future in engine.generate(requests)]


def trained_log_probs(folder, asked, answers, dtype, invariant=True):
    """What training computes at the sampled tokens."""
    model = load_causal_lm(ModelSource(folder), PACKED, torch.float32)
    if invariant:
        use_invariant_modules(model, dtype)
    head = InvariantHead(TORCH) if invariant else TORCH
    backend = SingleBackend(model, CPU, dtype, options=BackendOptions(head=head))
    rows = Batch(
        prompt_ids=Ragged.of([list(request.input.ids) for request in asked], torch.int64),
        responses=Ragged.of([answer.ids for answer in answers], torch.int64),
    )
    with torch.no_grad():
        return backend.log_probs(PackedRows.of(rows, CPU), HEAT, True)[0]


def reported(answers):
    return torch.tensor([value for answer in answers for value in answer.log_probs])


DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
def test_log_probs_are_those_of_training(family_folder, their_model, prompt, dtype):
    model = their_model(family_folder)
    if model.config.model_type not in INVARIANT_FAMILIES:
        assert not uses_device_loop(options(family_folder))
        return
    asked = requests(prompt)
    engine = make_engine(model, options(family_folder, dtype))
    try:
        answers = respond(engine, asked)
        assert torch.equal(trained_log_probs(family_folder, asked, answers, dtype), reported(answers))
        row = [*asked[0].input.ids, *answers[0].ids]
        assert engine.score([row], HEAT)[0][-len(answers[0].ids) :] == answers[0].log_probs
    finally:
        engine.close()


@pytest.mark.long
def test_the_batch_changes_nothing(tiny_folder, their_model, prompt):
    """Alone, in other company, with prompts in pieces, after new weights at other addresses."""
    model, asked = their_model(tiny_folder), requests(prompt)
    engine = make_engine(model, options(tiny_folder, max_num_seqs=1))
    alone = respond(engine, asked)
    engine.close()
    assert len({tuple(answer.ids) for answer in alone}) > 2
    engine = make_engine(model, options(tiny_folder, max_num_seqs=8, max_num_batched_tokens=10, chunked_prefill=True))
    assert respond(engine, asked[::-1])[::-1] == alone
    engine.sleep(level=2)
    engine.wake()
    engine.load_weights(all_weights(model), 1)
    assert respond(engine, asked) == alone
    engine.close()


def test_without_it_bits_differ(tiny_folder, their_model, prompt):
    """The control: products by a library, whose order of sums is its own."""
    asked = requests(prompt)[:2]
    engine = make_engine(their_model(tiny_folder), options(tiny_folder, invariant=False, extra={"triton": False}))
    answers = respond(engine, asked)
    engine.close()
    found, told = trained_log_probs(tiny_folder, asked, answers, torch.float32, invariant=False), reported(answers)
    assert not torch.equal(found, told) and torch.allclose(found, told, atol=1e-4)


def test_who_decodes_with_them(tiny_folder, family_folder):
    gpu = torch.device("cuda")
    fast = load_config(ModelSource(family_folder)).model_type in INVARIANT_FAMILIES
    assert uses_device_loop(options(family_folder, device=gpu, device_loop=None)) is fast
    assert not uses_device_loop(options(tiny_folder, extra={"triton": False}))
    assert not uses_device_loop(options(tiny_folder, device_loop=None))  # on a CPU


def test_plan(tiny_folder):
    plan = decode_plan(options(tiny_folder, extra={"shared_prefix": True, "compiled": True, "few_rows": 8}), "qwen2")
    assert plan.invariant and not (plan.compiled or plan.shared_prefix or plan.few_rows)
    assert [remark.split()[0] for remark in plan.remarks] == ["compiled", "shared_prefix", "few_rows"]
    assert not decode_plan(options(tiny_folder, invariant=False), "qwen2").invariant


@pytest.mark.parametrize("extra", [{"block_size": 32}, {"kv_cache_dtype": "fp8"}])
def test_what_the_kernels_cannot(tiny_folder, monkeypatch, extra):
    """Tiles of keys that blocks cut, and a cache that rounds what training does not."""
    monkeypatch.setattr(kernels, "KEYS", 64)
    with pytest.raises(UserError, match="invariant"):
        decode_plan(options(tiny_folder, extra={"block_size": 64, **extra}), "qwen2")
