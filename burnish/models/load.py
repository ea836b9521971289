"""Load models and tokenizers from a folder or a hub name; errors name the config key."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.constants import is_offline_mode
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging

from burnish.errors import UserError
from burnish.models import attention
from burnish.models.fourbit import is_packed
from burnish.models.parts import saved_buffers
from burnish.models.vision.family import vision_family
from burnish.models.vision.tower import with_stream_attention
from burnish.models.vision.values import token_classifier
from burnish.storage import MODEL_CONFIG, check_exists, local_path, model_folder
from burnish.untrusted import MAX_CONFIG_BYTES, read_json_object, read_text

# RoPE variants whose frequencies depend on the longest sequence of the batch: wrong for packed sequences.
BATCH_DEPENDENT_ROPE = ("longrope", "dynamic")
SCORE_HEADS = ("ForTokenClassification", "ForSequenceClassification")
# Any of these in a folder shows Megatron's checkpoint layout.
MEGATRON_FILES = ("latest_checkpointed_iteration.txt", "mp_rank_*", "release/mp_rank_*", "iter_*/mp_rank_*")

MAX_TOKENIZER_BYTES = 2**29
MODEL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors", "*.bin", "*.gguf")
SMALL_FILES = ("*config.json", "*index.json", "*.jinja")

# Tokenizer classes that are fully described by tokenizer.json.
PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


@dataclass(frozen=True)
class ModelSource:
    """Where to load a model from, and overrides of its config. `key` is the config key named in errors."""

    path: str
    key: str = "actor_rollout_ref.model.path"
    tokenizer_path: str | None = None
    override_config: dict[str, Any] = field(default_factory=dict)
    external_lib: tuple[str, ...] = ()
    trust_remote_code: bool = False
    config_path: str | None = None  # where the config is, if not beside the weights
    use_shm: bool = False  # read from a copy in shared memory
    random_seed: int | None = None  # of random weights, in place of those of the folder

    def checked_path(self) -> str:
        """The local path of the model (a copy, if remote), or its hub name; refuses a folder without a model."""
        path = Path(local_path(self.path, key=self.key)).expanduser()
        beside = ""
        if self.tokenizer_path and self.tokenizer_path != self.path:
            beside = f"; to start from the weights beside the tokenizer, {self.key}={self.tokenizer_path}"
        check_exists(self.path, key=self.key, more=beside)
        path = model_folder(path) or path
        if path.exists() and not (path / MODEL_CONFIG).is_file():
            problem = f"no {MODEL_CONFIG} found in the folder"
            if any(next(path.glob(pattern), None) is not None for pattern in MEGATRON_FILES):
                problem = "a Megatron checkpoint, which cannot be read: convert it to Hugging Face format"
            hint = f"{self.key}=/path/to/a/hugging-face/model{beside}"
            raise UserError(problem, key=self.key, value=self.path, hint=hint)
        check_model_files(path, self.key)
        if not self.use_shm:
            return str(path) if path.exists() else self.path
        return local_path(str(path) if path.exists() else self._downloaded(), key=self.key, use_shm=True)

    def _downloaded(self) -> str:
        """Download all files of a hub model."""
        try:
            return snapshot_download(self.path)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot download the model: {first_line(error)}", key=self.key, value=self.path) from error


def check_model_files(folder: Path, key: str) -> None:
    """Refuse a folder whose files would block transformers or fill the memory: no regular files, or far too large."""
    if not folder.is_dir():
        return
    for file in {file for pattern in MODEL_FILES for file in folder.glob(pattern)}:
        if not file.is_file():
            raise UserError(f"{file.name} is not a regular file", key=key, value=str(folder))
        small = any(file.match(pattern) for pattern in SMALL_FILES)
        limit = MAX_CONFIG_BYTES if small else MAX_TOKENIZER_BYTES if file.suffix in (".json", ".txt") else None
        if limit is not None and (size := file.stat().st_size) > limit:
            problem = f"{file.name} has {size:,} bytes, but such a file has at most {limit:,}"
            raise UserError(problem, key=key, value=str(folder))
    if (folder / MODEL_CONFIG).is_file():
        try:
            read_json_object(folder / MODEL_CONFIG)
        except UserError as error:
            raise UserError(error.problem, key=key, value=str(folder)) from error


def load_error(what: str, error: BaseException, *, key: str, value: str) -> UserError:
    """An error of transformers for the user. One about the model's own code names the key that allows it."""
    if "trust_remote_code" not in str(error):
        problem = f"cannot load {what}: {first_line(error)}"
        if "://" in value or Path(value).expanduser().exists():
            return UserError(problem, key=key, value=value)
        offline = "; to download it, unset HF_HUB_OFFLINE" if is_offline_mode() else ""
        hint = f"{key}=/path/to/a/hugging-face/model{offline}"
        return UserError(f"no such folder here, and as a hub model: {problem}", key=key, value=value, hint=hint)
    is_flag = key.startswith("--")
    allow = "--trust-remote-code" if is_flag else f"{key.rpartition('.')[0]}.trust_remote_code=true".lstrip(".")
    problem = f"{what} needs Python code from its folder, which would run with all rights of this user"
    return UserError(problem, key=key, value=value, hint=f"{allow}, if you trust that code")


