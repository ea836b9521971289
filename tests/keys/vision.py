"""Rows of keys about images and videos, in runs of a tiny vision-language model."""

from . import observe as see
from .row import Row


def seeing(name):
    """A run of the vision model on one of its files."""
    return (
        lambda kit: f"actor_rollout_ref.model.path={kit.vision_model}",
        lambda kit: f"data.train_files={kit.vision_file(name)}",
        "data.max_prompt_length=64",
    )


ROWS = [
    Row("data.image_key", "others", see.media_digests, seeing("pictures")),
    Row("data.video_key", "films", see.num_media, (*seeing("films"), "data.image_key=none"), refused_without=True),
    Row("data.invalid_media", "drop", see.num_train, seeing("corrupt"), expected=4, refused_without=True),
    Row(
        "data.max_images_per_prompt",
        "1",
        see.num_train,
        (*seeing("several"), "data.invalid_media=drop"),
        expected=4,
    ),
    Row("data.mm_processor_kwargs", "{min_pixels:3136}", see.media_tokens, seeing("pictures"), expected=[4] * 4),
    Row(
        "actor_rollout_ref.actor.freeze_vision_tower",
        "true",
        see.tower_trains,
        seeing("pictures"),
        expected=False,
    ),
]
