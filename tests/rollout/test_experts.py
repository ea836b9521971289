"""Mixtures of experts: the engine says what transformers says, and training gets the same gradients."""

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, MixtralConfig, Qwen3MoeConfig

from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.model_input import ModelInput
from burnish.models.parts import saved_buffers
from burnish.models.plain import plain_model
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.weights import copy_weights
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows

from ..conftest import SIZES, sharpen

CPU = torch.device("cpu")
LATENT = {
    **{**SIZES, "num_key_value_heads": SIZES["num_attention_heads"], "num_hidden_layers": 3},
    **{"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "n_shared_experts": 1},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1},
}
FAMILIES = {
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **SIZES, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True
    ),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v3": lambda: DeepseekV3Config(**LATENT, q_lora_rank=12, v_head_dim=6, n_group=2, topk_group=1),
    "deepseek_v3, wide values": lambda: DeepseekV3Config(
        **LATENT, q_lora_rank=None, v_head_dim=20, n_group=1, topk_group=1
    ),
}
PROMPTS = [(5, 6, 7), (9, 4, 11, 12, 13, 3), (20,) * 9, (30, 31)]


@pytest.fixture(scope="module", params=list(FAMILIES))
def folder(request, tmp_path_factory):
    where = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(FAMILIES[request.param]())
    sharpen(model, seed=2)
    for _, buffer in saved_buffers(model):
        buffer.copy_(torch.linspace(-0.5, 0.5, len(buffer)))
    model.save_pretrained(where)
    return str(where)


def greedy(engine, prompts):
    sampling = Sampling(max_tokens=12, temperature=0.0)
    requests = [Request(input=ModelInput(ids), sampling=sampling, seed=0) for ids in prompts]
    return [future.result() for future in engine.generate(requests)]


def test_greedy_responses_are_those_of_transformers(folder, make_engine, their_model):
    found = greedy(make_engine(folder), PROMPTS)
    for ids, completion in zip(PROMPTS, found, strict=True):
        theirs = their_model(folder).generate(
            torch.tensor([ids]), max_new_tokens=12, do_sample=False, eos_token_id=2, pad_token_id=0
        )
        assert completion.ids == theirs[0, len(ids) :].tolist()


def test_a_response_does_not_depend_on_its_neighbours(folder, make_engine):
    together = greedy(make_engine(folder), PROMPTS)
    alone = [greedy(make_engine(folder), [ids])[0] for ids in PROMPTS]
    assert [completion.ids for completion in together] == [completion.ids for completion in alone]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(torch.tensor(one.log_probs), torch.tensor(other.log_probs), rtol=0, atol=1e-4)


def test_nobody_promises_equal_bits(folder, make_engine):
    """Experts multiply as many rows as were sent to them, so the last bit depends on the neighbours."""
    assert not make_engine(folder).capabilities.invariant
    with pytest.raises(UserError, match="depend on the batch"):
        make_engine(folder, invariant=True)


def test_packed_training_gets_transformers_gradients(folder):
    ours = load_causal_lm(ModelSource(folder), PACKED, torch.float32).train()
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    rows = [torch.tensor(ids) for ids in PROMPTS if len(ids) > 2]
    packed = PackedRows(
        ids=torch.cat(rows),
        positions=torch.cat([torch.arange(len(row)) for row in rows]),
        segments=[len(row) for row in rows],
        predicts=torch.arange(sum(map(len, rows))),
        targets=torch.zeros(sum(map(len, rows)), dtype=torch.int64),
        ends=torch.tensor([len(row) for row in rows]).cumsum(0) - 1,
    )
    new, _ = SingleBackend(ours, CPU, torch.float32).log_probs(packed, 1.0, False)
    new.sum().backward()
    for row in rows:
        logits = theirs(row[None], use_cache=False).logits[0]
        torch.log_softmax(logits, -1)[:, 0].sum().backward()
    wanted = dict(theirs.named_parameters())
    experts = [name for name in wanted if "experts" in name]
    assert experts and any(wanted[name].grad.abs().max() > 0 for name in experts)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-3, atol=1e-4)


def test_a_plain_copy_saves_the_experts(folder, tmp_path):
    model = load_causal_lm(ModelSource(folder), PACKED, torch.float32)
    plain_model(model, model.state_dict()).save_pretrained(tmp_path)
    again = load_causal_lm(ModelSource(str(tmp_path)), PACKED, torch.float32)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_routers_bias_keeps_its_precision_and_reaches_the_engine(tmp_path):
    """It decides which experts are chosen: half precision would choose others than the trainer."""
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(FAMILIES["deepseek_v3"]())
    (name, bias), *_ = saved_buffers(model)
    bias.copy_(torch.tensor([0.1001, -0.2003, 0.3007, 0.1009]))
    model.save_pretrained(tmp_path)
    source = ModelSource(str(tmp_path))
    engine = load_causal_lm(source, PACKED, torch.bfloat16, empty=True)
    trainer = load_causal_lm(source, PACKED, torch.bfloat16)
    assert dict(saved_buffers(engine))[name].abs().sum() == 0
    copy_weights(engine, SingleBackend(trainer, CPU, torch.bfloat16).weights())
    assert dict(saved_buffers(engine))[name].dtype == torch.float32
    assert torch.equal(dict(saved_buffers(engine))[name], bias)
    with pytest.raises(ValueError, match=r"left out 2 tensors: .*e_score_correction_bias"):
        copy_weights(engine, trainer.named_parameters())
