"""What one can see of adapters, number formats, kept activations and offloading.

A CPU has nothing to offload from: the observers that look at it let the run believe that it had.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import burnish.loop.backends
import burnish.loop.recompute
import burnish.models.attention
import burnish.models.compiled
import burnish.models.logits
import burnish.training.backends.module
import burnish.training.optim
from burnish.loop.build import build
from burnish.models.fourbit import is_packed
from burnish.models.kernels.head import TritonKernel
from burnish.models.parts import backbone
from burnish.training.offload import TensorOffload

from .kit import Case, Kit, _edit, fixed_batch
from .row import Observe
from .teaching import INFERENCE, update


def backend(case: Case, role: str) -> Any:
    return case.run.learner.reward_model.model.backend if role == "judge" else getattr(case.run.learner, role).backend


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[pytest.MonkeyPatch]:
    """Offloading and compiling as where the device has a memory of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burnish.loop.backends, "has_own_memory", lambda device: True)
        yield patch


# adapters


@cache
def adapter(role: str, *names: str) -> Observe:
    """Facts of the role's adapters by name; None without any."""

    def facts(case: Case) -> dict[str, Any] | None:
        adapters = backend(case, role).adapters
        if adapters is None:
            return None
        layer = next(iter(adapters.layers.values()))
        found = {
            "rank": lambda: layer.lora_A["default"].weight.shape[0],
            "scaling": lambda: _scaling(layer),
            "dropout": lambda: _dropped(layer),
            "modules": lambda: sorted({name.rpartition(".")[2] for name in adapters.layers}),
            "dora": lambda: bool(layer.lora_magnitude_vector),
            "dtype": lambda: str(layer.lora_A["default"].weight.dtype),
            "A": lambda: float(layer.lora_A["default"].weight.double().abs().sum()),
            "B": lambda: float(layer.lora_B["default"].weight.double().abs().sum()),
        }
        return {name: found[name]() for name in names}

    return facts


def _scaling(layer: Any) -> float:
    """What the layer adds to the base's output, relative to the plain product B A x."""
    first, second = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    inputs = torch.ones(1, first.shape[1], dtype=first.dtype)
    layer.eval()
    with torch.no_grad():
        second.fill_(0.5)
        added = layer(inputs) - layer.base_layer(inputs)
        return round(float((added / (inputs @ first.T @ second.T)).mean()), 4)


def _dropped(layer: Any) -> float:
    """The fraction of the adapter's inputs that training sets to 0, to one decimal."""
    torch.manual_seed(0)
    layer.train()
    return round(float((layer.lora_dropout["default"](torch.ones(10000)) == 0).float().mean()), 1)


@cache
def num_packed(role: str) -> Observe:
    """4-bit weights of the role's model."""
    return lambda case: sum(map(is_packed, backend(case, role).model.parameters()))


def saved_adapter(kit: Kit, role: str) -> Path:
    """An adapter of rank 3 that a run of the kit wrote."""
    folder = kit.root / f"{role}_adapter"
    if not folder.exists():
        case = Case(kit, ("critic.model.lora_rank=3", "actor_rollout_ref.model.lora_rank=3", "critic.enable=true"))
        adapters = backend(case, role).adapters
        adapters.write(folder, adapters.state())
        case.close()
    return folder


def other_config(kit: Kit) -> Path:
    """The model's config with another norm."""
    folder = kit.root / "other_config"
    if not folder.exists():
        folder.mkdir()
        shutil.copy(Path(kit.model) / "config.json", folder)
        _edit(folder / "config.json", rms_norm_eps=0.5)
    return folder


# number formats


@cache
def kept_dtype(role: str) -> Observe:
    return lambda case: str(next(backend(case, role).model.parameters()).dtype)


@cache
def compute_dtype(role: str) -> Observe:
    """dtype in which the first layer's attention computes."""

    def dtype(case: Case) -> str:
        outputs: list[torch.Tensor] = []
        layer = backbone(backend(case, role).model).layers[0]
        layer.self_attn.register_forward_hook(lambda _, inputs, output: outputs.append(output[0]))
        model = case.run.learner.reward_model.model if role == "judge" else getattr(case.run.learner, role)
        getattr(model, INFERENCE[role])(fixed_batch(case.run))
        return str(outputs[0].dtype)

    return dtype


@cache
def buffer_dtype(role: str) -> Observe:
    return lambda case: str(next(b.dtype for b in backend(case, role).model.buffers() if b.is_floating_point()))


# memory and kernels


