"""Body: one more token for every row, from the newest tokens to the test whether a row is over.

A body reads and writes tensors of fixed addresses and asks the host nothing, so a CUDA graph can hold it; called as it
is, it does the same without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.models.kernels.sample import sample_tokens
from burnish.models.parts import head_weight, logit_softcap
from burnish.models.wide import hidden_states
from burnish.rollout.engines.builtin.device_rows import DeviceRows, Mode
from burnish.rollout.engines.builtin.pages import DecodePages
from burnish.rollout.engines.builtin.plan import LoopPlan
from burnish.rollout.engines.builtin.sampling import pick
from burnish.rollout.engines.builtin.slow_sampling import choose_slowly, settings_of


class Fixed(NamedTuple):
    """What all bodies of an engine read and write."""

    rows: DeviceRows
    logits: Tensor  # [rows at once, vocabulary]: room for logits, used again by each part of a batch and by every body
    trash: int  # a slot of the cache that nobody reads: inactive rows write there


class Body:
    """For the first `size` places."""

    def __init__(self, model: PreTrainedModel, fixed: Fixed, size: int, mode: Mode, plan: LoopPlan) -> None:
        self.model, self.size, self.plan = model, size, plan
        self.rows, self.space, self.trash = fixed
        rows = self.rows
        self.mode = mode._replace(slow=min(mode.slow, size))
        self.head, self.softcap = head_weight(model), logit_softcap(model)
        self.tables = rows.tables.device[:size]
        self.token, self.length, self.made, self.active, self.limit = (
            rows.tensor(name, size) for name in ("token", "length", "made", "active", "limit")
        )

    @torch.inference_mode()
    def __call__(self) -> None:
        active = self.active.bool()
        hidden = self._forward(active)
        chosen = [self._sample(part, start) for start, part in self._parts(hidden)]
        tokens, log_probs = chosen[0] if len(chosen) == 1 else map(torch.cat, zip(*chosen, strict=True))
        self._advance(tokens, log_probs, active)

    def _forward(self, active: Tensor) -> Tensor:
        block = self.plan.block
        number = (self.length // block).clamp(max=self.tables.shape[1] - 1)
        own = self.tables.gather(1, number[:, None]).squeeze(1) * block + self.length % block
        # An inactive row sees one token and leaves no trace.
        pages = DecodePages(
            torch.where(active, own, self.trash),
            self.tables,
            torch.where(active, self.length + 1, 1),
            self.plan.triton,
        )
        return hidden_states(self.model, self.token, self.length, pages)

    def _parts(self, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
        """As many rows at once as there is room for logits, and the first one's place."""
        at_once = len(self.space)
        return zip(range(0, self.size, at_once), hidden.split(at_once), strict=True)

    def _sample(self, hidden: Tensor, start: int) -> tuple[Tensor, Tensor]:
        logits = torch.mm(hidden, self.head.t(), out=self.space[: len(hidden)])
        tokens, log_probs = self._choose(logits, start)
        slow = min(self.mode.slow - start, len(hidden))
        return self._choose_slowly(logits[:slow], start, tokens, log_probs) if slow > 0 else (tokens, log_probs)

    def _choose(self, logits: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Every row by its temperature alone."""
        here = slice(start, start + len(logits))
        if self.plan.triton:
            names = ("temperature", "greedy", "seed", "made")
            return sample_tokens(logits, *(self.rows.tensor(n, self.size)[here] for n in names), self.softcap)
        settings = settings_of(self.rows, start, len(logits), restricted=False)
        log_probs = torch.log_softmax(self._capped(logits) / settings.temperature[:, None], -1)
        return pick(log_probs, log_probs, settings, self.made[here])

    def _choose_slowly(self, logits: Tensor, start: int, tokens: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The first rows again, by all that they ask for."""
        slow = len(logits)
        chosen = choose_slowly(self._capped(logits), self.rows, self.mode, start)
        if self.mode.top:
            here = slice(start, start + slow)
            self.rows.top_ids.device[here].index_copy_(1, self.rows.step, chosen.top_ids[:, None])
            self.rows.top_values.device[here].index_copy_(1, self.rows.step, chosen.top_values[:, None])
        return torch.cat([chosen.tokens, tokens[slow:]]), torch.cat([chosen.log_probs, log_probs[slow:]])

    def _capped(self, logits: Tensor) -> Tensor:
        logits = logits.float()
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def _advance(self, tokens: Tensor, log_probs: Tensor, active: Tensor) -> None:
        """Note the tokens, and see who is over: by a token that ends it, or by its length."""
        rows, step = self.rows, self.rows.step
        rows.tokens.device[: self.size].index_copy_(1, step, tokens[:, None])
        rows.log_probs.device[: self.size].index_copy_(1, step, log_probs[:, None])
        step.add_(1).remainder_(rows.look_in)  # it never points outside, however often a capture tries the body
        if self.mode.looks_back:
            self._remember(tokens[: self.mode.slow], active[: self.mode.slow])
        self.made.add_(self.active)
        self.length.add_(self.active)
        self.token.copy_(torch.where(active, tokens, self.token))
        ended = (tokens[:, None] == rows.ends.device[: self.size]).any(-1) | (self.made >= self.limit)
        self.active.mul_(~ended)

    def _remember(self, tokens: Tensor, active: Tensor) -> None:
        slow = self.mode.slow
        history = self.rows.history.device[:slow]
        place = self.rows.tensor("prompt", slow) + self.made[:slow]
        place = torch.where(active, place, history.shape[1] - 1)
        history.scatter_(1, place[:, None], tokens[:, None])
