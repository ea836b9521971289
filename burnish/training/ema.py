"""Exponential moving average of a role's weights: kept beside them and never trained on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MovingAverage:
    """average <- beta average + (1 - beta) weights, in float32, of every trained weight."""

    def __init__(self, module: nn.Module, beta: float) -> None:
        self.module = module
        self.beta = beta
        self.weights = {name: p.detach().float().clone() for name, p in self._trained()}

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]

    @torch.no_grad()
    def update(self, applied: Tensor) -> None:
        """After an optimizer update. `applied` is a tensor, so that the host need not wait; false: it was skipped."""
        share = applied * (1 - self.beta)
        for name, parameter in self._trained():
            average = self.weights[name]
            average.lerp_(parameter.to(average), share.to(average))

    @torch.no_grad()
    def reset(self) -> None:
        """Restart from the current weights, where a checkpoint has no average."""
        for name, parameter in self._trained():
            self.weights[name].copy_(parameter)

    def state_dict(self) -> dict[str, Tensor]:
        """The module's state dict with averages in place of trained weights; tied weights stay one tensor."""
        averages = {id(p): self.weights[name].to(p.dtype) for name, p in self._trained()}
        parameters = {name: id(p) for name, p in self.module.named_parameters(remove_duplicate=False)}
        return {
            name: averages[parameters[name]] if parameters.get(name) in averages else tensor
            for name, tensor in self.module.state_dict().items()
        }
