"""DecodeLayers: the decoder layers of dense families as explicit operations, few kernels each.

For decoding small batches, where a step is as long as its kernels are many. A layer is five kernels: norm, product,
norms of heads and rotary embedding; attention; product and sum; norm, product and gate; product and sum. Two more add
what Gemma norms after its products, and one the prefixes that rows share.

Weights are the model's own tensors, so weight sync needs nothing else. That a layer computes what the model's own does
is not derived from names, but tried: `check_layers` runs both on random numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from burnish.models.decode_layer import HeadNorms, LayerShape, Products, Rotary, Stream, TorchProducts
from burnish.models.fused.fp8 import fp8_layers
from burnish.models.fused.linear import FusedLinear
from burnish.models.kernels.decode_products import TritonProducts
from burnish.models.paged import KEYS, VALUES, PagedAttention
from burnish.models.parts import backbone
from burnish.models.varlen import AttentionShape
from burnish.models.wide import is_wide

BIASED = ("q_proj", "k_proj", "v_proj")  # the only products that may have biases
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}  # names of transformers -> models/decode_layer.py
PROBE_ROWS = 3
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # relative: the model's own layers round after each operation


class Family(NamedTuple):
    offset: float = 0.0  # added to the weights of norms
    post_norms: bool = False
    rope_by_kind: bool = False  # layers with and without a window have rotary embeddings of their own


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "gemma2": Family(1.0, post_norms=True),
    "gemma3_text": Family(1.0, post_norms=True, rope_by_kind=True),
}


class UnsupportedLayersError(Exception):
    """The model's layers compute something else, or in another way, than DecodeLayers can."""


class LayerWeights(NamedTuple):
    """The tensors of a layer; None where the family has none."""

    norm: Tensor
    heads: Tensor  # [q; k; v]
    bias: Tensor | None
    head_norms: HeadNorms | None
    output: Tensor
    post: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor  # [gate; up]
    down: Tensor
    mlp_post: Tensor | None

    @staticmethod
    def of(layer: nn.Module, family: Family) -> LayerWeights:
        def weight(name: str) -> Tensor:
            return layer.get_parameter(f"{name}.weight").detach()

        heads, gate_up = fused(layer, "self_attn.qkv"), fused(layer, "mlp.gate_up")
        normed = "self_attn.q_norm.weight" in dict(layer.named_parameters())
        norms = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
        return LayerWeights(
            weight("input_layernorm"),
            heads.weight,
            heads.bias,
            HeadNorms(weight("self_attn.q_norm"), weight("self_attn.k_norm")) if normed else None,
            weight("self_attn.o_proj"),
            weight(norms[0]) if family.post_norms else None,
            weight(norms[1] if family.post_norms else norms[0]),
            gate_up.weight,
            weight("mlp.down_proj"),
            weight(norms[2]) if family.post_norms else None,
        )


def fused(layer: nn.Module, name: str) -> FusedLinear:
    """One product for several linear layers, with all of their weights in one tensor."""
    try:
        module = layer.get_submodule(name)
    except AttributeError:
        module = None
    if not isinstance(module, FusedLinear):
        raise UnsupportedLayersError(f"{name} is not one product")
    return module


