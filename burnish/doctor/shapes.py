"""Shape: a model's dimensions from its config.json, and the parameter counts that follow."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from burnish.doctor.known_shapes import KNOWN
from burnish.doctor.latent import Latent
from burnish.doctor.tower import MAX_SIZE, Tower, tower_of
from burnish.errors import UserError
from burnish.storage import model_folder
from burnish.untrusted import read_json_object

# Families whose parameters are counted exactly; others are counted as if they were Llama.
EXACT = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2")
GEMMA = ("gemma", "gemma2", "gemma3_text")
FOUR_NORMS = ("gemma2", "gemma3_text")
QK_NORMS = ("qwen3", "qwen3_moe", "gemma3_text")
# Language models inside vision models -> the family of text models that they are.
TEXT_FAMILIES = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_text"), "qwen3"),
    **dict.fromkeys(("qwen3_vl_moe", "qwen3_vl_moe_text"), "qwen3_moe"),
    **dict.fromkeys(("smolvlm", "idefics3"), "llama"),
    "gemma3": "gemma3_text",
}
# transformers' defaults, which published configs of Gemma 3 leave out.
TEXT_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208}
}
MAX_LAYERS = 10_000  # that are looked at one by one
# Parts of a name that say what a model was trained on and do not change its size.
SIBLINGS = r"(?<![a-z])(math|coder|vl|meta)(?![a-z])"


class Linear(NamedTuple):
    """One linear layer, by its name in Hugging Face models."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Shape:
    """The dimensions of a decoder-only language model."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    softcap: bool = False  # attention logits are capped, which no fused kernel supports
    experts: int = 0  # per layer; `intermediate` is then the size of one expert
    active_experts: int = 0
    shared_intermediate: int = 0  # of shared experts
    dense_layers: int = 0  # of a mixture, those with one MLP, of `dense_intermediate`
    dense_intermediate: int = 0
    latent: Latent | None = None
    tower: Tower | None = None  # its vision part, which the counts below leave out

    @property
    def exact(self) -> bool:
        """Whether counts are exact rather than estimated."""
        return self.family in EXACT and self.tower is None

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def qk_norm(self) -> bool:
        return self.family in QK_NORMS

    @property
    def norms(self) -> int:
        """RMS norms of the hidden size per layer."""
        return 4 if self.family in FOUR_NORMS else 2

    def attention(self) -> list[Linear]:
        if self.latent is not None:
            return self._latent_attention(self.latent)
        return [
            Linear("q_proj", self.hidden, self.query, self.qkv_bias),
            Linear("k_proj", self.hidden, self.key, self.qkv_bias),
            Linear("v_proj", self.hidden, self.key, self.qkv_bias),
            Linear("o_proj", self.query, self.hidden, self.out_bias),
        ]

    def _latent_attention(self, latent: Latent) -> list[Linear]:
        queries = [Linear("q_proj", self.hidden, self.query)]
        if latent.query_rank:
            queries = [
                Linear("q_a_proj", self.hidden, latent.query_rank, self.qkv_bias),
                Linear("q_b_proj", latent.query_rank, self.query),
            ]
        return [
            *queries,
            Linear("kv_a_proj_with_mqa", self.hidden, latent.rank + latent.rope, self.qkv_bias),
            Linear("kv_b_proj", latent.rank, self.heads * (latent.nope + latent.value)),
            Linear("o_proj", self.heads * latent.value, self.hidden, self.qkv_bias),
        ]

    def mlp(self) -> list[Linear]:
        """Linear layers of the MLP; with experts, those of all of them together."""
        inner = self.shared_intermediate + self.intermediate * max(1, self.experts)
        return [
            Linear("gate_proj", self.hidden, inner, self.mlp_bias),
            Linear("up_proj", self.hidden, inner, self.mlp_bias),
            Linear("down_proj", inner, self.hidden, self.mlp_bias),
        ]

    @property
    def active_intermediate(self) -> int:
        """MLP size that one token activates."""
        return self.shared_intermediate + self.intermediate * max(1, self.active_experts)

    @property
    def layer_linear(self) -> int:
        """Matrix entries per layer."""
        return sum(linear.weights for linear in (*self.attention(), *self.mlp())) + self.experts * self.hidden

    @property
    def layer(self) -> int:
        """Parameters per layer."""
        biases = sum(linear.outputs for linear in (*self.attention(), *self.mlp()) if linear.bias)
        norms = self.norms * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        norms += 0 if self.latent is None else self.latent.rank + self.latent.query_rank
        return self.layer_linear + biases + norms

    @property
    def layer_tensors(self) -> int:
        """Parameter tensors per layer."""
        linears = (*self.attention(), *self.mlp())
        biases = sum(linear.bias for linear in linears)
        return len(linears) + biases + self.norms + 2 * self.qk_norm + bool(self.experts)

    @property
    def embedding(self) -> int:
        return self.vocab * self.hidden

    @property
    def backbone(self) -> int:
        """Parameters without the head."""
        inner = self.shared_intermediate + self.experts * self.intermediate - self.dense_intermediate
        saved = self.dense_layers * (3 * self.hidden * inner + self.experts * self.hidden)
        return self.embedding + self.layers * self.layer - saved + self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the language model; a tied head counts once."""
        return self.backbone + (0 if self.tied else self.embedding)

    @property
    def all_parameters(self) -> int:
        """Parameters of the language model and of the vision tower."""
        return self.parameters + (0 if self.tower is None else self.tower.parameters)

    @property
    def active_parameters(self) -> int:
        """Parameters that compute one token: those of idle experts do not."""
        idle = max(0, self.experts - max(1, self.active_experts)) if self.experts else 0
        return self.parameters - (self.layers - self.dense_layers) * 3 * self.hidden * self.intermediate * idle

    @property
    def tensors(self) -> int:
        return 2 + self.layers * self.layer_tensors + (not self.tied)

    def cache_per_token(self, itemsize: int, *, latent: bool = False) -> int:
        """Bytes of keys and values of one token. `latent`: an engine that caches what DeepSeek's attention makes them
        of; the built-in one caches all heads."""
        if latent and self.latent is not None:
            return self.layers * (self.latent.rank + self.latent.rope) * itemsize
        return 2 * self.layers * self.key * itemsize


