"""Sampling settings from the config, checked against the tokenizer before a model is loaded."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from burnish.algos.advantages import ADVANTAGES
from burnish.errors import UserError
from burnish.rollout.engine import Sampling
from burnish.rollout.stop import Decode

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.config.rollout import SamplingConfig, ValKwargsConfig

TRAIN_ROLLOUT = "actor_rollout_ref.rollout"


def training_sampling(rollout: SamplingConfig, tokenizer: Any, vocab_size: int, key: str = TRAIN_ROLLOUT) -> Sampling:
    """The sampling settings of a rollout section."""
    return _sampling(rollout, rollout, tokenizer, vocab_size, key, seed=rollout.seed, fire=rollout.use_fire_sampling)


def validation_sampling(val: ValKwargsConfig, rollout: SamplingConfig, tokenizer: Any, vocab_size: int) -> Sampling:
    """Validation has its own distribution; stop conditions and bad words are those of the rollout."""
    seed = rollout.seed if val.seed is None else val.seed
    return _sampling(val, rollout, tokenizer, vocab_size, TRAIN_ROLLOUT, seed=seed, fire=False)


def _sampling(
    section: SamplingConfig | ValKwargsConfig,
    rollout: SamplingConfig,
    tokenizer: Any,
    vocab_size: int,
    key: str,
    **more: Any,
) -> Sampling:
    if "" in rollout.stop:
        raise UserError("an empty stop string would end every response at once", key=f"{key}.stop", value=rollout.stop)
    for token in rollout.stop_token_ids:
        if token >= vocab_size:
            allowed = f"0 to {vocab_size - 1}"
            raise UserError("the model has no such token", key=f"{key}.stop_token_ids", value=token, allowed=allowed)
    return Sampling(
        max_tokens=rollout.response_length,
        temperature=section.temperature,
        top_k=section.top_k,
        top_p=section.top_p,
        min_p=section.min_p,
        do_sample=section.do_sample,
        ignore_eos=rollout.ignore_eos,
        min_tokens=rollout.min_tokens,
        stop=tuple(rollout.stop),
        stop_token_ids=tuple(rollout.stop_token_ids),
        repetition_penalty=section.repetition_penalty,
        presence_penalty=section.presence_penalty,
        frequency_penalty=section.frequency_penalty,
        bad_words=tuple(ids for word in rollout.bad_words for ids in word_ids(word, tokenizer, f"{key}.bad_words")),
        logprobs=rollout.logprobs,
        max_total_tokens=rollout.max_model_len,
        **more,
    )


def word_ids(word: str, tokenizer: Any, key: str) -> list[tuple[int, ...]]:
    """The token ids of a word, with and without a leading space."""
    bare = word.strip()
    encoded = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (bare, f" {bare}")]
    exact = [ids for ids in encoded if bare and tokenizer.decode(ids).strip() == bare]
    if not exact:
        raise UserError("the tokenizer has no tokens for this word", key=key, value=word)
    return list(dict.fromkeys(exact))


def decoder(tokenizer: Any) -> Decode:
    """Decodes response tokens for rewards and stop strings: without special tokens."""
    return partial(tokenizer.decode, skip_special_tokens=True)


def check_over_sampling(cfg: TrainConfig) -> None:
    """Refuse what needs every sample that is started."""
    rollout = cfg.actor_rollout_ref.rollout
    every = {
        "algorithm.filter_groups.enable=true": cfg.algorithm.filter_groups.enable,
        "actor_rollout_ref.rollout.skip_rollout=true": rollout.skip_rollout,
        f"algorithm.adv_estimator={cfg.algorithm.adv_estimator}": "greedy"
        in ADVANTAGES[cfg.algorithm.adv_estimator].needs,
    }
    setting = next((setting for setting, needed in every.items() if needed), None)
    if rollout.over_sample_rate and setting is not None:
        key = "actor_rollout_ref.rollout.over_sample_rate"
        raise UserError(f"not supported with {setting}", key=key, value=rollout.over_sample_rate, hint=f"{key}=0")
