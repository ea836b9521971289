"""Processor: what users' agent loops call to turn text and images into tokens, with the interface of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from burnish.models.vision.encoder import VisionEncoder
from burnish.rollout.chat.pictures import read_pictures


class Inputs(dict[str, Any]):
    """Like a BatchEncoding: entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Processor:
    """The tokens of a text with its images, as the engine and the trainer see them."""

    def __init__(self, tokenizer: Any, vision: VisionEncoder) -> None:
        self.tokenizer = tokenizer
        self.vision = vision

    def apply_chat_template(self, messages: Any, tokenize: bool = False, **kwargs: Any) -> Any:
        """The rendered text; with `tokenize`, the tokens of messages without images."""
        return self.tokenizer.apply_chat_template(messages, tokenize=tokenize, **kwargs)

    def __call__(
        self,
        text: str | Sequence[str] = "",
        images: Any = None,
        videos: Any = None,
        return_tensors: str | None = None,
        **options: Any,
    ) -> Inputs:
        """`options` about how images are processed are those of the run: data.mm_processor_kwargs."""
        (one,) = [text] if isinstance(text, str) else list(text)
        shown = (read_pictures(images, "image", "an agent"), read_pictures(videos, "video", "an agent"))
        ids = list(self.vision.encode(one, *shown).ids)
        rows: Any = torch.tensor([ids]) if return_tensors == "pt" else [ids]
        mask: Any = torch.ones_like(rows) if return_tensors == "pt" else [[1] * len(ids)]
        return Inputs(input_ids=rows, attention_mask=mask)

    def decode(self, *args: Any, **kwargs: Any) -> str:
        return self.tokenizer.decode(*args, **kwargs)

    def batch_decode(self, *args: Any, **kwargs: Any) -> list[str]:
        return self.tokenizer.batch_decode(*args, **kwargs)
