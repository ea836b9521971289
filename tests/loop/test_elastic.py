"""ElasticEngines: which engines get requests after one was lost and is back."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from burnish.loop.elastic import ElasticEngines
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Capabilities, Request, Sampling

TOKENS = itertools.count()


class Group:
    """Workers that answer nothing; a lost one can be started again at once."""

    size, closing, elastic = 2, False, False

    def __init__(self) -> None:
        self.names = ["engines rank 0 of 2", "engines rank 1 of 2"]

    def call(self, method):
        return [Capabilities(addressed="token", invariant=True)] * 2

    def revive(self, rank):
        return True


def served_by(engines: ElasticEngines) -> set[int]:
    """The engines that four new prompts go to."""
    prompts = [ModelInput((next(TOKENS),)) for _ in range(4)]
    return {engines._route(Request(prompt, Sampling(max_tokens=1), seed=0)) for prompt in prompts}


@pytest.mark.parametrize(("own_weights", "before_sync"), [(False, {0}), (True, {0, 1})])
def test_an_engine_that_is_back_serves_as_soon_as_it_has_weights(own_weights, before_sync):
    group: Any = Group()
    engines = ElasticEngines(group, own_weights=own_weights)
    assert served_by(engines) == {0, 1} and group.elastic
    engines._lost(1)
    for thread in threading.enumerate():
        if thread.name == "burnish-revive":
            thread.join()
    assert served_by(engines) == before_sync
    assert engines._receivers() == [0, 1]
    engines._have_weights([0, 1])
    assert served_by(engines) == {0, 1}
