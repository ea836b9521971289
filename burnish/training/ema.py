"""An exponential moving average of a role's weights: smoother than the weights themselves, and never trained on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MovingAverage:
    """average <- beta average + (1 - beta) weights, in float32, of every weight that is trained."""

    def __init__(self, module: nn.Module, beta: float) -> None:
        self.module = module
        self.beta = beta
        self.weights = {name: p.detach().float().clone() for name, p in self._trained()}

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]

    @torch.no_grad()
    def update(self, taken: Tensor) -> None:
        """One optimizer step was made, or none where `taken` is false: the device knows, the host need not ask."""
        share = taken * (1 - self.beta)
        for name, parameter in self._trained():
            average = self.weights[name]
            average.lerp_(parameter.to(average), share.to(average))

    @torch.no_grad()
    def restart(self) -> None:
        """From the weights as they are, where a checkpoint has no average."""
        for name, parameter in self._trained():
            self.weights[name].copy_(parameter)

    def state_dict(self) -> dict[str, Tensor]:
        """The module's, with the average in place of what is trained; tied weights stay one tensor."""
        averages = {id(p): self.weights[name].to(p.dtype) for name, p in self._trained()}
        owners = {name: id(p) for name, p in self.module.named_parameters(remove_duplicate=False)}
        return {name: averages.get(owners.get(name), kept) for name, kept in self.module.state_dict().items()}