class DecodeLayers:
    """The layers of one model, for a step of one token per row."""

    def __init__(self, model: PreTrainedModel, max_positions: int, triton: bool) -> None:
        """UnsupportedLayersError where the model's layers compute something else."""
        config = model.config.get_text_config()
        if config.model_type not in FAMILIES:
            raise UnsupportedLayersError(f"no explicit layers for model type {config.model_type!r}")
        if model.dtype not in TOLERANCE:
            raise UnsupportedLayersError(f"no explicit layers for weights in {model.dtype}")
        if fp8_layers(model):
            raise UnsupportedLayersError("no explicit layers for weights in 8 bits")
        self.model, self.backbone = model, backbone(model)
        self.family = FAMILIES[config.model_type]
        self.modules: list[nn.Module] = list(self.backbone.get_submodule("layers").children())
        self.kinds: list[str] = getattr(config, "layer_types", None) or ["full_attention"] * len(self.modules)
        self.shape = layer_shape(config, self.family, self.modules[0])
        self.products: Products = TritonProducts(self.shape, model.device) if triton else TorchProducts(self.shape)
        self.weights: list[LayerWeights] = []
        # A sequence that ends at its full length stands one position behind it until the next sync.
        self.rotary = {kind: self._rotary(kind, max_positions + 1) for kind in sorted(set(self.kinds))}
        self.attention = check_layers(self)

    def forget(self) -> None:
        """The model's weights will be other tensors."""
        self.weights = []

    @torch.no_grad()
    def __call__(self, ids: Tensor, positions: Tensor, paged: PagedAttention) -> Tensor:
        """[rows, hidden] after the last norm, in the dtype of the weights."""
        if not self.weights:
            self.weights = [LayerWeights.of(module, self.family) for module in self.modules]
        final = self.backbone.get_parameter("norm.weight")
        hidden = self.model.get_input_embeddings()(ids).float()
        following = [*(weights.norm for weights in self.weights[1:]), final]
        stream = self.products.begin(hidden, self.weights[0].norm)
        for number, weights in enumerate(self.weights):
            module = self.modules[number].get_submodule("self_attn")
            cache = getattr(module, KEYS), getattr(module, VALUES)
            where = (self.rotary[self.kinds[number]], positions, paged, cache, self.attention[number])
            self.layer(stream, weights, *where, following[number])
        return self.products.end(stream, final)

    def layer(
        self,
        stream: Stream,
        weights: LayerWeights,
        rotary: Rotary,
        positions: Tensor,
        paged: PagedAttention,
        cache: tuple[Tensor, Tensor],
        attention: AttentionShape,
        following: Tensor,
    ) -> None:
        """One layer; `following` is the weight of the norm after it."""
        products, shape = self.products, self.shape
        qkv = products.heads(stream, weights.heads, weights.bias, weights.head_norms, rotary, positions)
        # Heads come first, as attention takes them.
        query, key, value = qkv.transpose(0, 1).split([shape.heads, shape.kv_heads, shape.kv_heads])
        mixed = paged.attend(*cache, query, key, value, attention)
        products.add(stream, mixed.flatten(1), weights.output, weights.post, weights.mlp_norm)
        gated = products.gate_up(stream, weights.gate_up)
        products.add(stream, gated, weights.down, weights.mlp_post, following)

    @torch.no_grad()
    def _rotary(self, kind: str, max_positions: int) -> Rotary:
        """Of a kind of layers, by the model's own module."""
        more = (kind,) if self.family.rope_by_kind else ()
        positions = torch.arange(max_positions, device=self.model.device)[None]
        wide = torch.empty(0, device=self.model.device)  # the result has its dtype
        tables = self.backbone.get_submodule("rotary_emb")(wide, positions, *more)
        if tables[0].shape[-1] != self.shape.dim:
            raise UnsupportedLayersError("rotary embeddings turn a part of each head")
        cos, sin = (table[0, :, : self.shape.dim // 2].contiguous() for table in tables)
        return Rotary(cos, sin)


def layer_shape(config: PretrainedConfig, family: Family, layer: nn.Module) -> LayerShape:
    name = getattr(config, "hidden_activation", None) or config.hidden_act
    if name not in ACTIVATIONS:
        raise UnsupportedLayersError(f"no explicit layers with activation {name!r}")
    names = {name for name, _ in layer.named_parameters()}
    extra = [name for name in sorted(names) if name.endswith("bias") and name.split(".")[-2] not in BIASED]
    if extra:
        raise UnsupportedLayersError(f"no explicit layers with {extra[0]}")
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = config.num_attention_heads, config.num_key_value_heads
    sizes = (config.hidden_size, config.intermediate_size, *heads, dim)
    return LayerShape(*sizes, config.rms_norm_eps, family.offset, ACTIVATIONS[name], family.post_norms)


class Probe:
    """Records what attention is called with, and returns random numbers."""

    def __init__(self, output: Tensor) -> None:
        self.output = output
        self.inputs: list[tuple[str, Tensor]] = []
        self.shape = AttentionShape(0.0)

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        self.shape = shape
        self.inputs = [("queries", query), ("keys", key), ("values", value)]
        return self.output


@torch.no_grad()
def check_layers(layers: DecodeLayers) -> list[AttentionShape]:
    """Compare every layer with the model's own on random numbers; returns how each calls attention."""
    model, shape = layers.model, layers.shape
    if model.dtype != torch.float32 and not is_wide(model):
        raise UnsupportedLayersError(f"the model's residual stream is in {model.dtype}")
    generator = torch.Generator().manual_seed(0)
    hidden, output = (
        torch.randn(size, generator=generator, device="cpu").to(model.device)
        for size in ((PROBE_ROWS, shape.hidden), (PROBE_ROWS, shape.heads, shape.dim))
    )
    output = output.to(model.dtype)
    found = []
    for number, module in enumerate(layers.modules):
        with random_vectors(module, generator):
            own = _compare(layers, number, hidden, output)
            _compare(layers, number, hidden, torch.zeros_like(output))  # the MLP alone, which may add much less
        found.append(own.shape)
    return found


def _compare(layers: DecodeLayers, number: int, hidden: Tensor, output: Tensor) -> Probe:
    """One layer where attention returns `output`; UnsupportedLayersError if it differs from the model's own."""
    module, own, explicit = layers.modules[number], Probe(output), Probe(output)
    positions = torch.arange(len(hidden), device=hidden.device)
    rotary = layers.rotary[layers.kinds[number]]
    expected = _own_layer(layers.model, module, hidden, positions, rotary, own)
    weights = LayerWeights.of(module, layers.family)
    stream = layers.products.begin(hidden.clone(), weights.norm)
    layers.layer(stream, weights, rotary, positions, explicit, (output, output), own.shape, weights.norm)
    pairs = [(name, ours, theirs) for (name, ours), (_, theirs) in zip(explicit.inputs, own.inputs, strict=True)]
    for name, ours, theirs in [*pairs, ("results", stream.hidden - hidden, expected - hidden)]:
        error = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        if not error < TOLERANCE[layers.model.dtype]:
            raise UnsupportedLayersError(f"the {name} of layer {number} differ from the model's own by {error:.1e}")
    return own


def _own_layer(
    model: PreTrainedModel,
    module: nn.Module,
    hidden: Tensor,
    positions: Tensor,
    rotary: Rotary,
    probe: Probe,
) -> Tensor:
    """The output of the model's own layer, as models/wide.py runs it."""
    angles = tuple(table[positions].repeat(1, 2)[None] for table in rotary)
    inputs = {"position_embeddings": angles, "position_ids": positions[None], "attention_mask": None, "paged": probe}
    if not is_wide(model):
        return module(hidden[None], **inputs)[0]
    with torch.autocast(hidden.device.type, model.dtype, cache_enabled=False):
        return module(hidden[None], **inputs)[0]


@contextlib.contextmanager
def random_vectors(module: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Random norms and biases, which are all the same in a model without its weights."""
    vectors = [parameter for parameter in module.parameters() if parameter.dim() == 1]
    saved = [vector.clone() for vector in vectors]
    for vector in vectors:
        vector.copy_(torch.randn(len(vector), generator=generator, device="cpu"))
    try:
        yield
    finally:
        for vector, values in zip(vectors, saved, strict=True):
            vector.copy_(values)
