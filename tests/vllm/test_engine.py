"""The real vLLM against transformers: log-probs, weight updates, and what happens while requests run."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from burnish.errors import UserError
from burnish.models.load import ModelSource
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.checkpoint_stream import CheckedStream
from burnish.rollout.engines.vllm.engine import VllmEngine
from burnish.seeding import derive_seed

from ..conftest import SIZES, sharpen
from .compare import BENT, PATIENCE, PROMPTS, assert_log_probs, expected, moved, respond

WIDE = {**SIZES, "hidden_size": 128}
FAMILIES = {
    "untied qwen2": lambda: Qwen2Config(**WIDE),
    "llama": lambda: LlamaConfig(**WIDE | {"tie_word_embeddings": True}),
    "qwen3": lambda: Qwen3Config(**WIDE, head_dim=32),
}
EXPERTS = {"head_dim": 32, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("bent", BENT, ids=[", ".join(bent) or "plain" for bent in BENT])
def test_log_probs_are_those_of_transformers(make_engine, their_model, tiny_folder, bent, temperature):
    """Over all tokens and at the temperature, whatever bends the draw."""
    sampling = Sampling(20, temperature=temperature, **bent)
    assert_log_probs(their_model(tiny_folder), make_engine(tiny_folder, own_thread=False), sampling, temperature)


def test_log_probs_of_temperatures_side_by_side(make_engine, their_model, tiny_folder):
    """One batch, greedy rows in it: each has its own temperature, the greedy ones 1."""
    engine, model = make_engine(tiny_folder, own_thread=False), their_model(tiny_folder)
    kinds = [(0.5, {}), (2.0, {"top_k": 5}), (1.0, {"do_sample": False, "temperature": 0.3}), (1.0, {})]
    asked = [(prompt, at, Sampling(12, **{"temperature": at, **more})) for prompt in PROMPTS for at, more in kinds]
    futures = engine.generate(
        [Request(ModelInput(prompt), s, derive_seed(number)) for number, (prompt, _, s) in enumerate(asked)]
    )
    for (prompt, at, _), future in zip(asked, futures, strict=True):
        completion = future.result(PATIENCE)
        assert completion.log_probs == pytest.approx(expected(model, prompt, completion.ids, at), abs=2e-5)


def test_likeliest_tokens_are_those_of_transformers(make_engine, their_model, tiny_folder):
    (completion,) = respond(
        make_engine(tiny_folder, own_thread=False), Sampling(6, temperature=0.7, top_k=2, logprobs=4), PROMPTS[2:3]
    )
    ids = torch.tensor([*PROMPTS[2], *completion.ids])
    with torch.no_grad():
        log_probs = torch.log_softmax(their_model(tiny_folder)(ids[None]).logits[0] / 0.7, -1)
    for place, top in enumerate(completion.top_log_probs):
        values, tokens = log_probs[len(PROMPTS[2]) - 1 + place].topk(4)
        assert [token for token, _ in top] == tokens.tolist()
        assert [value for _, value in top] == pytest.approx(values.tolist(), abs=2e-5)


def test_greedy_tokens_are_those_of_transformers(make_engine, their_model, tiny_folder):
    engine, model = make_engine(tiny_folder, own_thread=False), their_model(tiny_folder)
    for prompt, completion in zip(
        PROMPTS, respond(engine, Sampling(12, do_sample=False, ignore_eos=True)), strict=True
    ):
        ids = list(prompt)
        for _ in range(12):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert completion.ids == ids[len(prompt) :]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """built(family): a folder with a model of random weights."""

    def make(family):
        folder = tmp_path_factory.mktemp("family")
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(FAMILIES.get(family, family)())
        sharpen(model, seed=1)
        model.save_pretrained(folder)
        return str(folder)

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_new_weights_reach_every_layer(make_engine, their_model, built, family):
    """Of every family: first the model's weights, then others, each compared with transformers."""
    folder = built(family)
    engine, model = make_engine(folder, own_thread=False), their_model(folder)
    assert_log_probs(model, engine, Sampling(12, temperature=0.8), 0.8)
    sharpen(model, seed=2)
    engine.load_weights(model.named_parameters(), version=2)
    assert_log_probs(model, engine, Sampling(12, temperature=0.8), 0.8)
    engine.close()


def test_experts_on_a_cpu_are_refused(make_engine, built):
    """vLLM 0.32 takes new weights for them without a word, and goes on with the old ones."""
    with pytest.raises(UserError, match="mixture-of-experts models are not supported yet"):
        make_engine(built(lambda: Qwen3MoeConfig(**WIDE, **EXPERTS)))


def test_a_tied_head_is_sent_too(make_engine, their_model, tiny_folder, monkeypatch):
    """A stream names a tied weight once; vLLM has two copies of it. The test sees the trap if nobody avoids it."""
    engine, other = make_engine(tiny_folder, own_thread=False), moved(their_model(tiny_folder), seed=5)
    assert other.config.tie_word_embeddings
    assert "lm_head.weight" not in dict(other.named_parameters())
    engine.load_weights(other.named_parameters(), version=2)
    assert_log_probs(other, engine, Sampling(12), 1.0)
    third = moved(other, seed=6)
    monkeypatch.setattr(CheckedStream, "__iter__", lambda stream: iter(stream.source))
    engine.load_weights(third.named_parameters(), version=3)
    with pytest.raises(AssertionError):
        assert_log_probs(third, engine, Sampling(12), 1.0)


