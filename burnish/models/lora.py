"""LoRA through peft: adapters injected in place, merged on the fly for weight sync, saved in peft's format."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from burnish.errors import UserError, install_extra
from burnish.models.fourbit import is_packed, unpacked
from burnish.models.vision.family import vision_family
from burnish.storage import local_path

ADAPTER = "default"  # peft's default name
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
BASE_INFO = "base.json"  # our file beside peft's
PREFIX = "base_model.model."  # prefix of module names in peft's files
INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "xavier": nn.init.xavier_normal_,
    "kaiming": lambda weight: nn.init.kaiming_uniform_(weight, a=5**0.5),
    "normal": lambda weight: nn.init.normal_(weight, std=0.2),
    "zero": nn.init.zeros_,
}


class Adapters:
    """The adapters of one model. `heads` are modules that are trained and saved in full."""

    def __init__(self, model: PreTrainedModel, config: Any, heads: tuple[str, ...]) -> None:
        self.model = model
        self.config = config
        self.heads = heads
        layer_class = _peft("model").tuners.lora.LoraLayer
        self.layers: dict[str, Any] = {
            name: module for name, module in model.named_modules() if isinstance(module, layer_class)
        }
        for head in heads:
            model.get_submodule(head).requires_grad_(True)
        self.is_part = False  # of a pipeline: other ranks hold the other layers' adapters

    def keep_own(self) -> None:
        """After the model was cut into pipeline stages: drop the adapters of layers that it no longer has."""
        modules = {id(module) for module in self.model.modules()}
        self.layers = {name: layer for name, layer in self.layers.items() if id(layer) in modules}
        self.is_part = True

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Disable the adapters: the base model."""
        for layer in self.layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.enable_adapters(True)

    @torch.no_grad()
    def merged(
        self, device: torch.device, gather: Callable[[Tensor], Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the base model with adapters merged in; the model itself stays unmerged.

        `gather` makes a matrix whole, for adapters of which ranks hold different parts of both matrices.
        """
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            owner, _, kind = name.rpartition(".")
            if any(part.startswith("lora_") for part in owner.split(".")) or kind.startswith("lora_"):
                continue
            base = owner.removesuffix(".base_layer")
            if base != owner and kind == "weight":
                layer, weight = self.layers[base], unpacked(parameter)
                if gather is not None and _is_divided(layer):
                    delta = gather(layer.lora_B[ADAPTER].weight).float() @ gather(layer.lora_A[ADAPTER].weight).float()
                    yield (
                        f"{base}.weight",
                        gather(weight).to(device).float() + delta.to(device) * layer.scaling[ADAPTER],
                    )
                else:
                    yield f"{base}.weight", _merge(layer, weight.to(device))
            else:
                yield f"{base}.{kind}", unpacked(parameter)

    def state(self) -> dict[str, Tensor]:
        """All trained tensors, under the names of peft's files."""
        save_and_load = _peft("model").utils.save_and_load
        state = save_and_load.get_peft_model_state_dict(self.model, adapter_name=ADAPTER)
        for head in self.heads:
            state |= {f"{head}.{name}": tensor for name, tensor in self.model.get_submodule(head).state_dict().items()}
        return {f"{PREFIX}{name}": tensor.detach().cpu().contiguous() for name, tensor in state.items()}

    def write(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Write an adapter folder that peft can load onto the same base model."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
        training, self.config.inference_mode = self.config.inference_mode, True
        self.config.save_pretrained(str(folder))
        self.config.inference_mode = training
        # How to load the base model again, so that merging uses the same base weights as training.
        embedding = self.model.get_input_embeddings().weight
        packed = any(is_packed(parameter) for parameter in self.model.parameters())
        info = {"dtype": str(embedding.dtype).removeprefix("torch."), "load_in_4bit": packed}
        (folder / BASE_INFO).write_text(json.dumps(info))

    @torch.no_grad()
    def load(self, folder: Path, key: str) -> None:
        """Load saved adapters, and heads if the file has them."""
        state = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
        for head in self.heads:
            head_state = {
                name: state.pop(f"{head}.{name}", None) for name in self.model.get_submodule(head).state_dict()
            }
            if all(tensor is not None for tensor in head_state.values()):
                self.model.get_submodule(head).load_state_dict(head_state)
        expected = {name.removeprefix(PREFIX) for name in self.state()}
        expected -= {name for name in expected for head in self.heads if name.startswith(f"{head}.")}
        if self.is_part:
            state = {name: tensor for name, tensor in state.items() if name in expected}
        if expected != set(state):
            odd = sorted(expected ^ set(state))[:3]
            raise UserError(f"the adapter does not match the model: {', '.join(odd)}", key=key, value=str(folder))
        _peft(key).utils.save_and_load.set_peft_model_state_dict(self.model, state, adapter_name=ADAPTER)


def add_adapters(
    model: PreTrainedModel,
    settings: Any,
    *,
    dtype: torch.dtype,
    heads: tuple[str, ...] = (),
    frozen: Mapping[str, nn.Module] = MappingProxyType({}),
    seed: int = 0,
) -> Adapters:
    """Inject adapters into the model and freeze the rest. `settings` are config.adapters.AdapterSettings.

    Modules in `frozen`, by name, get none.
    """
    peft = _peft(settings.key)
    path = settings.adapter_path
    config = _saved_config(peft, path, settings.key) if path else _new_config(peft, model, settings, heads, frozen)
    config.modules_to_save = None  # heads are trained in place, without a copy by peft
    torch.manual_seed(seed)
    try:
        peft.inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    except ValueError as error:
        raise UserError(
            f"cannot inject adapters: {str(error).splitlines()[0]}",
            key=f"{settings.key}.target_modules",
            value=config.target_modules,
        ) from error
    config.base_model_name_or_path = model.name_or_path
    config.modules_to_save = list(heads) or None  # for peft, when it loads the saved adapter
    adapters = Adapters(model, config, heads)
    _refuse_ends(model, adapters, settings.key)
    for layer in adapters.layers.values():
        _start(layer, settings, dtype)
    if path:
        path_key = f"{settings.key}.lora_adapter_path"
        adapters.load(Path(local_path(path, key=path_key)).expanduser(), path_key)
    return adapters


def _new_config(
    peft: Any, model: PreTrainedModel, settings: Any, heads: tuple[str, ...], frozen: Mapping[str, nn.Module]
) -> Any:
    return peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=_targets(model, settings, heads),
        exclude_modules=_excluded(settings, frozen),
        use_dora=settings.dora,
        bias="none",
    )


def _saved_config(peft: Any, path: str, key: str) -> Any:
    path_key = f"{key}.lora_adapter_path"
    folder = Path(local_path(path, key=path_key)).expanduser()
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"no {name} found in the folder", key=path_key, value=path)
    config = peft.PeftConfig.from_pretrained(str(folder))
    if not isinstance(config, peft.LoraConfig):
        problem = f"adapter type {config.peft_type} is not supported, only LoRA"
        raise UserError(problem, key=path_key, value=path)
    config.inference_mode = False
    return config


def _targets(model: PreTrainedModel, settings: Any, heads: tuple[str, ...]) -> Any:
    """target_modules for peft: names of all linear layers for all-linear, a list of names, or a regular expression."""
    linear = _linear_names(model, heads)
    targets = _names(settings.target_modules)
    if targets == ["all-linear"]:
        if vision_family(model.config) is not None:
            return linear  # in full: the ends of some names in vision towers are numbers, which layers have too
        return sorted({name.rpartition(".")[2] for name in linear})
    if isinstance(targets, list):
        known = [name for name, _ in model.named_modules()]
        for target in targets:
            if not any(name == target or name.endswith(f".{target}") for name in known):
                last = sorted({name.rpartition(".")[2] for name in linear})
                problem = f"the model has no module {target!r}"
                raise UserError(problem, key=f"{settings.key}.target_modules", value=targets, allowed=last)
    return targets


def _excluded(settings: Any, frozen: Mapping[str, nn.Module]) -> Any:
    """exclude_modules for peft: the user's, and all linear modules below `frozen`."""
    names = _names(settings.exclude_modules)
    below = [
        f"{prefix}.{name}"
        for prefix, module in frozen.items()
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
    ]
    if not below:
        return names
    if isinstance(names, str):
        return "|".join([f"(?:{names})", *map(re.escape, below)])
    return [*(names or ()), *below]


def _names(modules: Any) -> Any:
    """Comma-separated names become a list; other strings are regular expressions."""
    if isinstance(modules, str) and re.fullmatch(r"[\w\-]+(\s*,\s*[\w\-]+)*", modules):
        return re.split(r"\s*,\s*", modules)
    return modules if modules is None or isinstance(modules, str) else list(modules)


def _linear_names(model: PreTrainedModel, heads: tuple[str, ...]) -> list[str]:
    """Names of all linear modules except heads."""
    output = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not output and name not in heads
    ]


