"""VisionEncoder: text with placeholders, and pictures -> a ModelInput whose media are processed once for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.media import Video
from burnish.models.model_input import ModelInput

if TYPE_CHECKING:
    from PIL.Image import Image


class VisionEncoder:
    """Tokenizer and processor of a vision-language model."""

    def encode(
        self,
        text: str,
        images: Sequence[Image] = (),
        videos: Sequence[Video] = (),
        *,
        add_special_tokens: bool = False,
        offset: int = 0,
    ) -> ModelInput:
        """Tokens of a rendered text in which one placeholder stands for each picture, in order, with the placeholders
        expanded to what the processor makes of the picture.

        `offset`: where these tokens will stand in a longer input; media offsets count from its start. UserError where
        placeholders and pictures do not match in number.
        """
        raise NotImplementedError
