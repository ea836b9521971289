"""Reward models: a backbone and a linear head `score` on the last hidden state give one score per sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from burnish.errors import UserError
from burnish.models import attention
from burnish.models.load import (
    BATCH_DEPENDENT_ROPE,
    SCORE_HEADS,
    ModelSource,
    for_language_model,
    load_config,
    load_error,
    model_class,
    quiet_transformers,
    random_model,
    rope_types,
)
from burnish.models.parts import backbone
from burnish.models.vision.family import vision_family
from burnish.models.vision.tower import with_stream_attention

PROBE = 4  # tokens of the sequence on which the model's own score is compared with ours


def load_reward_model(source: ModelSource, dtype: torch.dtype) -> PreTrainedModel:
    """A sequence or token classifier with one label and a `score` head, frozen, with packed attention."""
    attention.register()
    config = load_config(source)
    is_classifier = any(name.endswith(SCORE_HEADS) for name in config.architectures or ())
    if is_classifier and config.num_labels != 1:
        raise _refusal(source, f"it has {config.num_labels} labels, expected 1")
    if rope_types(config) & set(BATCH_DEPENDENT_ROPE):
        raise _refusal(source, "its RoPE depends on the longest sequence of a batch")
    config.num_labels = 1
    by_token = any(name.endswith("ForTokenClassification") for name in config.architectures or ())
    by_sequence = vision_family(config, source.key) is None and not by_token
    family = AutoModelForSequenceClassification if by_sequence else model_class(config, values=True, key=source.key)
    attn = for_language_model(config, attention.PACKED)
    kwargs = {"dtype": dtype, "attn_implementation": attn, "trust_remote_code": source.trust_remote_code}
    if source.random_seed is not None:
        return with_stream_attention(random_model(family, source, config, **kwargs)).eval().requires_grad_(False)
    try:
        with quiet_transformers():
            model, report = family.from_pretrained(
                source.checked_path(), config=config, output_loading_info=True, **kwargs
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise load_error("the model", error, key=source.key, value=source.path) from error
    fresh = [name for name in report["missing_keys"] if name.startswith("score.") and name != "score.bias"]
    if fresh or not isinstance(getattr(model, "score", None), nn.Module):
        raise _refusal(source, "it has no trained score head")
    return with_stream_attention(model).eval().requires_grad_(False)


def last_token_scores(model: PreTrainedModel, inputs: dict, last: Tensor) -> Tensor:
    """Scores at the positions `last` of a packed token stream, float32 [rows]."""
    hidden = backbone(model)(**inputs).last_hidden_state[0, last]
    return model.score(hidden)[:, 0].float()  # pyright: ignore[reportCallIssue]


@torch.no_grad()
def check_score(model: PreTrainedModel, source: ModelSource, inputs_embeds: Tensor | None = None) -> None:
    """Refuse a model whose score is not that of a linear head on the last token.

    One without an embedding takes hidden states instead of tokens.
    """
    padding = model.config.get_text_config().pad_token_id
    ids = [token for token in range(PROBE + 1) if token != padding][:PROBE]
    tokens = {"input_ids": torch.tensor([ids], device=model.device)}
    inputs = {
        **(tokens if inputs_embeds is None else {"inputs_embeds": inputs_embeds}),
        "position_ids": torch.arange(PROBE, device=model.device)[None],
        "attention_mask": None,
        "use_cache": False,
        "segments": [PROBE],
    }
    theirs = model(**inputs).logits.reshape(-1)[-1].float()
    ours = last_token_scores(model, inputs, torch.tensor([PROBE - 1], device=model.device))[0]
    if not torch.allclose(ours, theirs, rtol=2e-2, atol=2e-2):
        raise _refusal(source, f"{type(model).__name__} does more than a linear head on the last token")


def _refusal(source: ModelSource, why: str) -> UserError:
    return UserError(
        f"not a supported reward model: {why}",
        key=source.key,
        value=source.path,
        allowed="a sequence or token classifier with one label, or a class of your own",
        hint="reward_model.model.custom_cls.path=/path/to/file.py reward_model.model.custom_cls.name=MyRewardModel",
    )
