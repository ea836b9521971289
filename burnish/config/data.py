"""data.*: files, columns, lengths, order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from burnish.config.fields import at_least, files, one_of, section, setting
from burnish.config.names import HANDLERS, INVALID_MEDIA, PROMPT_TYPES, TRUNCATIONS


@dataclass
class CustomClassConfig:
    """A user-defined class."""

    path: str | None = None
    """Python file (or pkg://module) that holds the class; null uses the built-in one."""

    name: str | None = None
    """Name of the class in that file."""


@dataclass
class SamplerConfig:
    """A user-defined sampler."""

    class_path: str | None = None
    """Python file (or pkg://module) that holds the sampler class; null uses the built-in sampler."""

    class_name: str | None = None
    """Name of the sampler class in that file."""


@dataclass
class HandlerConfig:
    """Preprocessing of raw rows, compatible with MindSpeed RL."""

    name: str | None = one_of(None, HANDLERS)
    """Handler that converts raw rows to prompts and answers (MindSpeed RL: handler_name); null does not convert."""

    map_keys: dict[str, str] = setting({})
    """Columns of the parts prompt, query, response and system; "" omits a part."""

    prompt_type: str = one_of("default", PROMPT_TYPES)
    """Form of the prompt."""


@dataclass
class DataConfig:
    """Prompts: files, columns, lengths, order."""

    train_files: list[str] = files(verl=["~/data/rlhf/gsm8k/train.parquet"])
    """Training data, read in this order; one name, a list, or names separated by commas.

    A name is a file (.parquet, .jsonl, .json, .csv, .arrow), a folder written by save_to_disk, the prefix of packed
    .bin/.idx files, or a Hugging Face dataset (name, or name@folder). Paths may be remote: s3://, hdfs://, ...
    """

    val_files: list[str] = files(verl=["~/data/rlhf/gsm8k/test.parquet"])
    """Validation data, in the same form as train_files; empty disables validation."""

    train_split: str = "train"
    """Split to train on, for datasets with splits; plain files have none."""

    val_split: str = "test"
    """Split to validate on, for datasets with splits; plain files have none."""

    train_probs: list[float] | None = setting(None, low=0, open_low=True)
    """Mix the training datasets with these weights until each is exhausted once; null reads them in order."""

    train_max_samples: int = at_least(-1, -1)
    """Use at most this many training rows; -1 uses all. With shuffle a random subset, otherwise the first rows."""

    val_max_samples: int = at_least(-1, -1)
    """Use at most this many validation rows; -1 uses all."""

    prompt_key: str = "prompt"
    """Column with the prompt: a list of {role, content} messages, or text (one user message)."""

    label_key: str | None = None
    """Column with the ground truth of rows without reward_model.ground_truth."""

    additional_keys: list[str] = setting([], comma_separated=True)
    """Further fields of packed .bin/.idx files; labels is the answer, others are put into extra_info."""

    handler: HandlerConfig = section(HandlerConfig)
    """Preprocessing of raw rows, compatible with MindSpeed RL."""

    reward_fn_key: str = "data_source"
    """Column with the data source, which selects the built-in reward and groups the validation metrics.

    Without a column data_source, the name of the dataset is used.
    """

    max_prompt_length: int = at_least(512, 1)
    """Maximum prompt length in tokens, including the chat template; see filter_overlong_prompts and truncation."""

    max_response_length: int = at_least(512, 1)
    """Maximum response length in tokens. In multi-turn, the budget of the whole conversation after the prompt."""

    train_batch_size: int = at_least(1024, 0)
    """Prompts per step; responses per step are this times rollout.n. An incomplete last batch of an epoch is
    dropped."""

    gen_batch_size: int | None = at_least(None, 1)
    """Prompts per generation round if groups are filtered (algorithm.filter_groups); null means train_batch_size."""

    val_batch_size: int | None = at_least(None, 1)
    """Prompts per validation batch; null uses one batch."""

    tool_config_path: str | None = II("actor_rollout_ref.rollout.multi_turn.tool_config_path")
    """YAML file with the tools whose schemas the prompts show; follows the rollout's tools. Set alone, it shows tools
    that are not executed, so that rewards can judge the calls."""

    return_raw_input_ids: bool = False
    """Add the column raw_input_ids: the prompt tokenized without the chat template."""

    return_raw_chat: bool = setting(True, verl=False)
    """Keep the prompt's messages in the batch as raw_prompt."""

    return_full_prompt: bool = False
    """Add the column full_prompts: the prompt as text, after the chat template."""

    shuffle: bool = True
    """Reshuffle the training rows each epoch."""

    seed: int | None = None
    """Seed of the training order; null uses trainer.seed."""

    validation_shuffle: bool = False
    """Shuffle the validation rows."""

    dataloader_num_workers: int = at_least(8, 0)
    """Worker processes of verl's data loader."""

    filter_overlong_prompts: bool = False
    """Drop rows whose prompt, after templating, exceeds max_prompt_length; the run reports how many."""

    filter_overlong_prompts_workers: int | None = at_least(1, 1)
    """Processes that tokenize prompts for the filter; null means one."""

    truncation: str = one_of("error", TRUNCATIONS)
    """What to do with prompts longer than max_prompt_length that were not filtered out."""

    image_key: str | None = "images"
    """Column with a row's images, in the order of <image> in the prompt: bytes, paths, URLs, base64, or the mappings of
    Hugging Face datasets. Relative paths start at the data file's folder. null reads none."""

    video_key: str | None = "videos"
    """Column with a row's videos, in the order of <video> in the prompt: files like those of images, or lists of
    frames; a mapping may also set fps, nframes, max_frames, video_start, video_end and max_pixels. null reads none."""

    invalid_media: str = one_of("error", INVALID_MEDIA)
    """What to do with rows whose images or videos are missing, corrupt, too large or not as many as in the prompt."""

    max_images_per_prompt: int | None = at_least(None, 1)
    """Maximum images of a prompt; a row with more is handled as invalid_media says. null means no limit."""

    image_patch_size: int = at_least(14, 1)
    """Patch size to which verl's loader aligns image sizes."""

    return_multi_modal_inputs: bool = True
    """Include the processor's image and video tensors in verl's batch."""

    mm_processor_kwargs: dict[str, Any] = setting({})
    """Arguments of the model's image and video processor, for instance {max_pixels: 200704}."""

    tokenizer: str | None = None
    """Path or name of the tokenizer; null uses the model's."""

    trust_remote_code: bool = False
    """Allow the tokenizer's repository to run its own Python code."""

    use_shm: bool = False
    """Copy the data files to shared memory before reading them."""

    custom_cls: CustomClassConfig = section(CustomClassConfig)
    """A user-defined dataset class."""

    sampler: SamplerConfig = section(SamplerConfig)
    """A user-defined sampler, for instance a curriculum."""

    datagen: CustomClassConfig = section(CustomClassConfig)
    """A class that generates new rows during training."""

    apply_chat_template: bool = True
    """Apply the chat template; false uses text prompts unchanged."""

    input_template: str | None = None
    """Text template with {} for the prompt, for apply_chat_template=false."""

    apply_chat_template_kwargs: dict[str, Any] = setting({})
    """Arguments of the chat template, for instance enable_thinking: false."""
