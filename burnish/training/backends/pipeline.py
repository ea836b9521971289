"""PipelineBackend: the layers are cut into stages on different ranks, which micro-batches pass one after the other.

Inside a stage FSDP2 shards the weights over the ranks that hold the same layers, with tensor, context and expert
parallelism as without stages. Each rank plays its part of a schedule (`pipeline_schedule`) with its neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from burnish.models.parts import backbone
from burnish.models.router_totals import num_routed_experts, top_k
from burnish.training.backend import HeadFn, LossFn, MicroBatch, Output
from burnish.training.backends.fsdp import FsdpBackend
from burnish.training.backends.module import ModuleOutput
from burnish.training.dtensor import local_part
from burnish.training.offload import Offloaded
from burnish.training.optim import Optimizer, OptimizerOptions
from burnish.training.packing import PackedRows
from burnish.training.parallel import ParallelContext
from burnish.training.pipeline_schedule import FORWARD, Action, Shape, forward_plan, training_plan
from burnish.training.stages import Stages

if TYPE_CHECKING:
    from burnish.config.optim import OptimConfig


# What goes from stage to stage: hidden states [1, T, hidden] in the dtype of the residual stream and, of a mixture of
# experts, what its routers did so far: totals for the balancing loss in training (BalanceScope), or the choices that a
# pass records (Routing).
Message = tuple[Tensor, ...]


@dataclass
class Pass:
    """One micro-batch in one chunk, from its forward to its backward pass."""

    chunk: int
    received: Message = ()  # empty on the first stage
    result: Message = ()  # what to differentiate: a message, or the loss


class Links:
    """Messages between neighboring stages. Sending does not wait."""

    def __init__(self, parallel: ParallelContext) -> None:
        assert parallel.pipeline is not None
        self.parallel = parallel
        self.ranks = dist.get_process_group_ranks(parallel.pipeline)
        self.num_sent = self.bytes_sent = 0  # over the backend's life
        self._pending: list[tuple[Any, Tensor]] = []  # until it is sent, a tensor must stay alive

    def send(self, tensors: Sequence[Tensor], source: int, target: int) -> None:
        """From this rank's stage `source` to stage `target`, its neighbor."""
        group, tag = self._link(source, target)
        for part, tensor in enumerate(tensors):
            data = tensor.detach().contiguous()
            work = dist.isend(data, self._rank(target), group=group, tag=tag + part)
            self._pending.append((work, data))
            self.bytes_sent += data.nbytes
        self.num_sent += 1

    def receive(self, like: Sequence[Tensor], source: int, target: int) -> list[Tensor]:
        """What stage `source` sends to this rank's stage `target`, into empty tensors of these shapes."""
        group, tag = self._link(source, target)
        for part, tensor in enumerate(like):
            work = dist.irecv(tensor, self._rank(source), group=group, tag=tag + part)
            assert work is not None
            work.wait()
        return list(like)

    def flush(self) -> None:
        """Wait for all messages to be sent."""
        for work, _ in self._pending:
            work.wait()
        self._pending.clear()

    def swap(self, tensor: Tensor, other: int) -> Tensor:
        """Exchange tensors of equal shape with the same rank of another stage."""
        found, group = torch.empty_like(tensor), self.parallel.pipeline
        pair = [dist.P2POp(dist.isend, tensor, other, group), dist.P2POp(dist.irecv, found, other, group)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        return found

    def _rank(self, stage: int) -> int:
        return self.ranks[stage % len(self.ranks)]

    def _link(self, source: int, target: int) -> tuple[dist.ProcessGroup | None, int]:
        """The group and the first tag of messages between two stages in this direction."""
        number = 2 * min(source, target) + (source > target)
        links = self.parallel.links
        return links[number] if links else self.parallel.pipeline, 2 * number


class PipelineBackend(FsdpBackend):
    """Every rank runs its stages' layers; outputs exist on the ranks of the last stage."""

    stages: Stages
    links: Links
    _current: Pass | None = None  # the pass whose chunk the model runs

    def _prepare(self) -> Offloaded | None:
        options = self.parallel.stages
        self.stages = Stages(self.model, self.parallel.pipeline_rank, options)
        self.links = Links(self.parallel)
        if self.adapters is not None:
            self.adapters.keep_own()
        self.hidden_size: int = self.model.config.get_text_config().hidden_size
        self.num_experts = num_routed_experts(self.model)  # 0 without routers that are balanced by a loss
        offload = super()._prepare()
        # The head's weight is used outside of FSDP's modules, and by several micro-batches between its backward passes.
        cast(Any, self.fsdp_root).set_reshard_after_backward(False, recurse=False)
        return offload

    # playing a schedule

    def forward(self, batches: Sequence[MicroBatch], head: HeadFn[Output], *, adapters: bool = True) -> list[Output]:
        was_training = self.model.training
        self.model.eval()
        outputs: list[Output] = []

        def finish(output: ModuleOutput) -> Message:
            outputs.append(head(output))
            return ()

        passes: dict[tuple[int, int], Pass] = {}
        try:
            with torch.no_grad(), self.on_device(), self._adapters_disabled(not adapters):
                for action in forward_plan(self._shape(batches))[self.parallel.pipeline_rank]:
                    self._run_forward(action, batches[action.micro_batch], passes, finish)
                    del passes[action.chunk, action.micro_batch]
                self.links.flush()
        finally:
            self.model.train(was_training)
        return outputs

    def forward_backward(self, batches: Sequence[MicroBatch], loss: LossFn[Output]) -> list[Output]:
        assert self.optimizer is not None
        self.model.train()
        outputs: list[Output] = []

        def finish(output: ModuleOutput) -> Message:
            assert self.optimizer is not None
            value, reported = loss(output)
            outputs.append(reported)
            return (self.optimizer.scale.scaled(value * self._loss_weight(output.micro_batch)),)

        passes: dict[tuple[int, int], Pass] = {}
        plan = training_plan(self.parallel.stages.schedule, self._shape(batches))
        for action in plan[self.parallel.pipeline_rank]:
            if action.kind == FORWARD:
                self._run_forward(action, batches[action.micro_batch], passes, finish)
            else:
                self._run_backward(action, passes.pop((action.chunk, action.micro_batch)))
        self.links.flush()
        self.fsdp_root.reshard_units()
        return outputs

    def _shape(self, batches: Sequence[MicroBatch]) -> Shape:
        return Shape(self.parallel.pipeline_size, self.parallel.stages.virtual, len(batches))

    def _run_forward(
        self,
        action: Action,
        micro_batch: MicroBatch,
        passes: dict[tuple[int, int], Pass],
        finish: Callable[[ModuleOutput], Message],
    ) -> None:
        """One chunk's forward pass; on the last stage, the head and what comes of it too."""
        stage, output = self.stages.stage(action.chunk), ModuleOutput(self, micro_batch)
        work = passes[action.chunk, action.micro_batch] = Pass(action.chunk)
        if not self.stages.is_first_stage(action.chunk):
            work.received = self._receive(output.packed, stage)
        self._current = work
        try:
            if self.stages.is_last_stage(action.chunk):
                work.result = finish(output)
            else:
                work.result = self._message(output.packed)
                self.links.send(work.result, stage, stage + 1)
        finally:
            self._current = None

    def _run_backward(self, action: Action, work: Pass) -> None:
        stage = self.stages.stage(action.chunk)
        gradients: Sequence[Tensor | None] = [None]
        if not self.stages.is_last_stage(action.chunk):
            gradients = self.links.receive([torch.empty_like(tensor) for tensor in work.result], stage + 1, stage)
        # Hidden states before the first adapter require no gradient.
        pairs = [pair for pair in zip(work.result, gradients, strict=True) if pair[0].requires_grad]
        if pairs:
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        if work.received:
            found = [torch.zeros_like(t) if t.grad is None else t.grad for t in work.received]
            self.links.send(found, stage, stage - 1)

    def _receive(self, rows: PackedRows, stage: int) -> Message:
        """The message of the stage before. Every rank knows its shape from the micro-batch."""
        num_tokens = self._plain_inputs(rows)["input_ids"].shape[1]
        like = [torch.empty((1, num_tokens, self.hidden_size), dtype=self.weight_dtype, device=self.device)]
        if self._counts_routing():
            like.append(self.balance_scope.zero(self.num_experts, self.device))
        if self.routing is not None and self.routing.is_recording:
            like.append(self.routing.empty(num_tokens, self.device))
        self.links.receive(like, stage - 1, stage)
        return tuple(tensor.requires_grad_(torch.is_grad_enabled()) for tensor in like)

    def _counts_routing(self) -> bool:
        """Whether stages tell each other what the routers did: the balancing loss is one of all layers."""
        return self.num_experts > 0 and torch.is_grad_enabled()

    def _message(self, rows: PackedRows) -> Message:
        """Run a chunk that is not the last."""
        routers = {"output_router_logits": True} if self._counts_routing() else {}

        def run() -> Message:
            with self.autocast(), self._saved_activations():
                output = backbone(self.model)(**self._inputs(rows), **routers)
            hidden = output.last_hidden_state.to(self.weight_dtype)
            if self.routing is not None and self.routing.is_recording:
                return hidden, self._recorded(hidden.shape[1])
            return (hidden, self._totals(rows, output.router_logits)) if routers else (hidden,)

        return self.run_unsharded(run)

    def _totals(self, rows: PackedRows, router_logits: Sequence[Tensor] | None) -> Tensor:
        """Of all layers up to those of the current chunk."""
        assert self._current is not None
        before, scope = self._current.received[1:], self.balance_scope
        total = before[0] if before else scope.zero(self.num_experts, self.device)
        for logits in self._routed(rows, router_logits or ()):
            total = scope.add(total, logits, top_k(self.model), rows.segments.lengths)
        return total

    def _recorded(self, num_tokens: int | None = None) -> Tensor:
        """Of all layers up to those of the current chunk."""
        assert self.routing is not None and self._current is not None
        before = self._current.received[1:]
        if before or num_tokens is None:
            return self.routing.recorded(*before)
        return self.routing.recorded(self.routing.empty(num_tokens, self.device))

    # the model's hooks, where a stage differs from the whole

    def run_unsharded(self, work: Callable[[], Any]) -> Any:
        """FSDP sees the whole tree of modules, and the model's forward the current chunk only."""
        if self._current is None:
            return super().run_unsharded(work)

        def run() -> Any:
            assert self._current is not None
            with self.stages.running(self._current.chunk):
                return work()

        return super().run_unsharded(run)

    def _inputs(self, rows: PackedRows) -> dict[str, Any]:
        """Later stages get the hidden states of the stage before instead of tokens and pictures."""
        if self._current is None or not self._current.received:
            return super()._inputs(rows)
        inputs = self._plain_inputs(rows)
        del inputs["input_ids"]
        return {**inputs, "inputs_embeds": self._current.received[0]}

    def _balance(self, rows: PackedRows, router_logits: Sequence[Tensor]) -> Tensor:
        return self.balance_scope.loss(self._totals(rows, router_logits), top_k(self.model))

    def check(self, check: Callable[..., None]) -> None:
        """The last stage's head, on hidden states that nobody computed."""
        if not self.stages.is_last:
            return
        hidden = torch.linspace(-1, 1, 4 * self.hidden_size, device=self.device, dtype=self.weight_dtype).view(1, 4, -1)
        self._current = Pass(self.parallel.stages.virtual - 1)
        try:
            self.run_unsharded(lambda: check(self.model, inputs_embeds=hidden))
        finally:
            self._current = None

    # updates

    def create_optimizer(
        self, config: OptimConfig, total_steps: int, updates_per_step: int, options: OptimizerOptions | None = None
    ) -> Optimizer:
        optimizer = super().create_optimizer(config, total_steps, updates_per_step, options)
        optimizer.stages = self.parallel.pipeline
        tied = self._tied_weight()
        if tied is not None and self.stages.is_last:
            optimizer.counted_elsewhere = frozenset([id(tied)])
        return optimizer

    def step(self, clip: float) -> Tensor:
        self._sum_tied_gradients()
        return super().step(clip)

    def _tied_weight(self) -> nn.Parameter | None:
        """This rank's copy of a weight that is embedding and head in one, where those are on different ranks."""
        if self.stages.tied is None or not (self.stages.is_first or self.stages.is_last):
            return None
        return self.model.get_parameter(self.stages.tied[self.stages.is_last])

    @torch.no_grad()
    def _sum_tied_gradients(self) -> None:
        """Both copies get the sum of their gradients, so that they stay equal."""
        weight = self._tied_weight()
        if weight is None or not weight.requires_grad:
            return
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        own = local_part(weight.grad)
        other = self.links.ranks[0 if self.stages.is_last else -1]
        own.add_(self.links.swap(own.contiguous(), other))

    # weights and state

    def all_stages(self, items: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Each rank's items, on all ranks: one stage after the other sends its own to the others."""
        group = self.parallel.pipeline
        own = iter(items)
        for stage, source in enumerate(self.links.ranks):
            while True:
                item = next(own, None) if stage == self.parallel.pipeline_rank else None
                header: list[Any] = [None if item is None else (item[0], item[1].shape, item[1].dtype)]
                dist.broadcast_object_list(header, src=source, group=group, device=self.device)
                if header[0] is None:
                    break
                name, shape, dtype = header[0]
                tensor = torch.empty(shape, dtype=dtype, device=self.device) if item is None else item[1]
                tensor = tensor.detach().to(self.device).contiguous()
                dist.broadcast(tensor, source, group=group)
                yield name, tensor

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        return self.all_stages(super().weights())

    def state_dict(self, contents: Collection[str]) -> dict[str, Any]:
        state = super().state_dict(contents)
        if "average" in state:
            state["average"] = {self._saved_name(name): tensor for name, tensor in state["average"].items()}
        if "optimizer" in state:
            state["optimizer"] = self._saved_optimizer(state["optimizer"])
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "optimizer" in state:
            state = {**state, "optimizer": self._own_optimizer(state["optimizer"])}
        super().load_state_dict(state)

    def _saved_name(self, name: str) -> str:
        """A checkpoint has one entry for tied weights, under the embedding's name."""
        tied = self.stages.tied
        return tied[0] if tied is not None and name == tied[1] else name

    def _saved_optimizer(self, state: dict[str, Any]) -> dict[str, Any]:
        """With the parameter groups of the whole model, which a checkpoint holds once for all ranks."""
        assert self.optimizer is not None
        template, config = state["param_groups"][0], self.optimizer.config
        groups = []
        for decays in (True, False):
            names = [
                name
                for name, ndim in self.stages.trained.items()
                if decays == (ndim > 1 or not config.decay_matrices_only)
            ]
            if names:
                groups.append({**template, "weight_decay": config.weight_decay if decays else 0.0, "params": names})
        entries = {self._saved_name(name): entry for name, entry in state["state"].items()}
        return {**state, "state": entries, "param_groups": groups}

    def _own_optimizer(self, state: dict[str, Any]) -> dict[str, Any]:
        """This rank's entries, under the names of this rank's weights."""
        own = {self._saved_name(name): name for name, p in self.model.named_parameters() if p.requires_grad}
        groups = [
            {**group, "params": [own[name] for name in group["params"] if name in own]}
            for group in state["param_groups"]
        ]
        entries = {own[name]: entry for name, entry in state["state"].items() if name in own}
        return {**state, "state": entries, "param_groups": [group for group in groups if group["params"]]}
