"""Backend: one trainable or frozen model. In one process it is the plain module, in several a sharded one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from burnish.models.exact_kl import HeadInput
from burnish.models.fourbit import is_packed
from burnish.models.logits import TORCH, LogitKernel
from burnish.models.logprobs import token_log_probs
from burnish.models.lora import Adapters
from burnish.models.parts import backbone, head_weight, logit_softcap
from burnish.models.reward_model import last_token_scores
from burnish.models.router import balance_loss
from burnish.models.sequence.method import choose_method
from burnish.models.sequence.parallel import SequenceParallel
from burnish.models.sequence.places import Places
from burnish.training.dtensor import whole
from burnish.training.offload import Offload, activations_on_cpu
from burnish.training.packing import PackedRows
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext
from burnish.training.sharding import FSDPRoot, Sharding, ShardOffload, shard


@dataclass(frozen=True)
class BackendOptions:
    """How a model uses memory and kernels."""

    offload: bool = False  # the weights wait in CPU memory between phases
    activations_on_cpu: bool = False  # and activations between forward and backward
    head: LogitKernel = TORCH  # what computes log-probs from logits
    sharding: Sharding = field(default_factory=Sharding)  # where several ranks hold the model together


PLAIN = BackendOptions()


class Backend:
    """Holds the module; knows how to run it on packed rows and how to stream its weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        device: torch.device,
        compute_dtype: torch.dtype,
        *,
        adapters: Adapters | None = None,
        options: BackendOptions = PLAIN,
        parallel: ParallelContext = SINGLE_PROCESS,
    ) -> None:
        self.model = model if options.offload or not parallel.alone else model.to(device)
        self.device = device
        self.compute_dtype = compute_dtype
        self.adapters = adapters
        self.options = options
        self.parallel = parallel
        self.sequence = _shared(model, parallel)
        self.users = 0  # of the weights, at this moment
        self.fsdp_root: FSDPRoot | None = (
            None if parallel.alone else shard(model, parallel, compute_dtype, options.sharding)
        )
        self.offload: Offload | ShardOffload | None = None
        if options.offload:
            own = Offload(self._movable, device, _is_taught)
            self.offload = own if self.fsdp_root is None else ShardOffload(self.fsdp_root, device)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """The weights are on the device inside; where nothing is offloaded they always are."""
        with contextlib.nullcontext() if self.offload is None else self.offload.fetched():
            self.users += 1
            try:
                yield
            finally:
                self.users -= 1
                if self.fsdp_root is not None and self.users == 0:
                    self.fsdp_root.reshard()  # reading leaves the outermost unit whole, and updates change the shards

    def within(self, work: Callable[[], Any]) -> Any:
        """Do a piece of work with the model, the weights of its ends whole. Tensors in a tuple keep their gradients."""
        return work() if self.fsdp_root is None else self.fsdp_root(work)

    def without_adapters(self) -> AbstractContextManager:
        """The model as it was before it had adapters."""
        return contextlib.nullcontext() if self.adapters is None else self.adapters.off()

    def _movable(self) -> Iterator[Tensor]:
        """Everything that offloading moves: buffers too, 4-bit weights not (their scales would stay behind)."""
        yield from (parameter for parameter in self.model.parameters() if not is_packed(parameter))
        yield from self.model.buffers()

    def _saving(self) -> AbstractContextManager:
        """Where the forward pass leaves what the backward pass needs."""
        if not (self.options.activations_on_cpu and torch.is_grad_enabled()):
            return contextlib.nullcontext()
        return activations_on_cpu(self.model, self.device)

    def autocast(self) -> AbstractContextManager:
        """Products in the compute format where the weights are kept in another; shards are gathered in it."""
        if self.fsdp_root is not None or self.compute_dtype == next(self.model.parameters()).dtype:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    def log_probs(
        self, rows: PackedRows, temperature: float, with_entropy: bool, head: HeadInput | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Log-prob (and entropy) of each response token, [R]; `head` where the backbone has run already."""
        head = self.head_input(rows) if head is None else head
        log_probs, entropy = token_log_probs(
            head.hidden,
            head.weight,
            head.places.own(rows.targets),
            temperature,
            with_entropy,
            head.softcap,
            kernel=self.options.head,
        )
        return head.places.whole(log_probs), None if entropy is None else head.places.whole(entropy)

    def head_input(self, rows: PackedRows, with_balance: bool = False) -> HeadInput:
        """The hidden state that predicts each response token [R, hidden], and the head's weights.

        Of rows that ranks share, it is those of this rank's part.
        """
        routers = {"output_router_logits": True} if with_balance else {}
        places = self._places(rows, rows.predicts)

        def run() -> tuple[Tensor, Tensor, Tensor | None]:
            with self.autocast(), self._saving():
                output = backbone(self.model)(**self._inputs(rows), **routers)
            hidden = output.last_hidden_state[0, places.local].to(self.compute_dtype)
            balance = balance_loss(self.model, self._routed(rows, output.router_logits)) if with_balance else None
            return hidden, head_weight(self.model), balance

        hidden, weight, balance = self.within(run)
        return HeadInput(hidden, weight, logit_softcap(self.model), balance, places)

    def values(self, rows: PackedRows) -> Tensor:
        """The value head's prediction before each response token, [R]."""
        places = self._places(rows, rows.predicts)
        with self.autocast(), self._saving():
            output = self.within(lambda: self.model(**self._inputs(rows)).logits[0, places.local, 0])
        return places.whole(output.float())

    def scores(self, rows: PackedRows) -> Tensor:
        """The score head's number at the last token of each row, [rows]."""
        places = self._places(rows, rows.ends)
        with self.autocast():
            found = self.within(lambda: last_token_scores(self.model, self._inputs(rows), places.local))
        return places.whole(found)

    def _inputs(self, rows: PackedRows) -> dict[str, Any]:
        """The model's arguments: the whole stream, or this rank's slice of it."""
        return rows.inputs() if self.sequence is None else self.sequence.inputs(rows.inputs())

    def _places(self, rows: PackedRows, wanted: Tensor) -> Places:
        return Places(wanted) if self.sequence is None else self.sequence.places(wanted, len(rows.ids))

    def _routed(self, rows: PackedRows, router_logits: Sequence[Tensor]) -> Sequence[Tensor]:
        """Of the whole stream, in each layer [T, experts]: what its routers' loss is about."""
        if self.sequence is None:
            return router_logits
        places = self._places(rows, torch.arange(len(rows.ids), device=self.device))
        return [places.whole(logits[places.local]) for logits in router_logits]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every parameter, tied ones under all their names; adapters merged into what they adapt.

        Of shards every rank yields the whole: all ranks must take the stream together.
        """
        own = self.model.named_parameters(remove_duplicate=False)
        for name, tensor in own if self.adapters is None else self.adapters.merged(self.device):
            yield name, whole(tensor.detach())


def _shared(model: PreTrainedModel, parallel: ParallelContext) -> SequenceParallel | None:
    """How ranks that see the same rows share them."""
    if parallel.sequence is None:
        return None
    tensor_size = 1 if parallel.tensor is None else parallel.tensor.size()
    chosen = choose_method(model.config, parallel.sequence.size(), "ulysses_sequence_parallel_size", tensor_size)
    return SequenceParallel(parallel.sequence, chosen.method)


def _is_taught(tensor: Tensor) -> bool:
    return tensor.requires_grad


def has_dropout(module: nn.Module) -> bool:
    """Would two passes in training mode differ?"""
    dropping = any(isinstance(m, nn.Dropout) and m.p > 0 for m in module.modules())
    return dropping or any(getattr(m, "attention_dropout", 0.0) > 0 for m in module.modules())
