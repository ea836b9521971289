"""The weight stream for external engines: complete, with checkpoint names, tied weights under all of their names.

Tied weights matter: vLLM keeps its own copy of a tied head and would silently keep the old one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.parts import saved_buffers

Named = tuple[str, Tensor]
LAYER = re.compile(r"\.\d+\.")
FILE_BYTES = 1 << 30


class Weights:
    """Names and shapes of all weights of a model, without their memory."""

    def __init__(self, source: ModelSource) -> None:
        with torch.device("meta"):
            self.model: PreTrainedModel = load_causal_lm(source, None, torch.float32, empty=True)
        self.vocabulary = self.model.config.get_text_config().vocab_size
        self.names: dict[int, list[str]] = {}  # of each weight; several where it is tied
        self.weight_of: dict[str, int] = {}
        self.shapes: dict[int, torch.Size] = {}
        for name, parameter in (*self.model.named_parameters(remove_duplicate=False), *saved_buffers(self.model)):
            self.names.setdefault(id(parameter), []).append(name)
            self.weight_of[name] = id(parameter)
            self.shapes[id(parameter)] = parameter.shape

    @property
    def has_experts(self) -> bool:
        return any(".experts." in name for name in self.weight_of)

    def stream(self, source: Iterable[Named]) -> CheckedStream:
        return CheckedStream(self, source)


class CheckedStream:
    """A weight stream under checkpoint names. After iteration, `missing` has the weights it left out."""

    def __init__(self, weights: Weights, source: Iterable[Named]) -> None:
        self.weights = weights
        self.source = source
        self.missing: list[str] = []

    def __iter__(self) -> Iterator[Named]:
        """Layer by layer: one checkpoint tensor may consist of several weights of a layer."""
        for _, layer in itertools.groupby(self._whole(), key=lambda item: layer_of(item[0])):
            yield from revert_weight_conversion(self.weights.model, dict(layer)).items()

    def check(self) -> None:
        if self.missing:
            raise ValueError(f"the weight stream left out {len(self.missing)} tensors: {self.missing[:5]}")

    def _whole(self) -> Iterator[Named]:
        """The source, then tied weights under the names that the source did not have."""
        weights, seen, tied = self.weights, set(), {}
        for name, tensor in self.source:
            weight = weights.weight_of.get(name)
            if weight is None:
                continue
            if tensor.shape != weights.shapes[weight]:
                raise ValueError(
                    f"{name}: the stream has shape {list(tensor.shape)}, the model {list(weights.shapes[weight])}"
                )
            seen.add(name)
            if len(weights.names[weight]) > 1:
                tied[weight] = tensor
            yield name, tensor.detach()
        for weight, names in weights.names.items():
            absent = [name for name in names if name not in seen]
            if len(absent) == len(names):
                self.missing.append(names[0])
            elif weight in tied:
                yield from ((name, tied[weight].detach()) for name in absent)


def layer_of(name: str) -> str:
    """The name up to its layer number; the whole name outside the layers."""
    match = LAYER.search(name)
    return name if match is None else name[: match.end()]


def write_files(stream: Iterable[Named], folder: Path) -> None:
    """Write the stream as safetensors files, for workers in other processes."""
    piece: dict[str, Tensor] = {}
    size, number = 0, 0
    for name, tensor in stream:
        if piece and size + tensor.nbytes > FILE_BYTES:
            save_file(piece, folder / f"model-{number:05d}.safetensors")
            piece, size, number = {}, 0, number + 1
        piece[name] = tensor.to("cpu", copy=True).contiguous()  # a copy: safetensors does not allow shared memory
        size += tensor.nbytes
    if piece:
        save_file(piece, folder / f"model-{number:05d}.safetensors")