def _refuse_ends(model: PreTrainedModel, adapters: Adapters, key: str) -> None:
    """Refuse adapters on the output head and the embedding: log-probs use the head's weight, which may be tied."""
    ends = (model.get_output_embeddings(), model.get_input_embeddings())
    for name, layer in adapters.layers.items():
        if layer in ends or name in adapters.heads:
            problem = f"adapters on {name} are not supported (output head or embedding)"
            raise UserError(problem, key=f"{key}.target_modules", hint=f"{key}.exclude_modules=[{name}]")


def _start(layer: Any, settings: Any, dtype: torch.dtype) -> None:
    """Set dtype and initial weights of one layer's adapter."""
    with torch.no_grad():
        for matrix, init in ((layer.lora_A, settings.init_a), (layer.lora_B, settings.init_b)):
            matrix[ADAPTER].to(dtype)
            if init is not None:
                INITS[init](matrix[ADAPTER].weight)
        for vector in layer.lora_magnitude_vector.values():
            vector.to(dtype)


def _is_divided(layer: Any) -> bool:
    """Whether ranks hold different parts of the adapter's matrices: those of tensor-parallel layers."""
    meshes = [getattr(matrix[ADAPTER].weight, "device_mesh", None) for matrix in (layer.lora_A, layer.lora_B)]
    return meshes[0] != meshes[1]


