"""Tiny vision-language models, pictures, and rows with them, shared by tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, PreTrainedModel

from burnish.batch import Batch, Ragged
from burnish.demo.tiny_vision import TINY_FAMILIES, make_vision_model
from burnish.media import Video
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm, load_tokenizer
from burnish.models.model_input import ModelInput
from burnish.models.vision.encoder import VisionEncoder, VisionSettings, load_vision_encoder

FAMILIES = tuple(TINY_FAMILIES)
VIDEO_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm")


def picture(width: int = 56, height: int = 56, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng([seed, width, height]).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def clip(frames: int = 2, size: int = 112, seed: int = 0) -> Video:
    """Wider than it is long, so that all agree on the position of the text after it (models/vision/mrope.py)."""
    return Video([picture(size, size, 100 * seed + i) for i in range(frames)], [0.5 * i for i in range(frames)])


@dataclass
class Vlm:
    """A folder with a tiny model, and its encoder."""

    folder: Path
    name: str
    tokenizer: Any
    encoder: VisionEncoder

    @staticmethod
    def make(folder: Path, name: str, settings: VisionSettings | None = None, **options: Any) -> Vlm:
        model = make_vision_model(folder, name, **options)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():  # fresh weights are so small that mistakes would not show
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(folder)
        return Vlm.at(folder, name, settings)

    @staticmethod
    def at(folder: Path, name: str, settings: VisionSettings | None = None) -> Vlm:
        source = ModelSource(str(folder))
        tokenizer = load_tokenizer(str(folder), key="model.path")
        return Vlm(folder, name, tokenizer, load_vision_encoder(source, tokenizer, settings or VisionSettings()))

    def load(self, attn: str | None = PACKED) -> PreTrainedModel:
        return load_causal_lm(ModelSource(str(self.folder)), attn, torch.float32)

    def text(self, images: int, videos: int, text: str) -> str:
        content = [{"type": "image"}] * images + [{"type": "text", "text": text}] + [{"type": "video"}] * videos
        messages = [{"role": "user", "content": content}]
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def prompt(
        self, images: Sequence[Image.Image] = (), videos: Sequence[Video] = (), text: str = "what"
    ) -> ModelInput:
        return self.encoder.encode(self.text(len(images), len(videos), text), images, videos)

    def prompts(self) -> list[ModelInput]:
        """One image, several, none, and videos where the family takes them."""
        found = [
            self.prompt([picture(56, 28)], text="one"),
            self.prompt([picture(56, 56, 1), picture(28, 84, 2), picture(56, 56, 1)], text="several of them"),
            self.prompt(text="no picture at all"),
        ]
        if self.name in VIDEO_FAMILIES:
            found += [self.prompt(videos=[clip()], text="a video")]
            found += [self.prompt([picture(28, 28, 3)], [clip(3, seed=1), clip(4, seed=2)], "both")]
        return found


def rows_of(prompts: Sequence[ModelInput], seed: int = 0) -> Batch:
    """Prompts with responses of different lengths, and what losses need."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [3 + (2 * row) % 5 for row in range(len(prompts))]
    responses = Ragged.of([torch.randint(3, 100, (n,), generator=generator) for n in lengths], torch.int64)

    def column(flat: Tensor) -> Ragged:
        return Ragged.like(flat, responses)

    total = len(responses.flat)
    return Batch(
        prompt_ids=Ragged.of([list(prompt.ids) for prompt in prompts], torch.int64),
        responses=responses,
        media=[prompt.media for prompt in prompts],
        response_mask=column(torch.ones(total)),
        old_log_probs=column(-4.5 + torch.rand(total, generator=generator)),
        advantages=column(torch.randn(total, generator=generator)),
        values=column(torch.randn(total, generator=generator)),
        returns=column(torch.randn(total, generator=generator)),
    )


def transformers_model(vlm: Vlm) -> PreTrainedModel:
    """As transformers loads it, without any of our code."""
    return AutoModelForImageTextToText.from_pretrained(vlm.folder, dtype=torch.float32).eval()


def token_types(prompt: ModelInput, length: int) -> Tensor:
    """[1, length]: 1 for tokens of images, 2 for those of videos."""
    types = torch.zeros(1, length, dtype=torch.int64)
    for media in prompt.media:
        mask = torch.ones(media.num_tokens, dtype=torch.bool) if media.features is None else media.features
        span = types[0, media.offset : media.offset + media.num_tokens]
        span[mask] = 1 if media.kind == "image" else 2
    return types


@torch.no_grad()
def expected_log_probs(model: PreTrainedModel, vlm: Vlm, prompt: ModelInput, response: Tensor) -> Tensor:
    """Of a response, by transformers' own forward pass, with the positions and masks it makes itself."""
    ids = torch.cat([torch.tensor(prompt.ids), response])[None]
    arguments: dict[str, Any] = dict(vlm.encoder.family.model_arguments(prompt.media))
    types = token_types(prompt, ids.shape[1])
    if vlm.name == "gemma3":
        arguments["token_type_ids"] = types
    elif vlm.name.startswith("qwen"):
        arguments["mm_token_type_ids"] = types
    logits = model(input_ids=ids, use_cache=False, **arguments).logits[0]
    predicted = logits[len(prompt.ids) - 1 : -1].log_softmax(-1)
    return predicted.gather(1, response[:, None])[:, 0]
