"""The engine beside transformers: the same tokens, and what their log-probs should be."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request
from burnish.seeding import derive_seed

PATIENCE = 60.0
PROMPTS = [(5,), (5, 6, 7), tuple(range(3, 20)), (8, 8, 8, 8), tuple([4, 9, 13] * 20)]
# What bends the draw, and must not bend the log-probs.
BENT = [
    {},
    {"top_p": 0.5},
    {"top_k": 3},
    {"min_p": 0.3},
    {"min_tokens": 10},
    {"repetition_penalty": 1.7, "presence_penalty": 1.0, "frequency_penalty": 1.0},
    {"bad_words": ((5,), (6, 7))},
]


def respond(engine, sampling, prompts=PROMPTS, salt=0):
    requests = [Request(ModelInput(ids), sampling, derive_seed(salt, number)) for number, ids in enumerate(prompts)]
    return [future.result(PATIENCE) for future in engine.generate(requests)]


@torch.no_grad()
def expected(model, prompt, response, temperature):
    """Of each token of the response: log-softmax(logits / temperature) over all tokens."""
    ids = torch.tensor([*prompt, *response])
    log_probs = torch.log_softmax(model(ids[None]).logits[0].float() / temperature, -1)
    return log_probs[len(prompt) - 1 : -1].gather(-1, ids[len(prompt) :, None]).flatten().tolist()


def assert_log_probs(model, engine, sampling, temperature):
    for prompt, completion in zip(PROMPTS, respond(engine, sampling), strict=True):
        wanted = expected(model, prompt, completion.ids, temperature)
        worst = max(abs(a - b) for a, b in zip(completion.log_probs, wanted, strict=True))
        assert worst <= 5e-5, worst  # float32 on CPUs with and without AVX-512; a stale layer differs by 1e-2


def moved(model, seed):
    """A model like this one, every weight a little off."""
    torch.manual_seed(seed)
    other = AutoModelForCausalLM.from_config(model.config)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return other.eval()