def cached_revision(name: str) -> str | None:
    """The revision of a hub model in the local cache; None if it is not cached."""
    try:
        file = try_to_load_from_cache(name, MODEL_CONFIG)
    except HFValidationError:
        return None
    return Path(file).parent.name if isinstance(file, str) else None


def load_generation_config(source: ModelSource) -> GenerationConfig:
    """The model's generation config, or one derived from its config."""
    config = load_config(source)
    try:
        return GenerationConfig.from_pretrained(source.checked_path())
    except OSError:
        return GenerationConfig.from_model_config(config)


def load_config(source: ModelSource) -> PretrainedConfig:
    """The model's config with the overrides applied (flat, or nested under `model_config` as Megatron users write)."""
    for library in source.external_lib:
        try:
            importlib.import_module(library)
        except ImportError as error:
            key = source.key.removesuffix("path") + "external_lib"
            raise UserError(f"cannot import the module: {error}", key=key, value=library) from error
    path = source.checked_path()
    if source.config_path:
        source_key = source.key.removesuffix("path") + "hf_config_path"
        check_exists(source.config_path, key=source_key)
        path = str(Path(local_path(source.config_path, key=source_key)).expanduser())
        check_model_files(Path(path), source_key)
    else:
        source_key = source.key
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=source.trust_remote_code)
    except Exception as error:  # an odd config makes transformers raise anything
        raise load_error("the model's config", error, key=source_key, value=path) from error
    overrides = flat_overrides(source.override_config)
    overrides.pop("attn_implementation", None)  # handled by packed_function
    known = set(config.to_dict())
    for name, value in overrides.items():
        if name not in known:
            key = source.key.removesuffix("path") + f"override_config.{name}"
            raise UserError("unknown entry of the model's config", key=key, value=value, allowed=sorted(known))
        _put(config, name, value, source)
    return config


def _put(config: PretrainedConfig, name: str, value: Any, source: ModelSource) -> None:
    """Set one entry; an int is converted where the config has a float."""
    if isinstance(value, int) and isinstance(getattr(config, name), float) and not isinstance(value, bool):
        value = float(value)
    try:
        setattr(config, name, value)
    except StrictDataclassError as error:
        key = source.key.removesuffix("path") + f"override_config.{name}"
        raise UserError(
            f"invalid value for the model's config: {str(error).splitlines()[-1].strip()}", key=key, value=value
        ) from error


def flat_overrides(override_config: dict[str, Any]) -> dict[str, Any]:
    """The overrides with Megatron's nested `model_config` merged into the top level."""
    overrides = {**override_config}
    overrides.update(overrides.pop("model_config", None) or {})
    return overrides


def load_tokenizer(
    path: str, *, trust_remote_code: bool = False, key: str, chat_template: str | None = None
) -> PreTrainedTokenizerBase:
    """Load a tokenizer; a missing pad token becomes EOS. `chat_template` (text or a file) replaces its own."""
    check_exists(path, key=key)
    folder = Path(local_path(path, key=key)).expanduser()
    local = str(model_folder(folder) or folder)
    check_model_files(Path(local), key)
    try:
        saved_as = get_tokenizer_config(local).get("tokenizer_class")
        # AutoTokenizer picks the class of the model family, which would override the rules of a custom tokenizer.
        family = PreTrainedTokenizerFast if saved_as in PLAIN_TOKENIZERS else AutoTokenizer
        tokenizer = family.from_pretrained(local, trust_remote_code=trust_remote_code)
    except Exception as error:  # an odd tokenizer makes transformers raise anything
        raise load_error("the tokenizer", error, key=key, value=path) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if chat_template is not None:
        tokenizer.chat_template = read_chat_template(chat_template)
    return tokenizer


def read_chat_template(template: str, key: str = "actor_rollout_ref.model.custom_chat_template") -> str:
    """Jinja text unchanged, or the contents of a file."""
    if "{%" in template or "{{" in template:
        return template
    path = Path(local_path(template, key=key)).expanduser()
    if not path.is_file():
        hint = f"{key}=/path/to/template.jinja"
        raise UserError("neither Jinja text nor an existing file", key=key, value=template, hint=hint)
    return read_text(path)


def load_causal_lm(
    source: ModelSource, attn: str | None, dtype: torch.dtype, *, empty: bool = False, **kwargs: Any
) -> PreTrainedModel:
    """Load a language model with this attention function (None: the family's default).

    `empty` skips loading weights, for a model that gets them by weight sync. Other arguments (`quantization_config`,
    `device_map`) go to transformers.
    """
    config = load_config(source)
    for rope in rope_types(config):
        if rope in BATCH_DEPENDENT_ROPE:
            raise UserError(
                f"RoPE of type {rope!r} depends on the longest sequence of a batch", key=source.key, value=source.path
            )
    return _build(model_class(config, key=source.key), source, config, attn, dtype, empty=empty, **kwargs)


