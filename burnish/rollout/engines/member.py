"""MemberRank: a rank whose device belongs to the server of another rank (vLLM, SGLang).

The first rank of a group starts the server and talks to it. The others only take part in the collectives of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import NoReturn

from torch import Tensor

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Capabilities, Completion, EngineOptions, Request


class MemberRank:
    """What a run calls on the engine of every rank has no effect here; requests go to the first rank."""

    def __init__(self, options: EngineOptions) -> None:
        self.capabilities = Capabilities("none", invariant=False)

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take part in gathering them."""
        for _ in stream:
            pass

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def sleep(self, level: int = 1) -> None: ...

    def wake(self) -> None: ...

    def stats(self) -> dict[str, float]:
        return {}

    def step(self) -> bool:
        return False

    def close(self) -> None: ...

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        self._refuse()

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        self._refuse()

    def end_session(self, session: str) -> None:
        self._refuse()

    def expect_return(self, session: str, seconds: float) -> None:
        self._refuse()

    def score(self, rows: Sequence[ModelInput | Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RuntimeError("requests go to the first of the ranks that share an engine")
