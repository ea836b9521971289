"""Router replay: record which experts each token is sent to in one pass, and repeat those choices in another.

Only the choice is repeated. The weights of the chosen experts come from the router of the pass itself, so that
gradients flow into it as without replay (arXiv 2507.18071, 2510.11370).

Choices of a stream are one small tensor [tokens, mixtures, k]; mixtures are counted in the order of the layers, dense
layers left out. `missing` marks a token without a recorded choice: there the router chooses itself.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from burnish.errors import UserError
from burnish.models.parts import backbone
from burnish.models.router_totals import EXPERTS

ARGUMENT = "routed_experts"  # of attention modules: the choices to repeat, [tokens, mixtures, k]
PROBES = 8  # random tokens that show how a router weighs its experts
DTYPES = {"uint8": torch.uint8, "int16": torch.int16}


def choice_dtype(num_experts: int) -> torch.dtype:
    """The smallest dtype that holds a choice; its largest number means `missing`."""
    return torch.uint8 if num_experts < 256 else torch.int16


def missing(dtype: torch.dtype) -> int:
    return torch.iinfo(dtype).max


def num_experts(config: PretrainedConfig) -> int:
    """Experts of each mixture; 0 for a dense model."""
    config = config.get_text_config()
    return next((count for name in EXPERTS if (count := getattr(config, name, None) or 0) > 1), 0)


def check_routing(config: PretrainedConfig, key: str, value: Any, hint: str) -> None:
    """Raise, before any weight is loaded, where there is nothing to record or to repeat."""
    if not num_experts(config):
        raise UserError("the model has no experts", key=key, value=value, hint=hint)


@dataclass(frozen=True)
class Weighing:
    """How a router turns the scores of its chosen experts into their weights."""

    sigmoid: bool
    normalized: bool

    def __call__(self, router: Any, logits: Tensor, chosen: Tensor, dtype: torch.dtype) -> Tensor:
        """[T, k] from the logits of all experts [T, experts]."""
        scores = logits.float().sigmoid() if self.sigmoid else logits.softmax(-1, dtype=torch.float32)
        weights = scores.gather(-1, chosen)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return (weights * getattr(router, "routed_scaling_factor", 1.0)).to(dtype)


WEIGHINGS = tuple(Weighing(sigmoid, normalized) for sigmoid in (False, True) for normalized in (True, False))


@dataclass(frozen=True)
class Mixture:
    """The router of one layer, and the layer's attention, which runs before it."""

    router: nn.Module
    attention: nn.Module


