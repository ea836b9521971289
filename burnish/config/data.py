"""data.*: which files, which columns, how long, in what order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from burnish.config.fields import at_least, files, one_of, section, setting
from burnish.config.names import HANDLERS, PROMPT_TYPES, TRUNCATIONS


@dataclass
class CustomClassConfig:
    """A class of the user's own."""

    path: str | None = None
    """Python file (or pkg://module) that holds the class; null uses the built-in one."""

    name: str | None = None
    """Name of the class in that file."""


@dataclass
class SamplerConfig:
    """A sampler of the user's own."""

    class_path: str | None = None
    """Python file (or pkg://module) that holds the sampler class; null uses the built-in sampler."""

    class_name: str | None = None
    """Name of the sampler class in that file."""


@dataclass
class HandlerConfig:
    """Raw rows as MindSpeed RL's preprocessing reads them."""

    name: str | None = one_of(None, HANDLERS)
    """Handler that makes prompts and answers of raw rows (handler_name there); null reads rows as they are."""

    map_keys: dict[str, str] = setting({})
    """Columns of the parts prompt, query, response and system; "" leaves a part out."""

    prompt_type: str = one_of("default", PROMPT_TYPES)
    """Form of the prompt."""


@dataclass
class DataConfig:
    """Prompts: files, columns, lengths, order."""

    train_files: list[str] = files(verl=["~/data/rlhf/gsm8k/train.parquet"])
    """What to train on, read in this order; one name, a list, or names separated by commas.

    A name is a file (.parquet, .jsonl, .json, .csv, .arrow), a folder made by save_to_disk, the prefix of packed
    .bin/.idx files, or a Hugging Face dataset (name, or name@folder). Paths may be remote: s3://, hdfs://, ...
    """

    val_files: list[str] = files(verl=["~/data/rlhf/gsm8k/test.parquet"])
    """Validation files, given like train_files. Empty: no validation."""

    train_split: str = "train"
    """Split to train on, where a dataset has splits; plain files have none."""

    val_split: str = "test"
    """Split to validate with, where a dataset has splits; plain files have none."""

    train_probs: list[float] | None = setting(None, low=0, open_low=True)
    """Mix the training datasets with these weights, by seed, until each was used up once; null reads them in order."""

    train_max_samples: int = at_least(-1, -1)
    """Use at most this many training rows; -1 uses all. With shuffle they are drawn by seed, else the first."""

    val_max_samples: int = at_least(-1, -1)
    """Use at most this many validation rows; -1 uses all."""

    prompt_key: str = "prompt"
    """Column with the prompt: a list of {role, content} messages, or text (one user message)."""

    label_key: str | None = None
    """Column that is the ground truth of rows without reward_model.ground_truth."""

    additional_keys: list[str] = setting([], comma_separated=True)
    """Further fields of packed .bin/.idx files; labels is the answer, others go to extra_info."""

    handler: HandlerConfig = section(HandlerConfig)
    """Raw rows as MindSpeed RL's preprocessing reads them."""

    reward_fn_key: str = "data_source"
    """Column that names the data source; it picks the built-in reward and groups the validation metrics.

    Without a column data_source, the dataset's own name stands in.
    """

    max_prompt_length: int = at_least(512, 1)
    """Longest prompt in tokens, chat template included; for longer ones see filter_overlong_prompts and truncation."""

    max_response_length: int = at_least(512, 1)
    """Longest response in tokens. In multi-turn it is the budget of the whole conversation after the prompt."""

    train_batch_size: int = at_least(1024, 0)
    """Prompts per step; responses per step are this times rollout.n. A last incomplete batch of an epoch is dropped."""

    gen_batch_size: int | None = at_least(None, 1)
    """Prompts generated at once where groups are filtered (algorithm.filter_groups); null means train_batch_size."""

    val_batch_size: int | None = at_least(None, 1)
    """Prompts per validation batch; null sends the whole set at once."""

    tool_config_path: str | None = II("actor_rollout_ref.rollout.multi_turn.tool_config_path")
    """YAML of the tools whose schemas count into the prompt's length; follows the rollout's tools."""

    return_raw_input_ids: bool = False
    """Add the column raw_input_ids: the prompt tokenised without the chat template."""

    return_raw_chat: bool = setting(True, verl=False)
    """Keep the prompt's messages in the batch as raw_prompt."""

    return_full_prompt: bool = False
    """Add the column full_prompts: the prompt as text, after the chat template."""

    shuffle: bool = True
    """Shuffle the training rows anew each epoch, by seed and epoch."""

    seed: int | None = None
    """Seed of the training order; null uses trainer.seed."""

    validation_shuffle: bool = False
    """Shuffle the validation rows, by seed."""

    dataloader_num_workers: int = at_least(8, 0)
    """Worker processes of verl's data loader."""

    filter_overlong_prompts: bool = False
    """Drop rows whose templated prompt is longer than max_prompt_length; the run says how many."""

    filter_overlong_prompts_workers: int | None = at_least(1, 1)
    """Processes that measure prompts for the filter; null means one."""

    truncation: str = one_of("error", TRUNCATIONS)
    """What to do with a prompt longer than max_prompt_length that was not filtered out."""

    image_key: str = "images"
    """Column with a row's images."""

    video_key: str = "videos"
    """Column with a row's videos."""

    image_patch_size: int = at_least(14, 1)
    """Patch size by which the processor resizes images."""

    return_multi_modal_inputs: bool = True
    """Carry the processor's image and video tensors in the batch."""

    tokenizer: str | None = None
    """Path or name of the tokenizer; null takes the model's."""

    trust_remote_code: bool = False
    """Allow the tokenizer's repository to run its own Python code."""

    use_shm: bool = False
    """Copy the data files to shared memory and read them there."""

    custom_cls: CustomClassConfig = section(CustomClassConfig)
    """A dataset class of your own."""

    sampler: SamplerConfig = section(SamplerConfig)
    """A sampler of your own, for instance a curriculum."""

    datagen: CustomClassConfig = section(CustomClassConfig)
    """A class that makes new rows during training."""

    apply_chat_template: bool = True
    """Write prompts with the chat template; false takes a prompt of text as it is."""

    input_template: str | None = None
    """Text with {} for the prompt, where no chat template applies (apply_chat_template=false)."""

    apply_chat_template_kwargs: dict[str, Any] = setting({})
    """Arguments passed on to the tokenizer's chat template, for instance enable_thinking: false."""
