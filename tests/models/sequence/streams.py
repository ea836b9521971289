"""What a rank does in these tests: one stream alone and again shared with the others, and how far the two differ."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import distributed
from transformers import AutoModelForCausalLM

from burnish.models import attention
from burnish.models.logprobs import token_log_probs
from burnish.models.parts import backbone, head_weight, logit_softcap
from burnish.models.sequence.method import RING, ULYSSES
from burnish.models.sequence.parallel import SequenceParallel
from burnish.models.sequence.places import Places

from ...conftest import FAMILIES, sharpen

BOTH = replace(RING, name="both", inner=2)
METHODS = {method.name: method for method in (ULYSSES, RING, BOTH)}
LENGTHS = {
    "uneven": [5, 26, 1, 9, 17],  # the second row over the boundary of two ranks, and of four
    "one row over all ranks": [61],
    "equal rows": [8, 8, 8, 8],
    "fewer tokens than four ranks": [2, 1],
}


@dataclass(frozen=True)
class Case:
    """A model, a stream and a way to share it."""

    family: str
    method: str
    lengths: str = "uneven"
    heads: int = 4
    kv_heads: int = 2
    attn: str = attention.PACKED
    recompute: bool = False

    def model(self):
        attention.register()
        torch.manual_seed(1)
        config = FAMILIES[self.family]()
        sizes = {"num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": 8}
        for name, value in sizes.items():
            setattr(config, name, value)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=self.attn)
        sharpen(model, seed=1)
        if self.recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        return model


def differences(rank: int, cases: list[Case]) -> list[tuple[float, float, float]]:
    """Of each case: the largest difference of log-probs, that of the summed gradients as a share of the largest one,
    and the largest gradient itself."""
    return [compare(case) for case in cases]


def compare(case: Case) -> tuple[float, float, float]:
    model, lengths = case.model(), LENGTHS[case.lengths]
    alone, expected = read_and_teach(model, lengths, None)
    found, summed = read_and_teach(model, lengths, SequenceParallel.of(distributed.group.WORLD, METHODS[case.method]))
    for gradient in summed.values():
        distributed.all_reduce(gradient)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    worst = max(float((summed[name] - gradient).abs().max()) for name, gradient in expected.items())
    return float((found - alone).abs().max()), worst / scale, scale


def read_and_teach(model, lengths, sequence):
    """Log-probs and entropies at every place that predicts another of its row, and the gradients of their mix."""
    generator = torch.Generator().manual_seed(3)
    tokens = sum(lengths)
    ids = torch.randint(0, 53, (tokens,), generator=generator)
    whole = {
        "input_ids": ids[None],
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "attention_mask": None,
        "use_cache": False,
        "segments": lengths,
    }
    ends = set(itertools.accumulate(lengths))
    wanted = torch.tensor([place for place in range(tokens) if place + 1 not in ends])
    places = Places(wanted) if sequence is None else sequence.places(wanted, tokens)
    model.zero_grad(set_to_none=True)
    output = backbone(model)(**(whole if sequence is None else sequence.inputs(whole))).last_hidden_state[0]
    numbers = token_log_probs(
        output[places.local], head_weight(model), places.own(ids[wanted + 1]), 0.7, True, logit_softcap(model)
    )
    log_probs, entropy = (places.whole(column) for column in numbers)
    weights = torch.randn(2, len(wanted), generator=generator)
    (weights[0] * log_probs + 0.3 * weights[1] * entropy).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return torch.cat([log_probs, entropy]).detach(), gradients
