"""FollowerEngine: a rank of a tensor-parallel engine that runs what its leader sends.

The leader is a BuiltinEngine on the first rank of the group. It has the scheduler, the block manager and the sampling;
every rank has a part of the weights and of the KV cache.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue

from torch import Tensor

from burnish.rollout.engine import Capabilities, EngineOptions
from burnish.rollout.engines.builtin.engine import CLOSE, LOAD
from burnish.rollout.engines.builtin.step_runner import StepRunner
from burnish.rollout.engines.digests import digests_of
from burnish.rollout.engines.member import MemberRank

logger = logging.getLogger(__name__)


class FollowerEngine(MemberRank):
    """Pause, sleep and wake are the leader's: it sends what follows from them. Weights come to each rank by itself."""

    def __init__(self, options: EngineOptions) -> None:
        assert options.tensor_group is not None
        self.group = options.tensor_group
        self.runner = StepRunner(replace(options, record_experts=False))  # the leader records those of all ranks
        self.capabilities = Capabilities("token", self.runner.invariant, digests=True)
        self._loads: SimpleQueue[tuple[Iterable[tuple[str, Tensor]], Future[None]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name="burnish-engine", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """Run the leader's commands, in their order."""
        try:
            while (command := self.group.receive())[0] != CLOSE:
                name, args = command
                if name == LOAD:
                    self._load()
                else:
                    getattr(self.runner, name)(*args)
        except Exception:
            # The leader waits for this rank inside a collective. The controller reports the process that ends.
            logger.exception("rank %d of a tensor-parallel engine failed", self.group.rank)
            os._exit(1)

    def _load(self) -> None:
        stream, loaded = self._loads.get()
        try:
            self.runner.load_weights(stream)
        except Exception as error:
            loaded.set_exception(error)
        else:
            loaded.set_result(None)

    # the protocol

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """When the leader loads its part."""
        loaded: Future[None] = Future()
        self._loads.put((stream, loaded))
        loaded.result()

    def digests(self) -> dict[str, Tensor]:
        return digests_of(self.runner.model)

    def local_weight(self, name: str, whole: Tensor) -> Tensor:
        return self.runner.local_weight(name, whole)

    def memory(self) -> dict[str, list[Tensor]]:
        """The tensors it holds, by purpose."""
        cache = self.runner.cache
        pools = [] if cache is None else [*cache.keys, *cache.values]
        return {"weights": list(self.runner.model.parameters()), "cache": pools}

    def close(self) -> None:
        self._thread.join()
