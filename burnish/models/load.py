"""Models and tokenizers from a folder or a hub name, with errors in the user's words."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

# RoPE variants that choose their frequencies from the longest row of the whole batch: wrong for packed or mixed rows.
BATCH_DEPENDENT_ROPE = ("longrope", "dynamic")
SCORE_HEADS = ("ForTokenClassification", "ForSequenceClassification")


# A tokenizer saved under these names is what its tokenizer.json says, and nothing more.
PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from and what is changed about it. `key` is the config key to name in errors."""

    path: str
    key: str = "actor_rollout_ref.model.path"
    tokenizer_path: str | None = None
    override_config: dict[str, Any] = field(default_factory=dict)
    external_lib: tuple[str, ...] = ()
    trust_remote_code: bool = False
    config_path: str | None = None  # where the config is, if not beside the weights
    use_shm: bool = False  # read from a copy in shared memory

    def checked_path(self) -> str:
        """The path, once it is known to hold a model or may be a hub name; of a remote one, where its copy lies."""
        path = Path(local_path(self.path, key=self.key)).expanduser()
        looks_local = self.path.startswith(("/", "~", ".")) or path.exists()
        if looks_local and not (path / "config.json").is_file():
            problem = "no such folder" if not path.exists() else "the folder holds no config.json, so it is no model"
            raise UserError(problem, key=self.key, value=self.path, hint=f"{self.key}=/path/to/a/hugging-face/model")
        if not self.use_shm:
            return str(path) if path.exists() else self.path
        return local_path(str(path) if path.exists() else self._downloaded(), key=self.key, use_shm=True)

    def _downloaded(self) -> str:
        """All files of a model of the hub."""
        try:
            return snapshot_download(self.path)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot fetch it: {first_line(error)}", key=self.key, value=self.path) from error


def load_generation_config(source: ModelSource) -> GenerationConfig:
    """The model's own, or what its config says where it has none."""
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
            raise UserError(f"cannot import it: {error}", key=key, value=library) from error
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
    overrides.pop("attn_implementation", None)  # not the model's affair: it chooses the packed function's product
    known = set(config.to_dict())
    for name, value in overrides.items():
        if name not in known:
            key = source.key.removesuffix("path") + f"override_config.{name}"
            raise UserError("the model's config has no such entry", key=key, value=value, allowed=sorted(known))
        _put(config, name, value, source)
    return config


def _put(config: PretrainedConfig, name: str, value: Any, source: ModelSource) -> None:
    """Set one entry; a whole number is fine where the config wants a float."""
    if isinstance(value, int) and isinstance(getattr(config, name), float) and not isinstance(value, bool):
        value = float(value)
    try:
        setattr(config, name, value)
    except StrictDataclassError as error:
        key = source.key.removesuffix("path") + f"override_config.{name}"
        raise UserError(
            f"the model's config refuses it: {str(error).splitlines()[-1].strip()}", key=key, value=value
        ) from error


def flat_overrides(override_config: dict[str, Any]) -> dict[str, Any]:
    """The overrides without the level `model_config` that Megatron users write."""
    overrides = {**override_config}
    overrides.update(overrides.pop("model_config", None) or {})
    return overrides


