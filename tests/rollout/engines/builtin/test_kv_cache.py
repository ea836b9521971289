"""What comes out of the paged cache is what transformers makes without one of ours."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.logprobs import token_log_probs
from burnish.models.parts import backbone, head_weight, logit_softcap
from burnish.rollout.engine import Sampling
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE, CacheShape, KVCache

LENGTHS = (3, 20, BLOCK_SIZE - 6, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 300)
NEW = 20
GREEDY = Sampling(NEW, do_sample=False)


@pytest.fixture
def prompts(prompt):
    return [prompt(length) for length in LENGTHS]


def their_greedy(model, ids):
    config = GenerationConfig(do_sample=False, max_new_tokens=NEW, pad_token_id=0)
    ids = torch.tensor([list(ids)])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return output[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("invariant", [True, False])
def test_greedy_equals_transformers(family_folder, their_model, make_engine, prompts, ask, invariant):
    engine = make_engine(family_folder, invariant=invariant, eos_ids=())
    expected = [their_greedy(their_model(family_folder), ids) for ids in prompts]
    assert [completion.ids for completion in ask(engine, prompts, GREEDY)] == expected
    assert {len(ids) for ids in expected} == {NEW} and len({tuple(ids) for ids in expected}) == len(prompts)


def training_log_probs(folder, rows, temperature):
    """Log-prob of every token but the first of each row, as the trainer computes them."""
    model = load_causal_lm(ModelSource(folder), PACKED, torch.float32).eval()
    lengths = [len(row) for row in rows]
    ids = torch.cat(rows)
    positions = torch.cat([torch.arange(n) for n in lengths])
    with torch.no_grad():
        common = {"position_ids": positions[None], "use_cache": False, "segments": lengths}
        hidden = backbone(model)(input_ids=ids[None], **common).last_hidden_state[0]
        log_probs, _ = token_log_probs(
            hidden, head_weight(model), ids.roll(-1), temperature, softcap=logit_softcap(model)
        )
    return [part[:-1] for part in log_probs.split(lengths)]


def mismatch(folder, prompts, completions, temperature):
    rows = [torch.tensor([*ids, *completion.ids]) for ids, completion in zip(prompts, completions, strict=True)]
    trained = training_log_probs(folder, rows, temperature)
    ours = [torch.tensor(completion.log_probs) for completion in completions]
    return max(float((a - t[-len(a) :]).abs().max()) for a, t in zip(ours, trained, strict=True))


@pytest.mark.parametrize("sampling", [Sampling(NEW, temperature=0.7), Sampling(NEW, top_k=5, top_p=0.9)])
def test_log_probs_equal_a_training_forward(family_folder, make_engine, prompts, ask, sampling):
    completions = ask(make_engine(family_folder, eos_ids=()), prompts, sampling)
    assert mismatch(family_folder, prompts, completions, sampling.temperature) < 1e-4


def test_one_changed_weight_shows(family_folder, their_model, make_engine, prompts, ask):
    """A rank-one change of one projection of one layer must not pass for the same model."""
    engine = make_engine(family_folder, eos_ids=())
    weights = {name: tensor.clone() for name, tensor in their_model(family_folder).named_parameters()}
    projection = weights["model.layers.1.self_attn.v_proj.weight"]
    generator = torch.Generator().manual_seed(0)
    projection += 0.1 * torch.outer(*(torch.randn(n, generator=generator) for n in projection.shape))
    engine.load_weights(weights.items(), version=2)
    assert mismatch(family_folder, prompts, ask(engine, prompts, Sampling(NEW)), 1.0) > 1e-3


def test_a_new_cache_holds_nothing_strange():
    """Masked places are multiplied by zero, so stale NaN in recycled memory would reach every row."""
    shape = CacheShape(layers=2, kv_heads=2, head_dim=8, dtype=torch.float32)
    for num_blocks in (1, 7, 64):
        size = (num_blocks, 2, BLOCK_SIZE, 8)
        stale = [torch.full(size, float("nan")) for _ in range(8)]
        del stale
        cache = KVCache(shape, num_blocks, torch.device("cpu"))
        assert all(pool.shape == size and not pool.any() for pool in (*cache.keys, *cache.values))


def test_half_precision_cache():
    shape = CacheShape(layers=1, kv_heads=2, head_dim=4, dtype=torch.bfloat16)
    cache = KVCache(shape, 3, torch.device("cpu"))
    assert cache.keys[0].dtype == torch.bfloat16
    assert shape.block_bytes == sum(pool[0].nbytes for pool in (*cache.keys, *cache.values))


def test_copy_blocks():
    cache = KVCache(CacheShape(1, 1, 2, torch.float32), 5, torch.device("cpu"))
    cache.keys[0][1], cache.values[0][2] = 5.0, 7.0
    cache.copy_blocks([1, 1, 2], [0, 3, 4])
    assert (cache.keys[0][[0, 3]] == 5).all() and (cache.values[0][4] == 7).all()
    assert not cache.keys[0][[2, 4]].any() and not cache.values[0][[0, 3]].any()


@pytest.mark.parametrize("device_loop", [False, True])
def test_waiting_sessions_have_room(tiny_folder, make_engine, device_loop):
    """The cache holds all conversations that run or wait, not only those that run."""
    blocks = {}
    for num_sessions in (0, 2, 40):
        engine = make_engine(tiny_folder, max_num_seqs=4, max_sessions=num_sessions, device_loop=device_loop)
        engine.decoder.open_cache()
        blocks[num_sessions] = engine.scheduler.blocks.pool.num_blocks
    assert blocks[0] == blocks[2] and blocks[40] / blocks[0] == (40 + 1) / (4 + 1)
