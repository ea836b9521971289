"""Engines report which experts they send each token to, however the tokens came into their cache."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, MixtralConfig, Qwen3MoeConfig

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.models.routing import Routing, as_text, from_text
from burnish.rollout.agents.recorded import RecordedCalls
from burnish.rollout.conversation import TrajectoryBuilder
from burnish.rollout.engine import Completion, Request, Sampling
from burnish.rollout.trajectory import Trajectory, response_columns

from ..conftest import SIZES, sharpen

PROMPTS = [(5, 6, 7), (9, 4, 11, 12, 13, 3), (20,) * 9, (30, 31), tuple(range(3, 40))]
SAMPLING = Sampling(max_tokens=10)
ENGINES = {
    "token by token": {},
    "device loop": {"device_loop": True},
    "prefix cache, small passes": {"prefix_caching": True, "max_num_batched_tokens": 16},
    "hf": {"name": "hf"},
}


def mixture(config, seed):
    model = AutoModelForCausalLM.from_config(config)
    sharpen(model, seed)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("mixture")
    torch.manual_seed(2)
    sizes = {**SIZES, "num_hidden_layers": 3}
    config = Qwen3MoeConfig(
        **sizes, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, mlp_only_layers=[1]
    )
    mixture(config, seed=2).save_pretrained(where)
    return str(where)


def chosen(model, ids):
    """What transformers' routers choose for a sequence, [tokens, mixtures, k], in no order."""
    found = []
    handles = [
        layer.mlp.gate.register_forward_hook(lambda module, args, output: found.append(output[2]))
        for layer in model.model.layers
        if hasattr(layer.mlp, "gate")
    ]
    model(torch.tensor([ids]), use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.stack(found, dim=1).sort(-1).values


def generate(engine, prompts, sampling=SAMPLING, session=None):
    requests = [Request(ModelInput(ids), sampling, seed=n, session=session) for n, ids in enumerate(prompts)]
    return [future.result(60) for future in engine.generate(requests)]


@pytest.mark.parametrize("options", ENGINES.values(), ids=list(ENGINES))
def test_choices_are_those_of_transformers(folder, make_engine, their_model, options):
    engine = make_engine(folder, record_experts=True, **options)
    for prompts in (PROMPTS, [*PROMPTS, (*PROMPTS[-1], 8, 9)]):
        for ids, completion in zip(prompts, generate(engine, prompts), strict=True):
            experts = completion.routed_experts
            assert experts.dtype == torch.uint8
            assert experts.shape == (len(ids) + len(completion.ids) - 1, 2, 2)
            wanted = chosen(their_model(folder), [*ids, *completion.ids[:-1]])
            assert torch.equal(experts.long().sort(-1).values, wanted)
    assert engine.capabilities.digests  # nothing else of the engine changes


def test_nothing_is_recorded_unasked(folder, make_engine):
    assert generate(make_engine(folder), PROMPTS[:1])[0].routed_experts is None


def test_a_conversation_knows_the_experts_of_all_its_tokens(folder, make_engine, their_model):
    engine = make_engine(folder, record_experts=True)
    builder = TrajectoryBuilder(ModelInput(PROMPTS[-1]))
    for observed in ((7, 8), (3, 4, 5)):
        builder.add_sampled(generate(engine, [builder.input.ids], session="talk")[0])
        builder.add_observation(observed, "tool")
    builder.add_sampled(generate(engine, [builder.input.ids], session="talk")[0])
    trajectory = builder.build("stop")
    whole = [*trajectory.prompt.ids, *trajectory.ids]
    assert torch.equal(trajectory.routed_experts[:-1].long().sort(-1).values, chosen(their_model(folder), whole[:-1]))
    assert (trajectory.routed_experts[-1] == 255).all()
    column = response_columns([trajectory, replace(trajectory, ids=[], mask=[], routed_experts=None)])["routed_experts"]
    assert column.lengths.tolist() == [len(whole), len(trajectory.prompt)]
    assert (column[1] == 255).all()


def test_an_agents_own_tokens_get_the_choices_of_its_requests(folder, make_engine, their_model):
    """An agent that puts its token sequences together itself; one of its requests led nowhere."""
    engine, calls = make_engine(folder, record_experts=True), RecordedCalls(sampler=None)
    first = generate(engine, [PROMPTS[0]])[0]
    aside = (*PROMPTS[0], *first.ids[:2], 9, 9)
    second = (*PROMPTS[0], *first.ids, 7, 8)
    for ids, completion in zip((PROMPTS[0], aside, second), (first, *generate(engine, [aside, second])), strict=True):
        calls.calls.append((ModelInput(ids), completion))
    last = calls.calls[-1][1]
    response = [*first.ids, 7, 8, *last.ids]
    mask = [1] * len(first.ids) + [0, 0] + [1] * len(last.ids)
    trajectory = calls.trajectory(PROMPTS[0], response, mask, "the agent")
    whole = [*PROMPTS[0], *trajectory.ids]
    assert torch.equal(trajectory.routed_experts[:-1].long().sort(-1).values, chosen(their_model(folder), whole[:-1]))
    assert (trajectory.routed_experts[-1] == 255).all()


def test_a_conversation_without_choices_is_refused():
    prompt = ModelInput((1, 2))
    recorded = torch.zeros(4, 1, 2, dtype=torch.uint8)
    known = Completion([3, 4, 5], [0.0] * 3, [1] * 3, "stop", routed_experts=recorded)
    rows = [Trajectory.single_turn(prompt, completion) for completion in (known, replace(known, routed_experts=None))]
    with pytest.raises(UserError, match="without the engine's choices of experts"):
        response_columns(rows)


def test_choices_survive_a_file():
    for dtype in (torch.uint8, torch.int16):
        choices = torch.randint(0, 120, (5, 3, 2)).to(dtype)
        assert torch.equal(from_text(as_text(choices)), choices)
    bad = [{}, {"shape": [1, 1], "dtype": "uint8", "data": ""}, {"shape": [1, 1, 9], "dtype": "uint8", "data": "AA=="}]
    for value in [*bad, {"shape": [1, 1, 1], "dtype": "int64", "data": "AA=="}]:
        with pytest.raises(ValueError, match="choices of experts"):
            from_text(value)


def families():
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
    yield MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2), (False, True)
    for normalized in (True, False):
        yield Qwen3MoeConfig(**SIZES, **experts, num_experts=4, norm_topk_prob=normalized), (False, normalized)
    latent = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
    grouped = {"n_routed_experts": 300, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
    yield DeepseekV3Config(**{**SIZES, "num_key_value_heads": 4}, **experts, **latent, **grouped), (True, True)


@pytest.mark.parametrize(("config", "weighing"), list(families()), ids=lambda value: getattr(value, "model_type", ""))
def test_weights_of_repeated_choices_are_the_routers_own(config, weighing):
    """Choices that a router has made itself change nothing; others get the weights that it gives them."""
    model = mixture(config, seed=1)
    routing = Routing(model, "a.key")
    router = routing.mixtures[-1].router
    hidden = torch.randn(7, SIZES["hidden_size"])
    with routing.recording():
        _, weights, own = router(hidden)
        assert routing.dtype == (torch.uint8 if routing.num_experts == 4 else torch.int16)
        attention = routing.mixtures[-1].attention
        whole = routing.empty(7, hidden.device)
        whole[:, -1] = own.flip(-1)
        whole[3:] = routing.missing
        taken = routing._take(len(routing.mixtures) - 1, attention, (), {"routed_experts": whole, "other": 1})
        assert taken == ((), {"other": 1})
        _, again, repeated = router(hidden)
    assert torch.equal(repeated[:3], own[:3].flip(-1)) and torch.equal(repeated[3:], own[3:])
    torch.testing.assert_close(again[:3], weights[:3].flip(-1))
    torch.testing.assert_close(again[3:], weights[3:])
    assert (weighing[0], weighing[1]) == (config.model_type == "deepseek_v3", weighing[1])


def test_a_dense_model_has_no_routers():
    with pytest.raises(UserError, match="no routers"):
        Routing(AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)), "a.key")
