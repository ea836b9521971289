"""AdamW on weights that are split over ranks."""

from __future__ import annotations

from typing import Any

import torch

from burnish.training.dtensor import local_part


class AdamW(torch.optim.AdamW):
    """torch's, which works element by element: so each rank updates the parts it holds, and no two ranks need to talk.

    Given as they are, weights on different meshes could not go into one update.
    """

    def _init_group(self, group: dict[str, Any], *lists: list[torch.Tensor]) -> bool:
        """Fills the lists with the group's weights, gradients and state; here with this rank's parts of them."""
        is_complex = super()._init_group(group, *lists)
        for tensors in lists:
            tensors[:] = [local_part(tensor) for tensor in tensors]
        return is_complex
