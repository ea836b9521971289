"""Training on a CPU with and without the C kernels of burnish/models/cpu, part by part.

    python bench/cpu_modules.py [--repeats 15]

Forward and backward passes alternate between the models. A figure is the ratio of median times, plain / replaced.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from burnish.models import attention
from burnish.models.attention import PACKED
from burnish.models.cpu.autograd import DifferentiableLayers
from burnish.models.fused.replace import replace_modules
from burnish.models.varlen import Segments

PARTS = {"norm": {"KernelRMSNorm"}, "gate": {"FusedMLP"}, "rotation": {"FusedAttention"}}
# name: (hidden, intermediate, layers, heads, kv_heads, tokens per sequence, sequences)
SHAPES = {"tiny": (64, 128, 2, 4, 2, 24, 32), "0.5B layers": (896, 4864, 2, 14, 2, 128, 4)}


def build(shape):
    hidden, intermediate, layers, heads, kv_heads, _, _ = shape
    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=512,
    )
    attention.register()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=PACKED, dtype=torch.float32)


def with_parts(plain, kinds):
    """A copy of the model in which only modules of these kinds are replaced."""
    model, replaced = copy.deepcopy(plain), copy.deepcopy(plain)
    replace_modules(replaced, DifferentiableLayers(), product=None)
    for name, module in replaced.named_modules():
        if type(module).__name__ in kinds:
            parent, _, child = name.rpartition(".")
            original = model.get_submodule(name)
            for inner in original._modules:
                module._modules[inner] = original._modules[inner]
            setattr(model.get_submodule(parent), child, module)
    return model


def step(model, shape):
    length, count = shape[-2:]
    ids = torch.arange(length * count)[None] % 512
    positions = torch.arange(length).repeat(count)[None]
    segments = Segments.of([length] * count, torch.device("cpu"))
    start = time.perf_counter()
    logits = model(input_ids=ids, position_ids=positions, segments=segments, use_cache=False).logits
    logits.square().mean().backward()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    for name, shape in SHAPES.items():
        plain = build(shape)
        models = {"plain": plain, **{part: with_parts(plain, kinds) for part, kinds in PARTS.items()}}
        models["all"] = with_parts(plain, set.union(*PARTS.values()))
        times = {part: [] for part in models}
        for _ in range(repeats + 2):
            for part, model in models.items():
                times[part].append(step(model, shape))
        medians = {part: statistics.median(values[2:]) for part, values in times.items()}
        ratios = ", ".join(f"{part} {medians['plain'] / medians[part]:.2f}x" for part in list(models)[1:])
        print(f"{name}: plain {1000 * medians['plain']:.1f} ms; {ratios}")


if __name__ == "__main__":
    main()