class Routing:
    """The routers of one model: records their choices and makes them repeat others.

    Made before layers are moved to other ranks. `key` is the config key that asks for it, for error messages.
    """

    def __init__(self, model: PreTrainedModel, key: str) -> None:
        self.mixtures = list(_mixtures(model))
        if not self.mixtures:
            raise UserError(f"{type(model).__name__} has no routers whose choices can be recorded", key=key)
        router: Any = self.mixtures[0].router
        self.top_k = int(router.top_k)
        self.num_experts = len(router.weight)
        self.dtype = choice_dtype(self.num_experts)
        self.missing = missing(self.dtype)
        self._found: dict[int, Tensor] | None = None  # of the pass that is recorded
        self._given: dict[int, Tensor] = {}  # the choices that the next call of a router repeats
        weighing = _weighing(router, f"{type(router).__name__} of {type(model).__name__}", key)
        for number, mixture in enumerate(self.mixtures):
            mixture.attention.register_forward_pre_hook(partial(self._take, number), with_kwargs=True)
            mixture.router.register_forward_hook(partial(self._route, number, weighing))

    @property
    def shape(self) -> tuple[int, int]:
        """Of one token's choices."""
        return len(self.mixtures), self.top_k

    def empty(self, num_tokens: int, device: torch.device) -> Tensor:
        """No choices."""
        return torch.full((num_tokens, *self.shape), self.missing, dtype=self.dtype, device=device)

    def record(self) -> None:
        """Keep the choices of every pass until `recorded` takes them."""
        self._found = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the choices of the passes inside."""
        self.record()
        try:
            yield
        finally:
            self._found = None

    @property
    def is_recording(self) -> bool:
        return self._found is not None

    def recorded(self, like: Tensor | None = None) -> Tensor:
        """Choices of the last pass, [T, mixtures, k]. `like` has those of mixtures that this pass did not run."""
        assert self._found is not None
        found, self._found = self._found, {}
        num_tokens = len(next(iter(found.values()))) if like is None else len(like)
        device = next(iter(found.values())).device if like is None else like.device
        whole = self.empty(num_tokens, device) if like is None else like.clone()
        for number, chosen in found.items():
            whole[:, number] = chosen.to(self.dtype)
        return whole

    def _take(self, number: int, module: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> tuple | None:
        """Choices come with the arguments of a layer, so that a recomputed layer gets those of its first pass."""
        if ARGUMENT not in kwargs:
            self._given.pop(number, None)
            return None
        self._given[number] = kwargs[ARGUMENT][:, number]
        return args, {name: value for name, value in kwargs.items() if name != ARGUMENT}

    def _route(self, number: int, weighing: Weighing, module: nn.Module, args: tuple, output: tuple) -> tuple | None:
        logits, weights, chosen = output
        given = self._given.pop(number, None)
        if given is not None:
            known = (given != self.missing).all(-1, keepdim=True)
            chosen = torch.where(known, given.long(), chosen)
            weights = weighing(module, logits, chosen, weights.dtype)
        if self._found is not None:
            self._found[number] = chosen.detach()
        return None if given is None else (logits, weights, chosen)


def _mixtures(model: PreTrainedModel) -> Iterator[Mixture]:
    for layer in backbone(model).get_submodule("layers").children():
        modules = list(layer.modules())
        routers = [module for module in modules if is_router(module)]
        attention = [module for module in modules if hasattr(module, "layer_idx") and hasattr(module, "o_proj")]
        if len(routers) == len(attention) == 1:
            yield Mixture(routers[0], attention[0])


def freeze_routers(model: PreTrainedModel, key: str) -> None:
    """Do not train what chooses experts. `key` is the setting, for the error about a model without experts."""
    routers = [module for module in model.modules() if is_router(module)]
    if not routers:
        problem = f"models of type {model.config.model_type!r} have no routers"
        raise UserError(problem, key=key, value=True, hint="leave it out")
    for router in routers:
        router.requires_grad_(False)


def is_router(module: nn.Module) -> bool:
    """Whether it chooses experts: by a matrix of one row for each."""
    weight = module._parameters.get("weight")
    return isinstance(getattr(module, "top_k", None), int) and weight is not None and weight.ndim == 2


@torch.no_grad()
def _weighing(router: Any, name: str, key: str) -> Weighing:
    """Found by trying: families differ in whether they normalize, and by what function they score."""
    generator = torch.Generator().manual_seed(0)
    named = [*router.named_parameters(), *router.named_buffers()]
    tensors = {path: torch.randn(tensor.shape, generator=generator) for path, tensor in named}
    hidden = torch.randn(PROBES, router.weight.shape[1], generator=generator)
    found = torch.func.functional_call(router, tensors, (hidden,))
    if isinstance(found, tuple) and len(found) == 3:
        logits, weights, chosen = found
        for weighing in WEIGHINGS:
            ours = weighing(router, logits, chosen, weights.dtype)
            if ours.shape == weights.shape and torch.allclose(ours, weights):
                return weighing
    raise UserError(f"{name} weighs its experts in a way that router replay does not know", key=key)


# choices as text, for files of JSON


def as_text(choices: Tensor) -> dict[str, Any]:
    """Choices as a value that JSON can hold."""
    data = base64.b64encode(choices.contiguous().cpu().numpy().tobytes()).decode()
    return {"shape": list(choices.shape), "dtype": str(choices.dtype).removeprefix("torch."), "data": data}


def from_text(value: Mapping[str, Any]) -> Tensor:
    """What `as_text` wrote; ValueError for anything else."""
    try:
        dtype, shape = DTYPES[value["dtype"]], [int(size) for size in value["shape"]]
        data = base64.b64decode(value["data"], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError(f"not recorded choices of experts: {error}") from error
    if len(shape) != 3 or min(shape) < 0 or shape[0] * shape[1] * shape[2] * dtype.itemsize != len(data):
        raise ValueError(f"recorded choices of experts of shape {shape} do not have {len(data)} bytes")
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
