"""The warm-up: SFT of the tiny model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from burnish.batch import Batch
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm, quiet_transformers
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows

BATCH = 64


class Warmup:
    """Trains the model in a folder with SFT."""

    batch_size = BATCH

    def __init__(self, folder: Path, learning_rate: float) -> None:
        self.folder = folder
        self.learning_rate = learning_rate
        model = load_causal_lm(ModelSource(path=str(folder)), PACKED, torch.float32)
        self.backend = SingleBackend(model, torch.device("cpu"), torch.float32)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)

    def update(self, batch: Batch, lr_scale: float = 1.0) -> None:
        """One optimizer update on responses; only tokens of response_mask count where the batch has one."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * lr_scale
        self.backend.model.train()
        log_probs, _ = self.backend.log_probs(
            PackedRows.of(batch, self.backend.device, self.backend.family), 1.0, False
        )
        if "response_mask" in batch:
            log_probs = log_probs[batch["response_mask"].flat.bool()]
        (-log_probs.mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.backend.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def log_probs(self, batch: Batch) -> Tensor:
        """Of the response tokens, all rows in a row."""
        self.backend.model.eval()
        return self.backend.log_probs(PackedRows.of(batch, self.backend.device, self.backend.family), 1.0, False)[0]

    def save(self) -> None:
        """Overwrite the model in the folder."""
        with quiet_transformers():
            self.backend.model.save_pretrained(self.folder)
