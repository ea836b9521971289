"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: pictures of any size become a grid of patches, with mrope positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from burnish.media import Video
from burnish.models.model_input import Media, MediaKind
from burnish.models.vision.features import Embedded, FeatureMemo, MediaSlice, Placed, place, to_device
from burnish.models.vision.mrope import GRIDS, SECONDS, MropePositions
from burnish.models.vision.pictures import MAX_FRAMES, Processed, describe, load_frame_processor, load_image_processor

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PretrainedConfig, PreTrainedModel

PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}
ASSUMED_FPS = 2.0  # of frames without time stamps: the rate at which Qwen's own tools sample videos


class Qwen2VL:
    kinds: frozenset[MediaKind] = frozenset({"image", "video"})
    sees_whole_images = False
    changes_layers = False

    def __init__(self, config: PretrainedConfig) -> None:
        self.config: Any = config
        self.name: str = config.model_type
        self.merge: int = self.config.vision_config.spatial_merge_size
        self.positions = MropePositions(self.merge, self._tokens_per_second())

    def _tokens_per_second(self) -> float | None:
        return None

    def language_model(self, model: PreTrainedModel) -> nn.Module:
        return model.get_submodule("model.language_model")

    def vision_modules(self, model: PreTrainedModel) -> dict[str, nn.Module]:
        return {"model.visual": model.get_submodule("model.visual")}

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
            placed = place(slices, lambda media: self._features(model, media), memo)
            return Embedded(placed.into(embeds), self._arguments(placed, len(ids)))
        if always:
            return self._without_effect(embeds, self._features(model, [self._stand_in()])[0])
        return Embedded(embeds)

    def _features(self, model: PreTrainedModel, media: list[Media]) -> list[tuple[Tensor, ...]]:
        """Images and videos alike go through the tower in one call."""
        tower = model.get_submodule("model.visual")
        grids = torch.cat([item.tensors[GRIDS[item.kind]] for item in media])
        pixels = to_device([item.tensors[PIXELS[item.kind]] for item in media], model)
        output = tower(pixels, grid_thw=grids.to(pixels.device), return_dict=True)
        sizes = (grids.prod(-1) // self.merge**2).tolist()
        layers = (output.pooler_output, *(getattr(output, "deepstack_features", None) or ()))
        return list(zip(*(layer.split(sizes) for layer in layers), strict=True))

    def _arguments(self, placed: Placed, length: int) -> dict[str, Any]:
        return {}

    def _without_effect(self, embeds: Tensor, layers: tuple[Tensor, ...]) -> Embedded:
        """Everything the tower computed has a gradient, of zero."""
        return Embedded(embeds + sum(layer[:0].sum() for layer in layers).to(embeds.dtype))  # pyright: ignore[reportAttributeAccessIssue]

    def _stand_in(self) -> Media:
        """The smallest picture."""
        vision = self.config.vision_config
        channels = getattr(vision, "in_channels", None) or vision.in_chans
        width = channels * vision.temporal_patch_size * vision.patch_size**2
        grid = torch.tensor([[1, self.merge, self.merge]])
        pixels = torch.zeros(self.merge**2, width)
        return Media("image", b"", 0, 1, {GRIDS["image"]: grid, PIXELS["image"]: pixels})

    def model_arguments(self, media: Sequence[Media]) -> dict[str, Tensor]:
        names = sorted({name for item in media for name in item.tensors})
        return {name: torch.cat([item.tensors[name] for item in media if name in item.tensors]) for name in names}

    def pictures(self, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> QwenPictures:
        return QwenPictures(self.config, folder, overrides, tokenizer)


class Qwen25VL(Qwen2VL):
    def _tokens_per_second(self) -> float | None:
        return self.config.vision_config.tokens_per_second

    def pictures(self, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> QwenPictures:
        return Qwen25Pictures(self.config, folder, overrides, tokenizer)


class Qwen3VL(Qwen2VL):
    """Features of deeper layers of the tower are added after the first layers of the language model (deepstack)."""

    changes_layers = True

    def _arguments(self, placed: Placed, length: int) -> dict[str, Any]:
        mask = torch.zeros(1, length, dtype=torch.bool, device=placed.where.device)
        mask[0, placed.where] = True
        return {"visual_pos_masks": mask, "deepstack_visual_embeds": list(placed.features[1:])}

    def pictures(self, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> QwenPictures:
        return Qwen3Pictures(self.config, folder, overrides, tokenizer)


class QwenPictures:
    """Images through the checkpoint's processor; videos frame by frame, joined in time."""

    def __init__(self, config: Any, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> None:
        self.merge: int = config.vision_config.spatial_merge_size
        self.feature_ids: Mapping[MediaKind, int] = {"image": config.image_token_id, "video": config.video_token_id}
        self.placeholders: dict[MediaKind, str] = {
            kind: cast("str", tokenizer.convert_ids_to_tokens(token)) for kind, token in self.feature_ids.items()
        }
        self.fps = float(overrides.get("fps") or ASSUMED_FPS)
        self.images = load_image_processor(folder, overrides)
        self.videos = load_frame_processor(folder, overrides)
        self.together: int = self.videos.temporal_patch_size  # frames of one moment
        self.description = describe(self.images, self.videos, fps=self.fps)

    def image(self, image: Image) -> Processed:
        inputs = self.images(images=[image], return_tensors="pt")
        grid = inputs["image_grid_thw"]
        tensors = {PIXELS["image"]: inputs["pixel_values"], GRIDS["image"]: grid}
        return Processed((int(grid.prod()) // self.merge**2,), (tensors,))

    def image_pieces(self, width: int, height: int) -> tuple[str | int, ...] | None:
        return (self.images.get_number_of_image_patches(height, width) // self.merge**2,)

    def video(self, video: Video) -> Processed:
        if len(video.frames) > MAX_FRAMES:
            raise ValueError(f"it has {len(video.frames)} frames, the model takes at most {MAX_FRAMES}")
        frames = list(video.frames)
        frames += frames[-1:] * (-len(frames) % self.together)
        inputs = self.videos(images=frames, return_tensors="pt", size=self._frame_size(len(frames)))
        (_, height, width) = inputs["image_grid_thw"][0].tolist()
        # A patch of an image holds the same pixels for each frame of a moment: take the frames' own.
        channels = 3
        pixels = inputs["pixel_values"].unflatten(1, (channels, self.together, -1))
        moments = pixels[:, :, 0].unflatten(0, (len(frames) // self.together, self.together, height * width))
        joined = moments.permute(0, 2, 3, 1, 4).flatten(2).flatten(0, 1)
        grid = torch.tensor([[len(frames) // self.together, height, width]])
        tensors = {PIXELS["video"]: joined.contiguous(), GRIDS["video"]: grid, **self._timing(video)}
        return Processed(self._video_pieces(video, grid), (tensors,))

    def _frame_size(self, num_frames: int) -> dict[str, int]:
        """The least and the most pixels of a frame."""
        return dict(self.videos.size)

    def _timing(self, video: Video) -> dict[str, Tensor]:
        return {}

    def _video_pieces(self, video: Video, grid: Tensor) -> tuple[str | int, ...]:
        return (int(grid.prod()) // self.merge**2,)

    def _seconds(self, video: Video) -> list[float]:
        """When each frame was taken, with the last repeated to fill its moment."""
        stamps = video.timestamps
        seconds = [i / self.fps for i in range(len(video.frames))] if stamps is None else list(stamps)
        return seconds + seconds[-1:] * (-len(seconds) % self.together)


class Qwen25Pictures(QwenPictures):
    def _timing(self, video: Video) -> dict[str, Tensor]:
        """Seconds from one moment to the next, which scale the positions in time."""
        seconds = self._seconds(video)[: len(video.frames)]
        span = seconds[-1] - seconds[0]
        per_frame = span / (len(seconds) - 1) if span > 0 else 1 / self.fps
        return {SECONDS: torch.tensor([per_frame * self.together])}


class Qwen3Pictures(QwenPictures):
    """Each moment of a video is written with its time: <0.5 seconds>, then its tokens."""

    def __init__(self, config: Any, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> None:
        super().__init__(config, folder, overrides, tokenizer)
        ids = (config.vision_start_token_id, config.vision_end_token_id)
        self.start, self.end = cast("list[str]", tokenizer.convert_ids_to_tokens(ids))
        # The template's own marks around a video give way to those around each moment.
        self.placeholders["video"] = f"{self.start}{self.placeholders['video']}{self.end}"

    def _frame_size(self, num_frames: int) -> dict[str, int]:
        """The processor's limits are for all frames of a video."""
        size = dict(self.videos.size)
        return {name: max(1, size[name] // num_frames) for name in ("shortest_edge", "longest_edge")}

    def _video_pieces(self, video: Video, grid: Tensor) -> tuple[str | int, ...]:
        seconds, pieces = self._seconds(video), []
        per_moment = int(grid[0, 1:].prod()) // self.merge**2
        for moment in range(int(grid[0, 0])):
            taken = seconds[moment * self.together : (moment + 1) * self.together]
            stamp = f"<{(taken[0] + taken[-1]) / 2:.1f} seconds>{self.start}"
            pieces += [stamp if moment == 0 else f"{self.end}{stamp}", per_moment]
        return (*pieces, self.end)
