"""SmolVLM and Idefics3: an image is tiles of one size with their rows and columns written between them, and a whole."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers.models.smolvlm import processing_smolvlm

from burnish.media import Video
from burnish.models.model_input import Media, MediaKind
from burnish.models.positions import TEXT, Positions
from burnish.models.vision.features import Embedded, FeatureMemo, MediaSlice, place, to_device
from burnish.models.vision.pictures import MAX_FRAMES, Processed, describe, load_image_processor, runs_between

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PretrainedConfig, PreTrainedModel

FAKE, GLOBAL = "<fake_token_around_image>", "<global-img>"
ASSUMED_FPS = 1.0  # of frames without time stamps: the rate at which the family samples videos
SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


class Idefics3:
    kinds: frozenset[MediaKind] = frozenset({"image"})
    positions: Positions = TEXT
    sees_whole_images = False
    changes_layers = False

    def __init__(self, config: PretrainedConfig) -> None:
        self.config: Any = config
        self.name: str = config.model_type
        vision = self.config.vision_config
        self.per_tile = (vision.image_size // vision.patch_size) ** 2 // self.config.scale_factor**2

    def language_model(self, model: PreTrainedModel) -> nn.Module:
        return model.get_submodule("model.text_model")

    def vision_modules(self, model: PreTrainedModel) -> dict[str, nn.Module]:
        return {name: model.get_submodule(name) for name in ("model.vision_model", "model.connector")}

    def embed(
        self,
        model: PreTrainedModel,
        ids: Tensor,
        slices: Sequence[MediaSlice],
        *,
        always: bool = False,
        memo: FeatureMemo | None = None,
    ) -> Embedded:
        embeds = model.get_input_embeddings()(ids)
        if slices:
            return Embedded(place(slices, lambda media: self._features(model, media), memo).into(embeds))
        if always:
            size = self.config.vision_config.image_size
            features = self._tiles(model, torch.zeros(1, 3, size, size))
            return Embedded(embeds + features[:0].sum().to(embeds.dtype))
        return Embedded(embeds)

    def _features(self, model: PreTrainedModel, media: list[Media]) -> list[tuple[Tensor, ...]]:
        tiles = [item.tensors["pixel_values"][0] for item in media]
        features = self._tiles(model, torch.cat(tiles))
        return [(part.flatten(0, 1),) for part in features.split([len(part) for part in tiles])]

    def _tiles(self, model: PreTrainedModel, tiles: Tensor) -> Tensor:
        """[tiles, features, hidden]. Without the model's own search for padding, which drops a tile of zeros."""
        output = model.get_submodule("model.vision_model")(to_device([tiles], model), return_dict=True)
        return model.get_submodule("model.connector")(output.last_hidden_state)

    def model_arguments(self, media: Sequence[Media]) -> dict[str, Tensor]:
        return {"pixel_values": torch.cat([item.tensors["pixel_values"] for item in media], dim=1)} if media else {}

    def pictures(self, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> IdeficsPictures:
        return IdeficsPictures(self.config, self.per_tile, folder, overrides, tokenizer)


class SmolVLM(Idefics3):
    kinds: frozenset[MediaKind] = frozenset({"image", "video"})


class IdeficsPictures:
    """Videos are frames without tiles, each with its time."""

    def __init__(self, config: Any, per_tile: int, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> None:
        self.per_tile = per_tile
        self.token = cast("str", tokenizer.convert_ids_to_tokens(config.image_token_id))
        self.feature_ids: Mapping[MediaKind, int] = {"image": config.image_token_id, "video": config.image_token_id}
        video = getattr(tokenizer, "video_token", None) or "<video>"
        self.placeholders: Mapping[MediaKind, str] = {"image": self.token, "video": video}
        self.fps = float(overrides.get("fps") or ASSUMED_FPS)
        self.images = load_image_processor(folder, overrides)
        self.description = describe(self.images, fps=self.fps)

    def image(self, image: Image) -> Processed:
        inputs = self.images(images=[[image]], return_tensors="pt", return_row_col_info=True)
        text = self._prompt(inputs["rows"][0][0], inputs["cols"][0][0])
        return self._processed(text, inputs["pixel_values"])

    def image_pieces(self, width: int, height: int) -> tuple[str | int, ...] | None:
        return None

    def video(self, video: Video) -> Processed:
        if len(video.frames) > MAX_FRAMES:
            raise ValueError(f"it has {len(video.frames)} frames, the model takes at most {MAX_FRAMES}")
        size = dict(self.images.max_image_size)
        frames = [list(video.frames)]
        inputs = self.images(images=frames, return_tensors="pt", do_image_splitting=False, size=size)
        seconds = video.timestamps
        if seconds is None:
            seconds = [i / self.fps for i in range(len(video.frames))]
        text = processing_smolvlm.DEFAULT_VIDEO_INTRO.format(
            frame_count=in_words(len(seconds)), video_duration=str(datetime.timedelta(seconds=int(seconds[-1])))
        )
        for second in seconds:
            stamp = f"{int(second // 60):02d}:{int(second % 60):02d}"
            text += processing_smolvlm.FRAME_TIMESTAMP_MESSAGE.format(timestamp=stamp) + self._prompt(0, 0)
        return self._processed(text + processing_smolvlm.DEFAULT_MEDIA_OUTTRO, inputs["pixel_values"])

    def _prompt(self, rows: int, columns: int) -> str:
        """The text around tiles, with one token for each tile."""
        return processing_smolvlm.get_image_prompt_string(rows, columns, 1, FAKE, self.token, GLOBAL)

    def _processed(self, text: str, pixels: Tensor) -> Processed:
        return Processed(runs_between(text.split(self.token), self.per_tile), ({"pixel_values": pixels},))


def in_words(number: int) -> str:
    """A number below 1000 as English words, as the family writes how many frames a video has."""
    if number < 20:
        return SMALL[number]
    if number < 100:
        return TENS[number // 10] + (f"-{SMALL[number % 10]}" if number % 10 else "")
    rest = f" and {in_words(number % 100)}" if number % 100 else ""
    return f"{SMALL[number // 100]} hundred{rest}"
