"""One tiny model of each family for the session."""

from __future__ import annotations

from functools import cache

import pytest

from tests.vlm import FAMILIES, Vlm


@pytest.fixture(scope="session")
def vlm_of(tmp_path_factory):
    """vlm_of("gemma3"): a tiny model of that family."""

    @cache
    def make(name: str) -> Vlm:
        return Vlm.make(tmp_path_factory.mktemp(name), name, split_images=name == "smolvlm")

    return make


@pytest.fixture(params=FAMILIES)
def vlm(request, vlm_of):
    return vlm_of(request.param)