def model_class(config: PretrainedConfig, *, values: bool = False, key: str = "actor_rollout_ref.model.path") -> Any:
    """What builds and loads the language model of this config, or its value model."""
    if vision_family(config, key) is None:
        return AutoModelForTokenClassification if values else AutoModelForCausalLM
    return token_classifier(config) if values else AutoModelForImageTextToText


def rope_types(config: PretrainedConfig) -> set[str]:
    """RoPE types of the model: one for all layers, or one per layer type (Gemma 3)."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    per_kind = [entry for entry in parameters.values() if isinstance(entry, dict)]
    return {entry.get("rope_type", "default") for entry in per_kind or [parameters]}


def load_value_model(
    source: ModelSource, dtype: torch.dtype, attn: str | None = attention.PACKED, **kwargs: Any
) -> PreTrainedModel:
    """Load a critic: the backbone with a one-label token classification head, without dropout."""
    config = load_config(source)
    is_new = not _has_score_head(config)
    config.num_labels = 1
    for name in ("classifier_dropout", "hidden_dropout", "summary_dropout_prob"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    config.classifier_dropout = 0.0
    model = _build(model_class(config, values=True, key=source.key), source, config, attn, dtype, **kwargs)
    if is_new:
        # A new value head starts at zero, so that it predicts 0 until it is trained.
        score = cast("nn.Linear", model.score)
        nn.init.zeros_(score.weight)
        if score.bias is not None:
            nn.init.zeros_(score.bias)
    return model


def _has_score_head(config: PretrainedConfig) -> bool:
    """Whether the checkpoint has a trained score head (critic or reward model) to continue from."""
    return any(name.endswith(SCORE_HEADS) for name in config.architectures or ())


def _build(
    family: type,
    source: ModelSource,
    config: PretrainedConfig,
    attn: str | None,
    dtype: torch.dtype,
    *,
    empty: bool = False,
    **kwargs: Any,
) -> PreTrainedModel:
    attention.register()
    implementation = for_language_model(config, attn or _default_attention(config))
    kwargs = {
        "attn_implementation": implementation,
        "dtype": dtype,
        "trust_remote_code": source.trust_remote_code,
        **kwargs,
    }
    if source.random_seed is not None and not empty:
        return with_stream_attention(random_model(family, source, config, **kwargs))
    if empty:
        return with_stream_attention(_with_wide_buffers(family.from_config(config, **kwargs)))
    try:
        with quiet_transformers():
            model, report = family.from_pretrained(
                source.checked_path(), config=config, output_loading_info=True, **kwargs
            )
    except (OSError, ValueError) as error:
        raise load_error("the model", error, key=source.key, value=source.path) from error
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("score."))
    if missing and vision_family(config) is not None:
        # Names of weights differ between classes and versions; a tower with fresh weights would still train.
        problem = f"the files lack weights: {', '.join(missing[:3])}{' ...' if missing[3:] else ''}"
        raise UserError(problem, key=source.key, value=source.path)
    return with_stream_attention(align_weights(model))


def random_model(
    family: Any, source: ModelSource, config: PretrainedConfig, *, dtype: torch.dtype, **kwargs: Any
) -> PreTrainedModel:
    """A model with random weights, which depend on the source's seed and not on the dtype."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cast(int, source.random_seed))
        model = family.from_config(config, dtype=torch.float32, **kwargs)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    if model.can_generate():
        model.generation_config = load_generation_config(source)
    return model


def _with_wide_buffers(model: PreTrainedModel) -> PreTrainedModel:
    """Buffers that a family loads as float32 whatever the dtype of the rest: they decide which experts are chosen."""
    wide = tuple(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for name, buffer in saved_buffers(model):
        if buffer.is_floating_point() and any(part in wide for part in name.split(".")):
            buffer.data = buffer.data.float()
    return model


def for_language_model(config: PretrainedConfig, attn: str | None) -> str | dict[str, str] | None:
    """The vision tower keeps transformers' attention: ours is causal."""
    family = vision_family(config)
    if attn is None or family is None:
        return attn
    tower = "eager" if attn == attention.PACKED_EAGER else "sdpa"
    return {"": tower, "vision_config": tower, "text_config": attn}


def _default_attention(config: PretrainedConfig) -> str | None:
    """None (transformers' choice), except for soft-capped attention, which transformers before 5.21 got wrong."""
    return "eager" if getattr(config.get_text_config(), "attn_logit_softcapping", None) else None


def align_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Align CPU weights to 64 bytes. Memory-mapped weights start anywhere, and the last bit of a matrix product depends
    on alignment; aligned, equal weights give equal results whichever file they came from."""
    for parameter in model.parameters():
        if parameter.device.type == "cpu" and parameter.data_ptr() % 64 and not is_packed(parameter):
            parameter.data = parameter.data.clone()
    return model


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence progress bars and the report on missing weights (a new value head); real problems are raised."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """First line of an exception's message."""
    return (str(error).strip() or type(error).__name__).split("\n")[0]
