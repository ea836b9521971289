"""Load models and tokenizers from a folder or a hub name; errors name the config key."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
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
from burnish.storage import local_path

# RoPE variants whose frequencies depend on the longest sequence of the batch: wrong for packed sequences.
BATCH_DEPENDENT_ROPE = ("longrope", "dynamic")
SCORE_HEADS = ("ForTokenClassification", "ForSequenceClassification")


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

    def checked_path(self) -> str:
        """The local path of the model (a copy, if remote), or its hub name; refuses a folder without a model."""
        path = Path(local_path(self.path, key=self.key)).expanduser()
        looks_local = self.path.startswith(("/", "~", ".")) or path.exists()
        if looks_local and not (path / "config.json").is_file():
            problem = "no such folder" if not path.exists() else "no config.json found in the folder"
            raise UserError(problem, key=self.key, value=self.path, hint=f"{self.key}=/path/to/a/hugging-face/model")
        if not self.use_shm:
            return str(path) if path.exists() else self.path
        return local_path(str(path) if path.exists() else self._downloaded(), key=self.key, use_shm=True)

    def _downloaded(self) -> str:
        """Download all files of a hub model."""
        try:
            return snapshot_download(self.path)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot download the model: {first_line(error)}", key=self.key, value=self.path) from error


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
        path = str(Path(local_path(source.config_path, key=source_key)).expanduser())
    else:
        source_key = source.key
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=source.trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the model's config: {first_line(error)}", key=source_key, value=path) from error
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
    local = str(Path(local_path(path, key=key)).expanduser())
    try:
        saved_as = get_tokenizer_config(local).get("tokenizer_class")
        # AutoTokenizer picks the class of the model family, which would override the rules of a custom tokenizer.
        family = PreTrainedTokenizerFast if saved_as in PLAIN_TOKENIZERS else AutoTokenizer
        tokenizer = family.from_pretrained(local, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the tokenizer: {first_line(error)}", key=key, value=path) from error
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
    return path.read_text(encoding="utf-8")


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
    return _build(AutoModelForCausalLM, source, config, attn, dtype, empty=empty, **kwargs)


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
    model = _build(AutoModelForTokenClassification, source, config, attn, dtype, **kwargs)
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
    attn = attn or _default_attention(config)
    kwargs = {"attn_implementation": attn, "dtype": dtype, "trust_remote_code": source.trust_remote_code, **kwargs}
    if empty:
        return family.from_config(config, **kwargs)
    try:
        with quiet_transformers():
            return align_weights(family.from_pretrained(source.checked_path(), config=config, **kwargs))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the model: {first_line(error)}", key=source.key, value=source.path) from error


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