def load_tokenizer(
    path: str, *, trust_remote_code: bool = False, key: str, chat_template: str | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer; a missing pad token becomes the EOS token. `chat_template` (text or a file) replaces its own."""
    where = str(Path(local_path(path, key=key)).expanduser())
    try:
        saved_as = get_tokenizer_config(where).get("tokenizer_class")
        # AutoTokenizer goes by the model beside the tokenizer, and would replace a custom one's rules by the family's.
        family = PreTrainedTokenizerFast if saved_as in PLAIN_TOKENIZERS else AutoTokenizer
        tokenizer = family.from_pretrained(where, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the tokenizer: {first_line(error)}", key=key, value=path) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if chat_template is not None:
        tokenizer.chat_template = read_chat_template(chat_template)
    return tokenizer


def read_chat_template(given: str, key: str = "actor_rollout_ref.model.custom_chat_template") -> str:
    """Jinja text as it is, or the text of a file of that name."""
    if "{%" in given or "{{" in given:
        return given
    path = Path(local_path(given, key=key)).expanduser()
    if not path.is_file():
        hint = f"{key}=/path/to/template.jinja"
        raise UserError("neither Jinja text nor a file", key=key, value=given, hint=hint)
    return path.read_text(encoding="utf-8")


def load_causal_lm(
    source: ModelSource, attn: str | None, dtype: torch.dtype, *, empty: bool = False, **how: Any
) -> PreTrainedModel:
    """The language model with this attention function (None: the family's own); `empty` awaits a weight stream.

    What else there is to say about loading (`quantization_config`, `device_map`) is handed on to transformers.
    """
    config = load_config(source)
    for rope in rope_types(config):
        if rope in BATCH_DEPENDENT_ROPE:
            raise UserError(
                f"RoPE of type {rope!r} depends on the longest row of a batch", key=source.key, value=source.path
            )
    return _build(AutoModelForCausalLM, source, config, attn, dtype, empty=empty, **how)


def rope_types(config: PretrainedConfig) -> set[str]:
    """One for all layers, or one per kind of layer (Gemma 3)."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    per_kind = [entry for entry in parameters.values() if isinstance(entry, dict)]
    return {entry.get("rope_type", "default") for entry in per_kind or [parameters]}


def load_value_model(
    source: ModelSource, dtype: torch.dtype, attn: str | None = attention.PACKED, **how: Any
) -> PreTrainedModel:
    """The critic: the same backbone with a one-label token classification head, dropout off."""
    config = load_config(source)
    is_new = not _has_score_head(config)
    config.num_labels = 1
    for name in ("classifier_dropout", "hidden_dropout", "summary_dropout_prob"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    config.classifier_dropout = 0.0
    model = _build(AutoModelForTokenClassification, source, config, attn, dtype, **how)
    if is_new:
        # A fresh value head that starts at zero predicts no value until it has learned one.
        nn.init.zeros_(model.score.weight)
        if model.score.bias is not None:
            nn.init.zeros_(model.score.bias)
    return model


def _has_score_head(config: PretrainedConfig) -> bool:
    """Was the checkpoint saved by a critic or a reward model, whose trained head a critic goes on with?"""
    return any(name.endswith(SCORE_HEADS) for name in config.architectures or ())


def _build(
    family: type,
    source: ModelSource,
    config: PretrainedConfig,
    attn: str | None,
    dtype: torch.dtype,
    *,
    empty: bool = False,
    **more: Any,
) -> PreTrainedModel:
    attention.register()
    attn = attn or _own_attention(config)
    how = {"attn_implementation": attn, "dtype": dtype, "trust_remote_code": source.trust_remote_code, **more}
    if empty:
        return family.from_config(config, **how)
    try:
        with quiet_transformers():
            return aligned(family.from_pretrained(source.checked_path(), config=config, **how))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the model: {first_line(error)}", key=source.key, value=source.path) from error


def _own_attention(config: PretrainedConfig) -> str | None:
    """Transformers' choice for a family, which before 5.21 left out the cap of Gemma 2's attention."""
    return "eager" if getattr(config.get_text_config(), "attn_logit_softcapping", None) else None


def aligned(model: PreTrainedModel) -> PreTrainedModel:
    """Weights where the CPU's library likes them: a file mapped into memory starts anywhere, and the last bit of a
    product depends on that. So equal weights give equal numbers, whichever file they came from."""
    for parameter in model.parameters():
        if parameter.device.type == "cpu" and parameter.data_ptr() % 64 and not is_packed(parameter):
            parameter.data = parameter.data.clone()
    return model


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No bars, and no report on a value head that is new on purpose; real problems are raised, not printed."""
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
    """An exception's message without the advice that follows it."""
    return (str(error).strip() or type(error).__name__).split("\n")[0]
