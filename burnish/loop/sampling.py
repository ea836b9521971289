"""How a run samples: the config's keys, with words turned into tokens and checked before a model is loaded."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.rollout.engine import Sampling
from burnish.rollout.stop import Decode

if TYPE_CHECKING:
    from burnish.config.rollout import SamplingConfig, ValKwargsConfig

TRAIN_ROLLOUT = "actor_rollout_ref.rollout"


def training_sampling(rollout: SamplingConfig, tokenizer: Any, vocabulary: int, key: str = TRAIN_ROLLOUT) -> Sampling:
    """The way to sample that a rollout section asks for; `vocabulary` is the number of the model's tokens."""
    return _sampling(rollout, rollout, tokenizer, vocabulary, key, seed=rollout.seed, fire=rollout.use_fire_sampling)


def validation_sampling(val: ValKwargsConfig, rollout: SamplingConfig, tokenizer: Any, vocabulary: int) -> Sampling:
    """Validation's own distribution; where a response ends, and what it never says, are the rollout's for both."""
    seed = rollout.seed if val.seed is None else val.seed
    return _sampling(val, rollout, tokenizer, vocabulary, TRAIN_ROLLOUT, seed=seed, fire=False)


def _sampling(
    drawn: SamplingConfig | ValKwargsConfig,
    rollout: SamplingConfig,
    tokenizer: Any,
    vocabulary: int,
    key: str,
    **more: Any,
) -> Sampling:
    if "" in rollout.stop:
        raise UserError("an empty string would end every response at once", key=f"{key}.stop", value=rollout.stop)
    for token in rollout.stop_token_ids:
        if token >= vocabulary:
            allowed = f"0 to {vocabulary - 1}"
            raise UserError("the model has no such token", key=f"{key}.stop_token_ids", value=token, allowed=allowed)
    return Sampling(
        max_tokens=rollout.response_length,
        temperature=drawn.temperature,
        top_k=drawn.top_k,
        top_p=drawn.top_p,
        min_p=drawn.min_p,
        do_sample=drawn.do_sample,
        ignore_eos=rollout.ignore_eos,
        min_tokens=rollout.min_tokens,
        stop=tuple(rollout.stop),
        stop_token_ids=tuple(rollout.stop_token_ids),
        repetition_penalty=drawn.repetition_penalty,
        presence_penalty=drawn.presence_penalty,
        frequency_penalty=drawn.frequency_penalty,
        bad_words=tuple(ids for word in rollout.bad_words for ids in word_ids(word, tokenizer, f"{key}.bad_words")),
        logprobs=rollout.logprobs,
        room=rollout.max_model_len,
        **more,
    )


def word_ids(word: str, tokenizer: Any, key: str) -> list[tuple[int, ...]]:
    """The tokens of a word where it stands alone and where a space comes before it, as most words in a text."""
    bare = word.strip()
    found = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (bare, f" {bare}")]
    known = [ids for ids in found if bare and tokenizer.decode(ids).strip() == bare]
    if not known:
        raise UserError("the tokenizer has no tokens for this word", key=key, value=word)
    return list(dict.fromkeys(known))


def decoder(tokenizer: Any) -> Decode:
    """Response tokens to text, as rewards and stop strings read it: without EOS and other special tokens."""
    return partial(tokenizer.decode, skip_special_tokens=True)
