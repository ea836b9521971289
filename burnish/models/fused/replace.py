"""Replace modules of a Hugging Face model by the modules of modules.py and linear.py.

The Hugging Face class stays the definition of the model. A module is replaced only if its own code and the replacement
agree on probe inputs; anything else stays as it is. Probes have small random weights, run on the CPU, and leave the
global random state alone.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from burnish.models.fused.linear import Product, ProductLinear
from burnish.models.fused.modules import ATTENTIONS, ROTATE, FusedMLP, KernelRMSNorm, Kernels

MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
PROBE = "burnish_probe"  # the attention function that probes run with
PROBE_HIDDEN, PROBE_TOKENS = 6, 3
TOLERANCE = 1e-5
# What a module may raise that expects other inputs than the probe's.
MISMATCH = (TypeError, RuntimeError, AttributeError, ValueError, KeyError, IndexError)


class ProbeMode(NamedTuple):
    training: bool = False
    scale: float = 1.0  # of the input: large inputs reveal a family that clips its activations
    dtype: torch.dtype = torch.float32  # of products; the input stays float32, as in the engine under autocast


PROBE_MODES = (ProbeMode(), ProbeMode(training=True), ProbeMode(scale=1000.0), ProbeMode(dtype=torch.bfloat16))


def replace_modules(
    model: nn.Module, kernels: Kernels | None, product: Product | None, skip: Iterable[nn.Module] = ()
) -> int:
    """Replace supported submodules outside of `skip`; returns how many were.

    `kernels` compute norms, gates and rotations (None: torch, as in the family's module). `product` computes linear
    layers, several of one input at once (None: each computes for itself, for training).
    """
    replacement = _Replacement(kernels, product, skip)
    replacement.replace_children(model)
    return sum(module is not None for module in replacement.chosen.values())


class _Replacement:
    def __init__(self, kernels: Kernels | None, product: Product | None, skip: Iterable[nn.Module]) -> None:
        self.kernels, self.product = kernels, product
        self.chosen: dict[nn.Module, nn.Module | None] = dict.fromkeys(skip)  # by what it replaces
        # Where the kernels do not fit, the modules without them still fuse products.
        self.kernel_choices: Sequence[Kernels | None] = (kernels,) if product is None else (kernels, None)

    def replace_children(self, parent: nn.Module) -> None:
        """Depth first, so that a replaced attention takes over norms that are replaced already."""
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            if child not in self.chosen:
                self.replace_children(child)
                self.chosen[child] = self.linear(child) or self.norm(child) or self.mlp(child) or self.attention(child)
            replacement = self.chosen[child]
            if replacement is not None:
                setattr(parent, name, replacement)

    def linear(self, child: nn.Module) -> nn.Module | None:
        if type(child) is not nn.Linear or self.product is None or self.product is F.linear:
            return None
        return ProductLinear.from_module(child, self.product)

    def norm(self, child: nn.Module) -> nn.Module | None:
        weight = child._parameters.get("weight")
        eps = getattr(child, "variance_epsilon", None) or getattr(child, "eps", None)
        if self.kernels is None or weight is None or weight.dim() != 1 or len(child._parameters) != 1:
            return None
        if not isinstance(eps, float):
            return None
        probe, rows = copy.deepcopy(child), _random(PROBE_TOKENS, len(weight))
        probe_weight = probe.get_parameter("weight")
        probe_weight.data = _random(len(weight)).to(weight.dtype)
        expected = _output(probe, rows)
        for offset in (0.0, 1.0):
            if _agree(expected, self.kernels.norm(rows, probe_weight, offset, eps)):
                return KernelRMSNorm.from_module(child, offset, eps, self.kernels)
        return None

    def mlp(self, child: nn.Module) -> nn.Module | None:
        if set(child._modules) | {"act_fn"} != MLP_PARTS or child._parameters:
            return None
        sizes = {"gate_proj": (PROBE_HIDDEN, 10), "up_proj": (PROBE_HIDDEN, 10), "down_proj": (10, PROBE_HIDDEN)}
        probe = _with_small_layers(child, {name: _Projection(*size) for name, size in sizes.items()})
        for kernels in self.kernel_choices:
            tried = FusedMLP.from_module(probe, kernels)
            if all(_agree(_run(probe, mode), _run(tried, mode)) for mode in PROBE_MODES):
                return FusedMLP.from_module(child, kernels, self.product)
        return None

    def attention(self, child: nn.Module) -> nn.Module | None:
        rotates = hasattr(sys.modules.get(type(child).__module__), ROTATE)
        candidates = [kind for kind in ATTENTIONS if kind.submodules() == set(child._modules)]
        if not candidates or child._parameters or not rotates or not hasattr(child, "attention_dropout"):
            return None
        try:
            probe = _attention_probe(child)
            calls = [_call(probe, mode) for mode in PROBE_MODES]
            options = {name: value for name, value in calls[0].options.items() if name != "dropout"}
            for kernels in self.kernel_choices:
                for kind in candidates:
                    tried = kind.from_module(probe, options, kernels)
                    if all(_call(tried, mode).agrees(call) for mode, call in zip(PROBE_MODES, calls, strict=True)):
                        return kind.from_module(child, options, kernels, self.product)
        except MISMATCH:
            return None
        return None


class _Call:
    """One forward pass of an attention module: what reached the attention function, and the result."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()
        self.options: dict[str, Any] = {}

    def agrees(self, other: _Call) -> bool:
        tensors = zip(self.tensors, other.tensors, strict=True)
        return self.options == other.options and all(_agree(one, two) for one, two in tensors)


def _call(attention: nn.Module, mode: ProbeMode) -> _Call:
    call = _Call()
    head_dim = cast("int", attention.head_dim)
    angles = tuple(_random(1, PROBE_TOKENS, head_dim, seed=seed) for seed in range(2))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a family may drop out part of its output
        rows = _enter_mode(attention, mode)
        output, _ = attention(rows, position_embeddings=angles, attention_mask=None, call=call)
    call.tensors = (*call.tensors, output)
    return call


def _record(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    call: _Call,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function of probes: records its arguments and returns the queries."""
    call.tensors, call.options = (query, key, value), options
    return query.transpose(1, 2), None


def _attention_probe(child: nn.Module) -> nn.Module:
    """A copy with the same sizes of heads, a small hidden size and `_record` as its attention function."""
    AttentionInterface.register(PROBE, _record)
    config, head_dim = cast("Any", copy.deepcopy(child.config)), cast("int", child.head_dim)
    config._attn_implementation = PROBE
    query, key = (heads * head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    widths = {"q_proj": query, "k_proj": key, "v_proj": key, "qkv_proj": query + 2 * key}
    layers: dict[str, nn.Module] = {name: _Projection(PROBE_HIDDEN, width) for name, width in widths.items()}
    layers["o_proj"] = _Projection(query, PROBE_HIDDEN)
    layers |= {name: _LayoutNorm() for name in ("q_norm", "k_norm", "query_layernorm", "key_layernorm")}
    probe = _with_small_layers(child, {name: layers[name] for name in child._modules})
    probe.config = config
    return probe


def _with_small_layers(child: nn.Module, layers: dict[str, nn.Module]) -> nn.Module:
    probe = copy.copy(child)
    probe.__dict__["_modules"] = {**child._modules, **layers}
    return probe


def _enter_mode(probe: nn.Module, mode: ProbeMode) -> Tensor:
    """Set the mode of a probe; returns its input."""
    probe.training = mode.training
    for layer in probe.children():
        if isinstance(layer, _Projection):
            layer.dtype = mode.dtype
    return _random(1, PROBE_TOKENS, PROBE_HIDDEN) * mode.scale


class _Projection(nn.Module):
    """A linear layer with reproducible random weights."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.dtype = _random(outputs, inputs, seed=outputs), torch.float32

    def forward(self, rows: Tensor) -> Tensor:
        return (rows.float() @ self.weight.T).to(self.dtype)


class _LayoutNorm(nn.Module):
    """In place of a norm: its result depends on the order of the input's rows and on their length."""

    def forward(self, rows: Tensor) -> Tensor:
        position = torch.arange(rows.numel()).view(rows.shape) / rows.numel()
        return (rows * (1 + position) / (1 + rows.abs().mean(-1, keepdim=True))).to(rows.dtype)


def _random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def _run(probe: nn.Module, mode: ProbeMode) -> Tensor | None:
    return _output(probe, _enter_mode(probe, mode))


def _output(module: nn.Module, rows: Tensor) -> Tensor | None:
    """The module's output, or None if it does not map one tensor to one tensor."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = module(rows)
    except MISMATCH:
        return None
    return output if isinstance(output, Tensor) else None


def _agree(expected: Tensor | None, actual: Tensor | None) -> bool:
    if expected is None or actual is None or (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        return False
    atol = TOLERANCE * max(1.0, float(expected.abs().max()))
    return torch.allclose(expected, actual, rtol=TOLERANCE, atol=atol)
