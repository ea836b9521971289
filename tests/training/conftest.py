"""A tiny policy, critic and reference on made-up rows: ragged, some tokens observed, and one response empty."""

import copy
from functools import cache, reduce

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from burnish.batch import Batch, Ragged
from burnish.config import load
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm, load_value_model
from burnish.training.backends.single import SingleBackend
from burnish.training.critic import Critic
from burnish.training.packing import MicroBatchSize
from burnish.training.policy import Policy

CPU = torch.device("cpu")
TEMPERATURE = 0.7
PROMPTS = (3, 5, 2, 7, 1, 4)
RESPONSES = (6, 1, 0, 9, 4, 5)


def spread_out(model: nn.Module) -> nn.Module:
    """Fresh weights are tiny and all tokens nearly equally likely; larger ones make every mistake visible."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer("0123456789+")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("model")
    spread_out(make_model(folder, tokenizer, hidden=16, layers=2, seed=0)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def backend(model_folder):
    """backend(): the tiny language model, packed; equal at every call."""
    model = load_causal_lm(ModelSource(str(model_folder)), PACKED, torch.float32)
    return lambda: SingleBackend(copy.deepcopy(model), CPU, torch.float32)


@pytest.fixture(scope="session")
def value_backend(model_folder):
    """The same for the critic, its value head no longer zero."""
    model = with_values(load_value_model(ModelSource(str(model_folder)), torch.float32))
    return lambda: SingleBackend(copy.deepcopy(model), CPU, torch.float32)


@pytest.fixture
def plain_model(model_folder):
    """plain_model("policy" | "critic"): transformers' own attention, one row at a time, for naive computations."""

    def make(role="policy"):
        if role == "policy":
            return AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
        how = {"num_labels": 1, "attn_implementation": "eager"}
        return with_values(AutoModelForTokenClassification.from_pretrained(model_folder, **how))

    return make


@torch.no_grad()
def with_values(model):
    model.score.weight.copy_(torch.linspace(-1, 1, 16).view(1, 16))
    model.score.bias.zero_()
    return model


@cache
def default_config():
    return load(check=False).cfg


def settings(section, changes):
    """A config section with changes, `optim.lr` and so on, by dotted name."""
    config = copy.deepcopy(default_config())
    for name, value in changes.items():
        *path, last = f"{section}.{name}".split(".")
        home = reduce(getattr, path, config)
        assert hasattr(home, last), name
        setattr(home, last, value)
    return reduce(getattr, section.split("."), config)


@pytest.fixture
def make_policy(backend):
    """make_policy(**{"loss_agg_mode": "token-mean", "optim.lr": 1e-3, ...}): a Policy with those actor settings."""

    def make(*, made=None, seed=1, total_steps=10, updates=1, rows_per_prompt=1, temperature=TEMPERATURE, **changes):
        config = settings("actor_rollout_ref.actor", {"ppo_mini_batch_size": len(PROMPTS), "optim.lr": 1e-2} | changes)
        made = backend() if made is None else made
        made.create_optimizer(config.optim, total_steps, updates)
        return Policy(
            made,
            config,
            temperature=temperature,
            rows_per_prompt=rows_per_prompt,
            max_response_length=12,
            inference_micro_batch=MicroBatchSize(rows=4),
            seed=seed,
        )

    return make


@pytest.fixture
def make_critic(value_backend):
    def make(*, seed=1, **changes):
        config = settings("critic", {"ppo_mini_batch_size": len(PROMPTS), "optim.lr": 1e-2} | changes)
        made = value_backend()
        made.create_optimizer(config.optim, 10, 1)
        return Critic(
            made,
            config,
            rows_per_prompt=1,
            max_response_length=12,
            seed=seed,
        )

    return make


@pytest.fixture
def batch(tokenizer):
    return make_batch(tokenizer)


def make_batch(tokenizer):
    """Six rows: prompts and responses of different lengths, the third response empty, some tokens observed."""
    generator = torch.Generator().manual_seed(7)

    def ids(lengths):
        return Ragged.of([torch.randint(3, len(tokenizer), (n,), generator=generator) for n in lengths], torch.int64)

    responses = ids(RESPONSES)

    def column(flat):
        return Ragged.like(flat, responses)

    total = len(responses.flat)
    observed = torch.zeros(total)
    observed[[2, 3, 10]] = 1
    return Batch(
        prompt_ids=ids(PROMPTS),
        responses=responses,
        response_mask=column(1 - observed),
        old_log_probs=column(-2.5 + torch.rand(total, generator=generator)),
        ref_log_prob=column(-2.5 + torch.rand(total, generator=generator)),
        advantages=column(torch.randn(total, generator=generator)),
        values=column(torch.randn(total, generator=generator)),
        returns=column(torch.randn(total, generator=generator)),
    )


@pytest.fixture
def without():
    """without(batch, *names): the batch less these columns."""
    return lambda batch, *names: batch.keep(*(name for name in batch if name not in names))


@pytest.fixture
def gradients():
    """gradients(role, batch): the gradient of each update, as the optimizer would see it; nothing is updated."""

    def find(role, batch, step=1):
        found = []

        def update(grad_clip):
            named = role.backend.model.named_parameters()
            found.append({name: p.grad.clone() for name, p in named if p.grad is not None})
            role.optimizer.inner.zero_grad(set_to_none=True)
            return 1.0

        role.optimizer.update = update
        role.update(batch, step)
        return found

    return find


@pytest.fixture
def assert_same():
    """assert_same(gradient, other): equal up to the rounding of float32 sums."""

    def check(one, other, tolerance=2e-5):
        assert one.keys() == other.keys()
        scale = max(float(g.abs().max()) for g in other.values())
        assert scale > 0, "both gradients are zero: the comparison would show nothing"
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=tolerance * scale, msg=name)

    return check


@pytest.fixture
def micro_settings():
    """Ways to cut the six rows into micro-batches."""
    by_rows = [{"ppo_micro_batch_size_per_gpu": size} for size in (1, 2, 4, 6)]
    by_tokens = [{"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": budget} for budget in (1, 17, 30, 1000)]
    return by_rows + by_tokens


@pytest.fixture
def weights():
    """weights(role): a copy of every weight."""
    return lambda role: {name: p.detach().clone() for name, p in role.backend.model.named_parameters()}
