"""Images through the real vLLM: its processor, its vision tower, and our weights, against transformers.

vLLM's Qwen-VL models import torchvision, which `make test-vllm` cannot install for a CPU: then these tests are skipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from burnish.errors import UserError
from burnish.models.load import ModelSource
from burnish.rollout.engine import ENGINES, EngineOptions, Request, Sampling
from burnish.rollout.engines.vllm.engine import VllmEngine
from burnish.seeding import derive_seed

from ..vlm import Vlm, expected_log_probs, picture, transformers_model
from .compare import PATIENCE

pytest.importorskip("torchvision", reason="vLLM's models for images import torchvision")


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def vlm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vlm:
    return Vlm.make(tmp_path_factory.mktemp(request.param), request.param, hidden=128)


@pytest.fixture(scope="module")
def engine(vlm: Vlm) -> Iterator[VllmEngine]:
    options = EngineOptions(
        *(ModelSource(str(vlm.folder)), torch.float32, torch.device("cpu")),
        eos_ids=(2,),
        max_model_len=512,
        max_num_seqs=8,
        own_thread=False,
    )
    engine = ENGINES["vllm"].load()(options)
    yield engine
    engine.close()


def with_sources(vlm: Vlm, images: list[Any], text: str) -> Any:
    """As data reads it where an engine has a processor of its own."""
    prompt = vlm.prompt(images, text=text)
    media = tuple(dataclasses.replace(media, source=image) for media, image in zip(prompt.media, images, strict=True))
    return dataclasses.replace(prompt, media=media)


def generate(engine: VllmEngine, prompts: list[Any], **sampling: Any) -> list[Any]:
    settings = Sampling(8, **sampling)
    requests = [Request(prompt, settings, derive_seed(0, number)) for number, prompt in enumerate(prompts)]
    return [future.result(PATIENCE) for future in engine.generate(requests)]


def test_log_probs_are_those_of_transformers(vlm: Vlm, engine: VllmEngine) -> None:
    """Of the weights that a sync sent, not of those in the folder."""
    model = transformers_model(vlm)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    engine.load_weights(model.named_parameters(), version=1)
    prompts = [
        with_sources(vlm, [picture(56, 28)], "one"),
        with_sources(vlm, [picture(56, 56, 1), picture(28, 84, 2)], "two of them"),
        vlm.prompt(text="no picture at all"),
    ]
    for prompt, completion in zip(prompts, generate(engine, prompts, ignore_eos=True), strict=True):
        expected = expected_log_probs(model, vlm, prompt, torch.tensor(completion.ids))
        assert completion.log_probs == pytest.approx(expected.tolist(), abs=5e-5)


def test_the_image_is_seen(vlm: Vlm, engine: VllmEngine) -> None:
    """Equal tokens and another picture: another distribution, also where the first prompt is cached."""
    engine.load_weights(transformers_model(vlm).named_parameters(), version=2)
    shown = [with_sources(vlm, [picture(56, 56, seed)], "what") for seed in (1, 2, 1)]
    first, other, again = (completion.log_probs for completion in generate(engine, shown, do_sample=False))
    assert first != pytest.approx(other, abs=1e-4)
    assert first == pytest.approx(again, abs=1e-5)


def test_a_processed_image_alone_is_refused(vlm: Vlm, engine: VllmEngine) -> None:
    prompt = vlm.prompt([picture()])
    bare = dataclasses.replace(prompt, media=tuple(dataclasses.replace(m, source=None) for m in prompt.media))
    with pytest.raises(UserError, match="needs the images themselves"):
        generate(engine, [bare])
