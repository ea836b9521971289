"""Meter: bytes of all tensors alive at once, and of those that autograd saves, on models small enough to count."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from burnish.batch import Batch, Ragged
from burnish.doctor.activations import Itemsize, MicroBatch
from burnish.doctor.shapes import Shape, shape_of
from burnish.models import attention
from burnish.models.load import quiet_transformers
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows

CPU = torch.device("cpu")
WEIGHTS = {"fp32": torch.float32, "mixed": torch.float32, "bf16": torch.bfloat16}
COMPUTE = {"fp32": torch.float32, "mixed": torch.bfloat16, "bf16": torch.bfloat16}


class Meter(TorchDispatchMode):
    """Counts the bytes allocated inside the context; `known` tensors are not counted."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = {tensor.untyped_storage()._cdata: 0 for tensor in known}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in tree_iter(output):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return output

    def _count(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata
        if address in self.live:
            return
        self.live[address] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, address)

    def _freed(self, address: int) -> None:
        self.now -= self.live.pop(address, 0)


class Small:
    """A small model of a family, a packed micro-batch, and what the plan knows of them."""

    def __init__(self, family: str, form: str = "fp32", lengths: tuple[int, ...] = (40, 60), **changes: object) -> None:
        sizes = dict(vocab_size=300, hidden_size=32, intermediate_size=80, num_hidden_layers=3, head_dim=8)
        heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
        config = CONFIG_MAPPING[family](**{**sizes, **heads, **changes})
        attention.register()
        with quiet_transformers():
            self.model = AutoModelForCausalLM.from_config(
                config, attn_implementation=attention.PACKED, dtype=WEIGHTS[form]
            )
        self.model.train()
        self.shape: Shape = shape_of(config.to_dict())
        self.itemsize = Itemsize(WEIGHTS[form].itemsize, COMPUTE[form].itemsize)
        self.backend = SingleBackend(self.model, CPU, COMPUTE[form])
        batch = Batch(prompt_ids=_ragged([n // 2 for n in lengths]), responses=_ragged([n - n // 2 for n in lengths]))
        self.rows = PackedRows.of(batch, CPU)
        self.micro_batch = MicroBatch.of(lengths, len(self.rows.targets))

    def known(self) -> list[torch.Tensor]:
        rows = self.rows
        return [*self.model.parameters(), *self.model.buffers(), rows.ids, rows.positions, rows.targets, rows.predicts]

    def saved(self) -> int:
        """Bytes that autograd saves in one forward pass, without weights."""
        weights = {parameter.untyped_storage()._cdata for parameter in self.model.parameters()}
        storages: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:
                storages[storage._cdata] = storage  # held, so that its address is not reused
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            log_probs, _ = self.backend.log_probs(self.rows, 1.0, False)
        assert log_probs.requires_grad
        return sum(storage.nbytes() for storage in storages.values())

    def peak_of_update(self) -> int:
        """Bytes alive at once in forward and backward, beside the gradients of an earlier micro-batch."""
        self.backend.log_probs(self.rows, 1.0, False)[0].sum().backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        with Meter([*self.known(), *gradients]) as meter:
            self.backend.log_probs(self.rows, 1.0, False)[0].sum().backward()
        return meter.peak

    def peak_of_forward(self) -> int:
        """Bytes alive at once in a forward pass without gradients."""
        with torch.no_grad(), Meter(self.known()) as meter:
            self.backend.log_probs(self.rows, 1.0, False)
        return meter.peak


def _ragged(lengths: list[int]) -> Ragged:
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor(lengths)
    return Ragged(torch.randint(0, 16, (int(counts.sum()),), generator=generator), counts)