@cache
def kept_tensors(role: str) -> Observe:
    """How many tensors one step's forward passes keep for the backward pass."""

    def count(case: Case) -> int:
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(1) or tensor, lambda tensor: tensor):
            update(case, role)
        return len(kept)

    return count


@cache
def passes_by_memory(role: str) -> Observe:
    """How often the first layer runs in one update, on machines with a byte and with a TiB."""

    def count(case: Case) -> list[int]:
        return [_passes(case, role, memory) for memory in (1, 1 << 40)]

    return count


def _passes(case: Case, role: str, memory: int) -> int:
    passes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burnish.loop.recompute, "total_memory", lambda: memory)
        run = build(case.cfg)
    trained = getattr(run.learner, role)
    backbone(trained.backend.model).layers[0].register_forward_pre_hook(lambda *_: passes.append(1))
    trained.update(fixed_batch(run), step=1)
    run.close()
    return len(passes)


@cache
def fused_products(role: str) -> Observe:
    """Calls of fused attention in one update: PyTorch's, or the C kernel where it applies."""

    def count(case: Case) -> int:
        calls: list[int] = []
        real, in_c = F.scaled_dot_product_attention, burnish.models.attention.c_attention
        assert case.run.learner.policy, "built before it is watched: loading checks the head by a pass of its own"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or real(*a, **k))
            patch.setattr(burnish.models.attention, "c_attention", lambda *a, **k: calls.append(1) or in_c(*a, **k))
            update(case, role)
        return len(calls)

    return count


@cache
def offloaded_passes(role: str) -> Observe:
    """Passes whose activations wait in CPU memory, as on a GPU."""

    def count(case: Case) -> int:
        passes: list[int] = []
        real = burnish.training.backends.module.activations_on_cpu
        with as_on_a_gpu() as patch:
            patch.setattr(
                burnish.training.backends.module, "activations_on_cpu", lambda *a: passes.append(1) or real(*a)
            )
            update(case, role)
        return len(passes)

    return count


@cache
def moves(role: str) -> Observe:
    """What is brought to the device, and where updates are made, in one reading and teaching, as on a GPU."""

    def count(case: Case) -> dict[str, int]:
        found = {"weights": 0, "state": 0, "updates on the CPU": 0}
        fetch, on_cpu = TensorOffload.load, burnish.training.optim.updated_on_cpu

        def counted(offload: TensorOffload) -> None:
            found["weights" if offload is weights else "state"] += 1
            fetch(offload)

        def updated(parameters: list) -> Any:
            found["updates on the CPU"] += 1
            return on_cpu(parameters)

        with as_on_a_gpu() as patch:
            weights = backend(case, role).offload
            patch.setattr(TensorOffload, "load", counted)
            patch.setattr(burnish.training.optim, "updated_on_cpu", updated)
            batch = fixed_batch(case.run)
            model = case.run.learner.reward_model.model if role == "judge" else getattr(case.run.learner, role)
            getattr(model, INFERENCE[role])(batch)
            if role in ("policy", "critic"):
                update(case, role)
        return found

    return count


@cache
def compiled_functions(role: str) -> Observe:
    """What reading lets torch.compile fuse, as on a GPU."""

    def names(case: Case) -> list[str]:
        found: list[str] = []
        with as_on_a_gpu() as patch:
            patch.setattr(burnish.models.compiled, "COMPILED_ON", frozenset({"cpu"}))
            patch.setattr(torch, "compile", lambda function, dynamic: found.append(function.__name__) or function)
            burnish.models.logits.fused.cache_clear()
            getattr(getattr(case.run.learner, role), INFERENCE[role])(
                fixed_batch(case.run).keep("prompt_ids", "responses")
            )
            burnish.models.logits.fused.cache_clear()
        return found

    return names


@cache
def triton_chunks(role: str) -> Observe:
    """Chunks of logits that reading measures by the Triton kernel, as on a GPU."""

    def count(case: Case) -> int:
        chunks: list[int] = []
        real = TritonKernel.measure
        with as_on_a_gpu() as patch:
            patch.setattr(TritonKernel, "measure", lambda *a, **k: chunks.append(1) or real(*a, **k))
            getattr(getattr(case.run.learner, role), INFERENCE[role])(
                fixed_batch(case.run).keep("prompt_ids", "responses")
            )
        return len(chunks)

    return count


def reference_log_probs(case: Case) -> list[float]:
    return case.run.learner.reference.compute_log_probs(
        fixed_batch(case.run).keep("prompt_ids", "responses")
    ).flat.tolist()


def reference_class(case: Case) -> str:
    return type(case.run.learner.reference.backend.model).__name__