def _merge(layer: Any, weight: Tensor) -> Tensor:
    """W + (alpha / r) B A, in float32; DoRA scales each row to its learned norm."""
    delta = layer.get_delta_weight(ADAPTER).to(weight.device, torch.float32)
    merged = weight.float() + delta
    if ADAPTER in layer.lora_magnitude_vector:
        norm = layer.lora_magnitude_vector[ADAPTER].weight.to(merged.device, torch.float32)
        merged = merged * (norm / torch.linalg.norm(merged, dim=1)).view(-1, 1)
    return merged


def adapter_dtype(model: PreTrainedModel, requested: torch.dtype | None) -> torch.dtype:
    """The requested dtype; by default that of the base weights, or float32 if small updates would be lost in it."""
    if requested is not None:
        return requested
    base = next(p.dtype for p in model.parameters() if p.is_floating_point())
    too_coarse = base == torch.float16 or any(is_packed(parameter) for parameter in model.parameters())
    return torch.float32 if too_coarse else base


def _peft(key: str) -> Any:
    # peft imports bitsandbytes if installed, which warns about missing kernels.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import peft
    except ImportError as error:
        raise UserError(
            f"the peft library is not installed: {install_extra('peft')}",
            key=f"{key}.lora_rank",
            hint=f"{key}.lora_rank=0",
        ) from error
    return peft
