"""ModuleBackend: the base of backends whose ranks all run the whole model, one micro-batch at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from burnish.models.exact_kl import HeadInput, exact_kl
from burnish.models.experts import autocast_mixtures
from burnish.models.logprobs import token_log_probs
from burnish.models.lora import Adapters
from burnish.models.parts import backbone, head_weight, logit_softcap, saved_buffers, token_values
from burnish.models.reward_model import last_token_scores
from burnish.models.router import scoped_balance_loss
from burnish.models.router_totals import BALANCE_SCOPES
from burnish.models.routing import Routing
from burnish.models.sequence.method import choose_method
from burnish.models.sequence.parallel import SequenceParallel
from burnish.models.sequence.places import Places
from burnish.models.vision.family import vision_family
from burnish.models.vision.features import MediaSlice
from burnish.training.backend import DEFAULT_OPTIONS, Backend, BackendOptions, HeadFn, LossFn, MicroBatch, Output
from burnish.training.dtensor import full_tensor
from burnish.training.offload import Offloaded, activations_on_cpu
from burnish.training.optim import Optimizer, OptimizerOptions
from burnish.training.packing import PackedRows
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from burnish.config.optim import OptimConfig


class ModuleBackend:
    """Runs micro-batches in order. Subclasses say how weights are held (`_prepare`) and gathered (`run_unsharded`)."""

    shards_tower = False  # whether ranks must run the vision tower together

    def __init__(
        self,
        model: PreTrainedModel,
        device: torch.device,
        compute_dtype: torch.dtype,
        *,
        adapters: Adapters | None = None,
        options: BackendOptions = DEFAULT_OPTIONS,
        parallel: ParallelContext = SINGLE_PROCESS,
    ) -> None:
        self.model = model
        self.device = device
        self.compute_dtype = compute_dtype
        self.weight_dtype = next(model.parameters()).dtype  # between passes: FSDP gathers weights in the compute dtype
        self.adapters = adapters
        self.options = options
        self.parallel = parallel
        self.family = vision_family(model.config)
        self.sequence = _sequence_parallel(model, parallel)
        self.optimizer: Optimizer | None = None
        experts = options.experts
        self.balance_scope = BALANCE_SCOPES[experts.balance_scope]
        self.routing = None if experts.replay_key is None else Routing(model, experts.replay_key)
        if self.weight_dtype != self.compute_dtype:
            autocast_mixtures(model)
        self.offload = self._prepare()

    def _prepare(self) -> Offloaded | None:
        """Place or shard the weights; what moves them between CPU memory and device, where they are offloaded."""
        raise NotImplementedError

    # running the model

    def forward(self, batches: Sequence[MicroBatch], head: HeadFn[Output], *, adapters: bool = True) -> list[Output]:
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), self.on_device(), self._adapters_disabled(not adapters):
                return [head(ModuleOutput(self, micro_batch)) for micro_batch in batches]
        finally:
            self.model.train(was_training)

    def forward_backward(self, batches: Sequence[MicroBatch], loss: LossFn[Output]) -> list[Output]:
        assert self.optimizer is not None
        self.model.train()
        outputs = []
        for micro_batch in batches:
            value, output = loss(ModuleOutput(self, micro_batch))
            self.optimizer.backward(value * self._loss_weight(micro_batch))
            outputs.append(output)
        return outputs

    def _loss_weight(self, micro_batch: MicroBatch) -> float:
        """FSDP averages gradients over ranks; losses are parts of a sum."""
        return self.parallel.grad_average_size / micro_batch.num_replicas if micro_batch.rows else 0.0

    def step(self, clip: float) -> Tensor:
        assert self.optimizer is not None
        return self.optimizer.update(clip)

    def create_optimizer(
        self, config: OptimConfig, total_steps: int, updates_per_step: int, options: OptimizerOptions | None = None
    ) -> Optimizer:
        options = options or OptimizerOptions()
        self.optimizer = Optimizer(self.model, config, total_steps, updates_per_step, options)
        return self.optimizer

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        with contextlib.nullcontext() if self.offload is None else self.offload.on_device():
            yield

    def run_unsharded(self, work: Callable[[], Any]) -> Any:
        """Call `work` with the weights of embedding and head gathered; tensors it returns keep their gradients."""
        return work()

    def autocast(self) -> AbstractContextManager:
        """Matrix products in the compute dtype where the weights are kept in another."""
        if self.compute_dtype == self.weight_dtype:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    def _adapters_disabled(self, disabled: bool) -> AbstractContextManager:
        return self.adapters.off() if disabled and self.adapters is not None else contextlib.nullcontext()

    def _saved_activations(self) -> AbstractContextManager:
        """Where the forward pass keeps what the backward pass needs."""
        if not (self.options.activations_on_cpu and torch.is_grad_enabled()):
            return contextlib.nullcontext()
        return activations_on_cpu(self.model, self.device)

    # one packed micro-batch through the model and its head

    def head_input(self, rows: PackedRows, with_balance: bool = False) -> HeadInput:
        """The hidden state that predicts each response token [R, hidden], and the head's weights.

        Under context parallelism, those of this rank's part of the stream.
        """
        routers = {"output_router_logits": True} if with_balance else {}
        places = self._places(rows, rows.predicts)

        def run() -> tuple[Tensor, Tensor, Tensor | None]:
            with self.autocast(), self._saved_activations():
                output = backbone(self.model)(**self._inputs(rows), **routers)
            hidden = output.last_hidden_state[0, places.local].to(self.compute_dtype)
            balance = self._balance(rows, output.router_logits) if with_balance else None
            return hidden, head_weight(self.model), balance

        hidden, weight, balance = self.run_unsharded(run)
        return HeadInput(hidden, weight, logit_softcap(self.model), balance, places)

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

    def values(self, rows: PackedRows) -> Tensor:
        """The value head's prediction before each response token, [R]."""
        places = self._places(rows, rows.predicts)
        with self.autocast(), self._saved_activations():
            values = self.run_unsharded(lambda: token_values(self.model, self._inputs(rows))[0, places.local])
        return places.whole(values.float())

    def scores(self, rows: PackedRows) -> Tensor:
        """The score head's prediction at the last token of each row, [rows]."""
        places = self._places(rows, rows.ends)
        local = places.local
        assert local is not None
        with self.autocast():
            scores = self.run_unsharded(lambda: last_token_scores(self.model, self._inputs(rows), local))
        return places.whole(scores)

    def _inputs(self, rows: PackedRows) -> dict[str, Any]:
        """The model's arguments: the whole stream, or this rank's slice of it. Called where embeddings are gathered."""
        inputs = self._plain_inputs(rows)
        if self.family is None or not rows.may_have_media:
            return inputs
        media: Sequence[MediaSlice] = rows.media
        if self.sequence is not None:
            spans = self.sequence.spans(len(rows.ids))
            media = [part for span in spans for item in media if (part := item.within(*span)) is not None]
        ids = inputs.pop("input_ids")[0]
        embedded = self.family.embed(self.model, ids, media, always=self.shards_tower)
        return {**inputs, "inputs_embeds": embedded.embeds[None], **embedded.arguments}

    def _plain_inputs(self, rows: PackedRows) -> dict[str, Any]:
        """The arguments of a text model."""
        return rows.inputs() if self.sequence is None else self.sequence.inputs(rows.inputs())

    def _places(self, rows: PackedRows, positions: Tensor) -> Places:
        """Which of these positions of the stream this rank computes."""
        return Places(positions) if self.sequence is None else self.sequence.places(positions, len(rows.ids))

    def _balance(self, rows: PackedRows, router_logits: Sequence[Tensor]) -> Tensor:
        return scoped_balance_loss(
            self.model, self._routed(rows, router_logits), self.balance_scope, rows.segments.lengths
        )

    def _routed(self, rows: PackedRows, router_logits: Sequence[Tensor]) -> Sequence[Tensor]:
        """Router logits of the whole stream, per layer [T, experts]: their loss is about all tokens."""
        if self.sequence is None:
            return router_logits
        places = self._places(rows, torch.arange(len(rows.ids), device=self.device))
        return [places.whole(logits[places.local]) for logits in router_logits]

    def routed_experts(self, rows: PackedRows) -> Tensor:
        """The choices of the last pass, which was recorded: [T, mixtures, k], row after row."""
        assert rows.places is not None
        places, chosen = self._places(rows, rows.places), self._recorded()
        # Not every transport adds numbers of 8 or 16 bits.
        return places.whole(chosen[places.local].int()).to(chosen.dtype)

    def _recorded(self) -> Tensor:
        assert self.routing is not None
        return self.routing.recorded()

    def check(self, check: Callable[..., None]) -> None:
        """Run a check of the model; keyword arguments are the inputs that it has to use."""
        self.run_unsharded(lambda: check(self.model))

    # weights and state

    def all_stages(self, items: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        """This rank's (name, tensor) items and those of a pipeline's other stages; all ranks iterate together."""
        return items

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Tied weights come under all their names, adapters merged into the weights they adapt; buffers that are in a
        model's files too."""
        parameters = self.model.named_parameters(remove_duplicate=False)
        parameters = parameters if self.adapters is None else self.adapters.merged(self.device, full_tensor)
        for name, tensor in itertools.chain(parameters, saved_buffers(self.model)):
            yield name, full_tensor(tensor.detach())

    def state_dict(self, contents: Collection[str]) -> dict[str, Any]:
        """Adapters are no part of it: they have files of their own."""
        state: dict[str, Any] = {}
        if "model" in contents:
            if self.adapters is None:
                state["model"] = get_model_state_dict(self.model)
            if self.optimizer is not None and self.optimizer.average is not None:
                state["average"] = self.optimizer.average.weights
        if "optimizer" in contents:
            assert self.optimizer is not None
            state["optimizer"] = get_optimizer_state_dict(self.model, self.optimizer.inner)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`average` needs no loading: its tensors are those of the live optimizer."""
        if "model" in state:
            set_model_state_dict(self.model, state["model"])
        if "optimizer" in state:
            assert self.optimizer is not None
            set_optimizer_state_dict(self.model, self.optimizer.inner, state["optimizer"])
            self.optimizer.restore_placement()


if TYPE_CHECKING:
    _backend: type[Backend] = ModuleBackend  # checked by pyright


class ModuleOutput:
    """Output of one micro-batch. The model runs when a method asks for it."""

    def __init__(self, backend: ModuleBackend, micro_batch: MicroBatch) -> None:
        self.backend = backend
        self.micro_batch = micro_batch
        self.packed = PackedRows.of(
            micro_batch.batch,
            backend.device,
            backend.family,
            replay=backend.routing is not None,
            share_prompts=backend.options.share_prompts,
        )

    def head_input(self, with_balance: bool = False) -> HeadInput:
        return self.backend.head_input(self.packed, with_balance)

    def log_probs(
        self, temperature: float, with_entropy: bool, head: HeadInput | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return self.backend.log_probs(self.packed, temperature, with_entropy, head)

    def exact_kl(self, reference: HeadInput, temperature: float, head: HeadInput | None = None) -> Tensor:
        head = self.head_input() if head is None else head
        return exact_kl(head, reference, temperature, kernel=self.backend.options.head)

    def values(self) -> Tensor:
        return self.backend.values(self.packed)

    def scores(self) -> Tensor:
        return self.backend.scores(self.packed)

    def routed_experts(self) -> Tensor:
        return self.backend.routed_experts(self.packed)


def _sequence_parallel(model: PreTrainedModel, parallel: ParallelContext) -> SequenceParallel | None:
    """How ranks that see the same rows split them (context parallelism)."""
    if parallel.sequence is None:
        return None
    chosen = choose_method(
        model.config, parallel.sequence.size(), "ulysses_sequence_parallel_size", parallel.tensor_size
    )
    return SequenceParallel.of(parallel.sequence, chosen.method)