def test_versions_of_a_response_that_weights_overtake(make_engine, their_model, tiny_folder):
    engine, other = make_engine(tiny_folder, own_thread=False), moved(their_model(tiny_folder), seed=5)
    (future,) = engine.generate([Request(ModelInput((5, 6)), Sampling(20, ignore_eos=True), 1)])
    for _ in range(8):
        assert engine.step()
    engine.load_weights(other.named_parameters(), version=2)
    completion = future.result(PATIENCE)
    cut = completion.versions.index(2)
    assert completion.versions == [1] * cut + [2] * (20 - cut) and 7 <= cut <= 8


def test_an_abort_gives_what_there_is(make_engine, tiny_folder):
    engine = make_engine(tiny_folder, own_thread=False)
    sampling = Sampling(200, ignore_eos=True)
    whole = respond(engine, sampling, PROMPTS[:2])
    futures = engine.generate(
        [Request(ModelInput(ids), sampling, derive_seed(0, number)) for number, ids in enumerate(PROMPTS[:2])]
    )
    for _ in range(10):
        engine.step()
    engine.abort(futures[:1])
    partial = futures[0].result(0)
    assert partial.finish_reason == "abort" and 8 <= len(partial.ids) <= 10
    assert partial.ids == whole[0].ids[: len(partial.ids)]
    assert len(partial.log_probs) == len(partial.versions) == len(partial.ids)
    assert futures[1].result(PATIENCE).ids == whole[1].ids
    assert not engine.core.engine.has_unfinished_requests()


def test_cached_prefixes_go_with_the_weights(make_engine, their_model, tiny_folder):
    """Prompts longer than a block, asked again: their cache is used, until it is another model's."""
    engine = make_engine(tiny_folder, own_thread=False, prefix_caching=True)
    model, prompt = their_model(tiny_folder), tuple([4, 9, 13, 7] * 60)

    def asked_again(of):
        """Tokens of the prompt that were in the cache."""
        engine.stats()
        (completion,) = respond(engine, Sampling(5, ignore_eos=True), [prompt])
        assert completion.log_probs == pytest.approx(expected(of, prompt, completion.ids, 1.0), abs=2e-5)
        return engine.stats()["prefix_hit_tokens"]

    assert [asked_again(model), asked_again(model)] == [0, 128]
    other = moved(model, seed=7)
    engine.load_weights(other.named_parameters(), version=2)
    assert [asked_again(other), asked_again(other)] == [0, 128]


def test_weights_that_overtake_a_cached_prefix(make_engine, their_model, tiny_folder):
    """A row that runs keeps a prefix alive; it must not outlive the weights."""
    engine = make_engine(tiny_folder, own_thread=False, prefix_caching=True)
    other, prompt = moved(their_model(tiny_folder), seed=8), tuple([4, 9, 13, 7] * 60)
    (running,) = engine.generate([Request(ModelInput(prompt), Sampling(30, ignore_eos=True), 1)])
    for _ in range(5):
        engine.step()
    engine.load_weights(other.named_parameters(), version=2)
    (fresh,) = respond(engine, Sampling(5, ignore_eos=True), [prompt])
    assert fresh.log_probs == pytest.approx(expected(other, prompt, fresh.ids, 1.0), abs=2e-5)
    assert len(running.result(PATIENCE).ids) == 30


def test_an_own_thread(make_engine, their_model, tiny_folder):
    engine = make_engine(tiny_folder, own_thread=True)
    assert not engine.step()
    assert_log_probs(their_model(tiny_folder), engine, Sampling(12, temperature=0.7), 0.7)
    engine.close()


def test_starting_disturbs_nobody(tiny_folder):
    """vLLM seeds every generator and takes torch's threads; a run's own noise must not depend on its engine."""
    torch.manual_seed(3), random.seed(3)
    wanted = torch.rand(2), random.random()
    torch.manual_seed(3), random.seed(3)
    threads, setter = torch.get_num_threads(), torch.set_num_threads
    options = EngineOptions(ModelSource(tiny_folder), torch.float32, torch.device("cpu"), (2,), max_model_len=64)
    options.max_num_seqs = 4
    engine = VllmEngine(options)
    assert torch.equal(torch.rand(2), wanted[0]) and random.random() == wanted[1]
    assert torch.get_num_threads() == threads and torch.set_num_threads is setter
    engine.close()


def test_settings_that_vllm_does_not_support_are_refused_by_key(tiny_folder):
    source, cpu = ModelSource(tiny_folder), torch.device("cpu")

    def build(**more):
        return VllmEngine(EngineOptions(source, torch.float32, cpu, (2,), **{"max_model_len": 64, **more}))

    with pytest.raises(UserError, match=r"max_num_sequences.*Did you mean 'max_num_seqs'"):
        build(extra={"max_num_sequences": 3})
    with pytest.raises(UserError, match="Burnish sets this argument itself"):
        build(extra={"logprobs_mode": "processed_logprobs"})
    with pytest.raises(UserError, match=r"vLLM rejected its arguments: .*max_model_len"):
        build(max_model_len=100_000)
