"""The backend protocol: how a role runs its model on micro-batches, whatever the parallelism.

A backend owns the order in which micro-batches run, so that a pipeline schedule can interleave them. Roles pass it all
micro-batches of one pass and a function that turns the model's output into log-probs, values, scores or a loss. That
function runs on the model's last stage, so its results exist only there: `forward` and `forward_backward` return one
output per micro-batch on ranks where `parallel.has_results` is true, and an empty list on others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from burnish.batch import Batch
from burnish.models.exact_kl import HeadInput
from burnish.models.logits import TORCH, LogitKernel
from burnish.models.lora import Adapters
from burnish.models.routing import Routing
from burnish.registry import Registry
from burnish.training.packing import PackedRows
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from burnish.config.optim import OptimConfig
    from burnish.training.optim import Optimizer, OptimizerOptions

Output = TypeVar("Output")


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one pass through the model.

    Without `rows` it is a dummy that keeps this rank's collectives in step with the others: it runs, its loss counts
    zero, and its output is to be ignored.
    """

    rows: list[int]  # their numbers in the role's batch, or in this rank's shard of it
    batch: Batch
    num_replicas: int = 1  # data ranks that run these same rows, where a loss compares all rows of a mini-batch

    @staticmethod
    def select(batch: Batch, rows: list[int], dummy: int = 0) -> MicroBatch:
        """These rows of a batch; without any, row `dummy`, because other ranks still have some."""
        return MicroBatch(rows, batch.select(rows or [dummy]))


class ModelOutput(Protocol):
    """The model's output for one micro-batch, on a rank that runs the last stage."""

    micro_batch: MicroBatch
    packed: PackedRows

    def head_input(self, with_balance: bool = False) -> HeadInput:
        """Hidden states before each response token and the weights of the language model head.

        `with_balance` adds the load-balancing loss of a mixture's routers.
        """
        ...

    def log_probs(
        self, temperature: float, with_entropy: bool, head: HeadInput | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Log-prob (and entropy) of each response token, [R]. `head` avoids a second pass through the model."""
        ...

    def exact_kl(self, reference: HeadInput, temperature: float, head: HeadInput | None = None) -> Tensor:
        """KL to the reference over the whole vocabulary at each response token, [R]."""
        ...

    def values(self) -> Tensor:
        """The value head's prediction before each response token, [R]."""
        ...

    def scores(self) -> Tensor:
        """The score head's prediction at the last token of each row, [rows]."""
        ...

    def routed_experts(self) -> Tensor:
        """Which experts the pass has sent each token to, [tokens, mixtures, k], row after row, where it is recorded."""
        ...


HeadFn = Callable[[ModelOutput], Output]
LossFn = Callable[[ModelOutput], tuple[Tensor, Output]]  # the loss to differentiate, and what to return


class Backend(Protocol):
    """One model of a role, trainable or frozen, with its optimizer where it is trained."""

    model: Any  # this rank's part of it: a PreTrainedModel
    device: torch.device
    compute_dtype: torch.dtype
    parallel: ParallelContext
    adapters: Adapters | None
    optimizer: Optimizer | None
    routing: Routing | None  # the model's routers, where they are recorded or repeat choices

    def forward(self, batches: Sequence[MicroBatch], head: HeadFn[Output], *, adapters: bool = True) -> list[Output]:
        """Run all micro-batches in evaluation mode without gradients; `adapters=False` runs the base model."""
        ...

    def forward_backward(self, batches: Sequence[MicroBatch], loss: LossFn[Output]) -> list[Output]:
        """Run all micro-batches in training mode and accumulate the gradients of their losses' sum."""
        ...

    def step(self, clip: float) -> Tensor:
        """Clip and apply the accumulated gradients; returns their norm, still on the device."""
        ...

    def create_optimizer(
        self, config: OptimConfig, total_steps: int, updates_per_step: int, options: OptimizerOptions | None = None
    ) -> Optimizer:
        """Make the model trainable by `step`."""
        ...

    def on_device(self) -> AbstractContextManager[None]:
        """Keep offloaded weights on the device inside."""
        ...

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """(name, tensor) of every parameter under its Hugging Face name; all ranks must iterate together."""
        ...

    def all_stages(self, items: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        """This rank's (name, tensor) items and those of a pipeline's other stages; all ranks iterate together."""
        ...

    def state_dict(self, contents: Collection[str]) -> dict[str, Any]:
        """This rank's shards of "model" and "optimizer", as a checkpoint stores them."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class FsdpOptions:
    """fsdp_config's keys about sharding."""

    reshard_after_forward: bool | int = True
    offload: bool = False  # weights, gradients and optimizer state live in CPU memory
    prefetch: bool = False  # gather the next layer while this one computes
    reduce_dtype: torch.dtype = torch.float32
    min_num_params: int = 0
    layer_classes: tuple[str, ...] = ()
    key: str = "actor_rollout_ref.actor.fsdp_config"  # where they are set, for error messages
    tensor_key: str = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size"
    expert_key: str = "actor_rollout_ref.actor.megatron.expert_model_parallel_size"


@dataclass(frozen=True)
class ExpertOptions:
    """How the routers of a mixture are trained."""

    balance_scope: str = "model"  # of their balancing loss
    replay_key: str | None = None  # the key that asks for router replay; None: routers are left alone


ANY_EXPERTS = ExpertOptions()


@dataclass(frozen=True)
class BackendOptions:
    """Memory and kernels of one model."""

    offload: bool = False  # weights wait in CPU memory between phases
    activations_on_cpu: bool = False  # activations wait in CPU memory between forward and backward
    head: LogitKernel = TORCH  # computes log-probs from logits
    fsdp: FsdpOptions = field(default_factory=FsdpOptions)
    experts: ExpertOptions = ANY_EXPERTS
    share_prompts: bool = False  # equal prompts of a micro-batch are computed once


DEFAULT_OPTIONS = BackendOptions()

BACKENDS = Registry("training backend", key="trainer.n_gpus_per_node")
BACKENDS.register_lazy("single", "burnish.training.backends.single:SingleBackend")
BACKENDS.register_lazy("fsdp", "burnish.training.backends.fsdp:FsdpBackend")
BACKENDS.register_lazy("pipeline", "burnish.training.backends.pipeline:PipelineBackend")


def create_backend(
    model: PreTrainedModel,
    device: torch.device,
    compute_dtype: torch.dtype,
    *,
    adapters: Adapters | None = None,
    options: BackendOptions = DEFAULT_OPTIONS,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Backend:
    """The backend that runs this model on the ranks of `parallel`."""
    backend_class = BACKENDS[parallel.backend].load()
    return backend_class(model, device, compute_dtype, adapters=adapters, options=options, parallel=parallel)


def has_dropout(module: nn.Module) -> bool:
    """Whether two passes in training mode would differ."""
    dropout = any(isinstance(m, nn.Dropout) and m.p > 0 for m in module.modules())
    return dropout or any(getattr(m, "attention_dropout", 0.0) > 0 for m in module.modules())