class ShapeSource(NamedTuple):
    """A shape and where it comes from."""

    shape: Shape
    source: str


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape of a Hugging Face config."""
    inner = config.get("text_config")
    outer = str(config.get("model_type", "llama"))
    text = {**TEXT_DEFAULTS.get(outer, {}), **config, **(inner if isinstance(inner, Mapping) else {})}
    family = TEXT_FAMILIES.get(str(text.get("model_type")), str(text.get("model_type", "llama")))
    hidden, heads = _number(text, "hidden_size"), _number(text, "num_attention_heads")
    experts = _first(text, "num_experts", "num_local_experts", "n_routed_experts") or 0
    intermediate = _first(text, "intermediate_size")
    expert = _first(text, "moe_intermediate_size") or intermediate
    shared = _first(text, "shared_expert_intermediate_size") or (_first(text, "n_shared_experts") or 0) * (expert or 0)
    latent = _latent(text)
    head_dim = _first(text, "head_dim") or max(1, hidden // heads)
    return Shape(
        family=family,
        hidden=hidden,
        intermediate=(expert if experts else intermediate) or 4 * hidden,
        layers=_number(text, "num_hidden_layers"),
        heads=heads,
        kv_heads=heads if latent else _first(text, "num_key_value_heads") or heads,
        head_dim=head_dim if latent is None else max(latent.nope + latent.rope, latent.value),
        vocab=_number(text, "vocab_size"),
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", family in GEMMA))),
        qkv_bias=family in ("qwen2", "qwen2_moe") or bool(text.get("attention_bias", False)),
        out_bias=family in ("llama", "qwen3", "gemma", "gemma2") and bool(text.get("attention_bias", False)),
        mlp_bias=bool(text.get("mlp_bias", False)),
        softcap=family == "gemma2" and text.get("attn_logit_softcapping", 50.0) is not None,
        experts=experts,
        active_experts=_first(text, "num_experts_per_tok") or 0,
        shared_intermediate=shared if experts else 0,
        dense_layers=_dense_layers(text) if experts else 0,
        dense_intermediate=(intermediate or 4 * hidden) if experts else 0,
        latent=latent,
        tower=tower_of(config, hidden),
    )


def _latent(text: Mapping[str, Any]) -> Latent | None:
    rank = _first(text, "kv_lora_rank")
    if not rank:
        return None
    rope, nope, value = (_number(text, f"{name}_head_dim") for name in ("qk_rope", "qk_nope", "v"))
    return Latent(rank, _first(text, "q_lora_rank") or 0, rope, nope, value)


def _dense_layers(text: Mapping[str, Any]) -> int:
    """Layers of a mixture that have one MLP: the first ones, listed ones, or all but every n-th."""
    layers, step = _number(text, "num_hidden_layers"), _first(text, "decoder_sparse_step") or 1
    listed = text.get("mlp_only_layers")
    chosen = set(listed) if isinstance(listed, list) else set()
    first = min(layers, _first(text, "first_k_dense_replace") or 0)
    return sum(layer < first or layer in chosen or (layer + 1) % step > 0 for layer in range(min(layers, MAX_LAYERS)))


def find_shape(path: str, overrides: Mapping[str, Any] | None = None, key: str = "--shape") -> ShapeSource:
    """The shape of a model, from its local config.json, else from its name."""
    config = config_file(path)
    if config is not None:
        loaded = read_json_object(config)
        changes = {**(overrides or {})}
        changes.update(changes.pop("model_config", None) or {})
        return ShapeSource(shape_of({**loaded, **changes}), f"{config}")
    name = known_name(path)
    if name is None:
        raise UserError(
            "no config.json found, and not the name of a known model",
            key=key,
            value=path,
            hint="--shape qwen2.5-7b, or --shape /folder/with/config.json",
        )
    shape = Shape(**KNOWN[name])
    layers = (overrides or {}).get("num_hidden_layers")
    return ShapeSource(replace(shape, layers=layers or shape.layers), f"the built-in shape of {name}")


def known_name(path: str) -> str | None:
    """The known model that a path or hub name contains, ignoring punctuation; the longest if several match."""
    name = os.path.basename(path.rstrip("/"))
    variants = (_alphanumeric(name), _alphanumeric(re.sub(SIBLINGS, "", name.lower())))
    matches = [known for known in KNOWN if any(_contains(variant, _alphanumeric(known)) for variant in variants)]
    return max(matches, key=len, default=None)


def _contains(name: str, known: str) -> bool:
    """Whether the known name occurs, and not inside a longer number."""
    return re.search(rf"(?<!\d){re.escape(known)}", name) is not None


def _alphanumeric(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def config_file(path: str) -> Path | None:
    """The config.json of a folder, or of the newest snapshot of a hub name in the local cache."""
    local = Path(path).expanduser()
    if local.is_file() and local.suffix == ".json":
        return local
    local = model_folder(local) or local
    if (local / "config.json").is_file():
        return local / "config.json"
    hub = os.environ.get("HF_HUB_CACHE") or os.path.join(
        os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface")), "hub"
    )
    snapshots = Path(hub, f"models--{path.replace('/', '--')}", "snapshots")
    return max(snapshots.glob("*/config.json"), key=lambda file: file.stat().st_mtime, default=None)


def _number(config: Mapping[str, Any], name: str) -> int:
    value = _first(config, name)
    if not value:
        raise UserError(f"the model's config.json has no usable {name!r}", value=value)
    return value


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of these entries that is set. UserError if that is no size."""
    name = next((name for name in names if config.get(name) is not None), None)
    value = None if name is None else config[name]
    if value is not None and (type(value) is not int or not 0 <= value <= MAX_SIZE):
        raise UserError(f"the model's config.json has no usable {name!r}", value=str(value)[:80])
    return value
