"""Pipeline stages: which layers of a Hugging Face model a rank holds, and the model cut down to them.

The cut model keeps its class and all names. What other ranks hold is replaced by modules without weights: `Absent` for
embedding, vision tower and head, `Passed` for layers and the final norm, which return their input. So a stage is run by
the model's own forward: on hidden states of the stage before (`inputs_embeds`) instead of tokens and pictures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from burnish.errors import UserError
from burnish.models.parts import backbone
from burnish.models.vision.family import vision_family, vision_modules

NORM = "norm"
EMBEDDING = "embed_tokens"
PROBE_TOKENS = 4


@dataclass(frozen=True)
class StageOptions:
    """The pipeline keys of a role. `key` is its Megatron section, for error messages."""

    size: int = 1  # ranks of a pipeline
    virtual: int = 1  # chunks of layers per rank
    schedule: str = "1f1b"
    num_first: int | None = None  # layers on the first rank; None: as many as on others
    num_last: int | None = None
    num_each: tuple[int, ...] | None = None  # layers on each rank, instead of the two above
    counts_embedding: bool = False  # as a layer of the first stage, which then has one layer less
    counts_head: bool = False  # of the last stage
    key: str = field(default="actor_rollout_ref.actor.megatron", compare=False)


ONE_STAGE = StageOptions()


def layer_ranges(num_layers: int, options: StageOptions) -> list[range]:
    """The layers of each stage. Stage s is chunk s // size of rank s % size."""
    per_rank = _counts_per_rank(num_layers + options.counts_embedding + options.counts_head, options)
    counts = [count // options.virtual for count in per_rank] * options.virtual
    counts[0] -= options.counts_embedding
    counts[-1] -= options.counts_head
    _check_counted(counts, num_layers, options)
    ranges, start = [], 0
    for count in counts:
        ranges.append(range(start, start + count))
        start += count
    return ranges


def _check_counted(counts: Sequence[int], num_layers: int, options: StageOptions) -> None:
    if min(counts) < 1:
        problem = f"leaves a pipeline stage without any of the model's {num_layers} layers"
        name = "embedding" if counts[0] < 1 else "loss"
        key = f"{options.key}.override_transformer_config.account_for_{name}_in_pipeline_split"
        raise UserError(problem, key=key, value=True, hint=f"{key}=false")


def check_stages(config: PretrainedConfig, options: StageOptions) -> None:
    """Raise, before any weight is loaded, where the layers cannot be split into these stages."""
    if options.size > 1:
        ranges = layer_ranges(config.get_text_config().num_hidden_layers, options)
        _check_features(config, len(ranges[0]), options)


def _check_features(config: PretrainedConfig, num_first: int, options: StageOptions) -> None:
    """The first stage, which has the pictures, must have the layers behind which features of pictures are added."""
    family = vision_family(config)
    if family is None or not family.changes_layers:
        return
    needed = len(config.vision_config.deepstack_visual_indexes)
    if num_first < needed:
        key = f"{options.key}.override_transformer_config.num_layers_in_first_pipeline_stage"
        problem = f"models of type {family.name!r} add features of pictures behind the first {needed} layers, which one"
        hint = f"+{key}={needed * options.virtual}"
        raise UserError(f"{problem} pipeline stage must hold", key=key, value=num_first, hint=hint)


def _counts_per_rank(num_layers: int, options: StageOptions) -> list[int]:
    size, virtual, key = options.size, options.virtual, options.key
    size_key = f"{key}.pipeline_model_parallel_size"
    virtual_key = f"{key}.virtual_pipeline_model_parallel_size"
    if size * virtual > num_layers:
        problem = f"the model has {num_layers} layers, fewer than {size} x {virtual} pipeline stages"
        where, value = (size_key, size) if size > num_layers else (virtual_key, virtual)
        raise UserError(problem, key=where, value=value, allowed=f"at most {num_layers} stages")
    counts = _given_counts(num_layers, options)
    for count in counts:
        if count % virtual:
            problem = f"a pipeline rank with {count} of the model's {num_layers} layers cannot split them into chunks"
            raise UserError(problem, key=virtual_key, value=virtual, allowed=_divisors(count))
    return counts


def _given_counts(num_layers: int, options: StageOptions) -> list[int]:
    size, fields = options.size, f"{options.key}.override_transformer_config"
    if options.num_each is not None:
        counts = list(options.num_each)
        if len(counts) != size or sum(counts) != num_layers or min(counts) < 1:
            problem = f"not {size} numbers of at least 1 whose sum is the model's {num_layers} layers"
            raise UserError(problem, key=f"{fields}.num_layer_list", value=counts)
        return counts
    ends = (options.num_first, options.num_last)
    num_inner = size - sum(count is not None for count in ends)
    rest = num_layers - sum(count or 0 for count in ends)
    if any(count is not None and count < 1 for count in ends) or (num_inner and rest < num_inner):
        problem = f"leaves pipeline stages without any of the model's {num_layers} layers"
        name = "num_layers_in_last_pipeline_stage" if ends[0] is None else "num_layers_in_first_pipeline_stage"
        raise UserError(problem, key=f"{fields}.{name}", value=ends[1] if ends[0] is None else ends[0])
    if (num_inner and rest % num_inner) or (not num_inner and rest):
        raise _do_not_divide(num_layers, options, f" ({rest} of them over {num_inner})" if num_inner != size else "")
    middle = [rest // num_inner] * num_inner if num_inner else []
    first, last = ends
    return [*([] if first is None else [first]), *middle, *([] if last is None else [last])]


def _do_not_divide(num_layers: int, options: StageOptions, more: str) -> UserError:
    size, counted = options.size, options.counts_embedding + options.counts_head
    key = f"{options.key}.pipeline_model_parallel_size"
    first = num_layers - (size - 1) * (num_layers // size)
    hint = f"+{options.key}.override_transformer_config.num_layers_in_first_pipeline_stage={first}"
    layers = f"{num_layers} layers"
    if counted:  # which excludes numbers of layers
        layers = f"{num_layers - counted} layers and {counted} parts that count as layers"
        hint = f"{key}={max(number for number in _divisors(num_layers) if number <= size)}"
    problem = f"the model's {layers} do not divide over {size} pipeline stages{more}"
    return UserError(problem, key=key, value=size, allowed=_divisors(num_layers), hint=hint)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


class Absent(nn.Module):
    """A module that another rank holds; never called."""


class Passed(nn.Module):
    """A layer or norm that another rank runs: its input is its output."""

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden


class ChunkedLayers(nn.ModuleList):
    """A model's layers, of which its forward sees those of one chunk, and `Passed` in place of others.

    All layers stay in the tree of modules, where FSDP and transformers' hooks find them.
    """

    visible: Sequence[nn.Module] | None = None  # None: all

    def __iter__(self) -> Iterator[nn.Module]:
        return super().__iter__() if self.visible is None else iter(self.visible)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) if self.visible is None else self.visible[index]


class Stages:
    """This rank's chunks of a model; making it cuts the model."""

    def __init__(self, model: PreTrainedModel, rank: int, options: StageOptions) -> None:
        self.model, self.backbone = model, backbone(model)
        self.rank, self.options = rank, options
        check_stages(model.config, options)
        _check_parts(model, options.key)
        self.layers = ChunkedLayers(self.backbone.get_submodule("layers").children())
        self.backbone._modules["layers"] = self.layers
        self.ranges = layer_ranges(len(self.layers), options)
        self._check_chain()
        self.is_first, self.is_last = rank == 0, rank == options.size - 1
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        self.tied: tuple[str, ...] | None = None  # the names of a weight that is embedding and head in one
        if head is not None and head.weight is embedding.weight:
            self.tied = _weight_names(model, embedding, head)
        # Trained weights of the whole model and their dimensions, tied weights once.
        self.trained = {name: weight.ndim for name, weight in model.named_parameters() if weight.requires_grad}
        self._cut()
        self._views = [self._view(number) for number in range(options.virtual)]

    def stage(self, chunk: int) -> int:
        return chunk * self.options.size + self.rank

    def is_first_stage(self, chunk: int) -> bool:
        return self.stage(chunk) == 0

    def is_last_stage(self, chunk: int) -> bool:
        return self.stage(chunk) == self.options.size * self.options.virtual - 1

    def _cut(self) -> None:
        """Free what other ranks hold."""
        mine = {number for chunk in range(self.options.virtual) for number in self.ranges[self.stage(chunk)]}
        for number in set(range(len(self.layers))) - mine:
            self.layers[number] = Passed()
        if not self.is_first:
            self.model.set_input_embeddings(Absent())
            for path in vision_modules(self.model):
                self.model.set_submodule(path, Absent())
        if not self.is_last:
            self.backbone.set_submodule(NORM, Passed())
            for path in _head_names(self.model):
                self.model.set_submodule(path, Absent())

    def _view(self, chunk: int) -> list[nn.Module]:
        mine = self.ranges[self.stage(chunk)]
        return [layer if number in mine else Passed() for number, layer in enumerate(self.layers)]

    @contextlib.contextmanager
    def running(self, chunk: int) -> Iterator[None]:
        """The model's forward runs this chunk only."""
        with self._showing(self._views[chunk], keep_norm=self.is_last_stage(chunk)):
            yield

    @contextlib.contextmanager
    def _showing(self, layers: Sequence[nn.Module], keep_norm: bool) -> Iterator[None]:
        norm = self.backbone.get_submodule(NORM)
        self.layers.visible = layers
        if not keep_norm:
            self.backbone._modules[NORM] = Passed()
        try:
            yield
        finally:
            self.layers.visible = None
            self.backbone._modules[NORM] = norm

    @torch.no_grad()
    def _check_chain(self) -> None:
        """Refuse a model that does more with hidden states than pass them from layer to layer (Granite scales them)."""
        weight = next(self.model.parameters())
        shape = (1, PROBE_TOKENS, self.model.config.get_text_config().hidden_size)
        given = torch.linspace(-1, 1, shape[1] * shape[2], device=weight.device, dtype=weight.dtype).view(shape)
        positions = torch.arange(PROBE_TOKENS, device=weight.device)[None]
        with self._showing([Passed() for _ in self.layers], keep_norm=False):
            found = self.backbone(inputs_embeds=given, position_ids=positions, attention_mask=None, use_cache=False)
        if not torch.equal(found.last_hidden_state, given):
            raise _refusal(self.model, self.options.key, "changes hidden states outside of its layers")


def _weight_names(model: PreTrainedModel, *modules: nn.Module) -> tuple[str, ...]:
    by_module = {id(module): name for name, module in model.named_modules()}
    return tuple(f"{by_module[id(module)]}.weight" for module in modules)


def _head_names(model: PreTrainedModel) -> list[str]:
    """Everything beside the backbone: a head for tokens, values or scores."""
    return [name for name, _ in model.named_children() if name != model.base_model_prefix]


def _check_parts(model: PreTrainedModel, key: str) -> None:
    """Refuse a model without the usual parts under their usual names."""
    parts = backbone(model)
    wanted = {"layers": nn.ModuleList, NORM: nn.Module, EMBEDDING: nn.Embedding}
    missing = [name for name, kind in wanted.items() if not isinstance(getattr(parts, name, None), kind)]
    if missing:
        raise _refusal(model, key, f"has no {', '.join(missing)}")


def _refusal(model: PreTrainedModel, key: str, why: str) -> UserError:
    name = f"{key}.pipeline_model_parallel_size"
    return UserError(f"{type(model).__name__} cannot be cut into pipeline stages: it {why}", key=name, hint=f"{name}=1")
