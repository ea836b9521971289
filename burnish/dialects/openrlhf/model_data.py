"""Models, prompts and evaluation data."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import (
    MODEL,
    ROLLOUT,
    has_critic,
    has_reward_model,
    is_remote,
)
from burnish.dialects.openrlhf.writing import Row, Writing

ROWS = (
    Row("input_key", "data.prompt_key"),
    Row("label_key", "data.label_key"),
    Row("prompt_split", "data.train_split"),
)
EVERYTHING = 100_000_000  # their way to say "all rows"
VAL = f"{ROLLOUT}.val_kwargs"
TRUSTS = "its models and tokenizers always may"


def write(w: Writing) -> None:
    _models(w)
    w.rows(ROWS)
    _prompts(w)
    _template(w)
    _evaluation(w)
    _images(w)
    w.inert("disable_fast_tokenizer", "transformers 5 has one tokenizer for each model")
    w.inert("dataloader_num_workers", "rows are read without a loader process")
    w.inert("output_key", "only SFT reads it: in PPO the model writes the output")
    if w.given("use_ms"):
        why = "models and data come from Hugging Face's hub or from folders: download from ModelScope, and give folders"
        w.refuse("use_ms", why)


def _models(w: Writing) -> None:
    if w.given("pretrain"):
        w.put("pretrain", f"{MODEL}.path")
        for key in (f"{MODEL}.trust_remote_code", "data.trust_remote_code"):
            w.itself(key, True, f"{TRUSTS} run the code of their repository")
    _reward_model(w)
    if not has_critic(w):
        w.inert("critic_pretrain", f"{w.name('advantage_estimator')} {w.get('advantage_estimator')} has no critic")
    elif w.get("critic_pretrain") is not None:
        w.put("critic_pretrain", "critic.model.path")
    elif has_reward_model(w):
        first = w.get("reward_pretrain").split(",")[0]
        w.put("critic_pretrain", "critic.model.path", first, "the critic starts as the reward model, with its head")
    prefix, scores = w.get("value_head_prefix"), has_critic(w) or has_reward_model(w)
    if prefix == "score" or not scores:
        w.inert("value_head_prefix", "a classifier's head is called score")
    else:
        why = f"reward models are read as Hugging Face classifiers, whose head is score, not {prefix}: rename it there"
        w.refuse("value_head_prefix", why)


def _reward_model(w: Writing) -> None:
    path = w.get("reward_pretrain")
    if path is None:
        return
    if is_remote(w):
        source = "agent_func_path" if w.get("agent_func_path") else "remote_rm_url"
        return w.inert("reward_pretrain", f"{w.name(source)} scores the responses: theirs then builds no reward model")
    if "," in path:
        return w.refuse("reward_pretrain", "one reward model can score; theirs too loads only one: give one path")
    w.put("reward_pretrain", "reward_model.enable", True)
    w.put("reward_pretrain", "reward_model.model.path")
    w.itself("reward_model.model.trust_remote_code", True, f"{TRUSTS} run the code of their repository")
    w.itself("reward_model.model.input_tokenizer", None, "the reward model reads the policy's tokens")
    return None


def _prompts(w: Writing) -> None:
    data = w.get("prompt_data")
    if data is not None:
        w.put("prompt_data", "data.train_files", _list(data))
    probs = w.get("prompt_data_probs")
    if probs is not None:
        weights = _numbers(probs)
        if weights is None or len(weights) != len(_list(data or "")):
            w.refuse("prompt_data_probs", f"needs one number for each dataset of {w.name('prompt_data')}, with commas")
        else:
            w.put("prompt_data_probs", "data.train_probs", weights)
    limit = w.get("max_samples")
    if limit >= EVERYTHING:
        w.inert("max_samples", "all rows are used")
    else:
        why = "so many rows at most; theirs takes the first ones, here data.shuffle draws them by the seed"
        w.put("max_samples", "data.train_max_samples", limit, why)


def _template(w: Writing) -> None:
    uses, template = w.get("apply_chat_template"), w.get("input_template")
    why = "" if uses else "without the flag the text is the prompt, as it is"
    w.put("apply_chat_template", "data.apply_chat_template", why=why)
    if template is None:
        return
    if uses:
        w.inert("input_template", f"{w.name('apply_chat_template')} writes the prompts")
    elif "{}" not in template:
        w.inert("input_template", "has no {} for the prompt, so theirs drops it with a warning")
    else:
        broken = "\\n" in template
        why = r"it has \n as two characters, which stay two: in bash, write $'...' for line breaks" if broken else ""
        w.put("input_template", "data.input_template", why=why)


def _evaluation(w: Writing) -> None:
    flags = ("eval_split", "eval_temperature", "eval_n_samples_per_prompt")
    data = w.get("eval_dataset")
    if data is None or w.get("async_train"):
        why = "nothing is evaluated without an eval dataset" if data is None else "theirs never evaluates in async runs"
        for name in ("eval_dataset", *flags):
            w.inert(name, why)
        return
    if not is_remote(w):
        needed = f"{w.name('remote_rm_url')} or {w.name('agent_func_path')}"
        w.refuse("eval_dataset", f"theirs evaluates only with {needed}")
        return
    w.put("eval_dataset", "data.val_files", _list(data))
    w.put("eval_split", "data.val_split")
    w.put("eval_temperature", f"{VAL}.temperature")
    w.put("eval_n_samples_per_prompt", f"{VAL}.n")
    w.itself(f"{VAL}.do_sample", True, "evaluation samples, too")
    w.itself(f"{VAL}.top_p", w.get("top_p"), f"evaluation samples with {w.name('top_p')}, too")


def _images(w: Writing) -> None:
    count = w.get("max_images_per_prompt")
    if count == 0:
        w.inert("max_images_per_prompt", "0 is text only")
        w.inert("image_key", f"{w.name('max_images_per_prompt')} is 0: text only")
    else:
        w.put("image_key", "data.image_key")
        limits = {"image": count}
        why = f"at most {count} image(s) in a prompt"
        w.put("max_images_per_prompt", f"{ROLLOUT}.engine_kwargs.vllm.limit_mm_per_prompt", limits, why)
        for name, wrong in (("advantage_estimator", has_critic(w)), ("packing_samples", w.get("packing_samples"))):
            if wrong:
                w.refuse(name, "theirs cannot train on images with a critic or with packing")
    w.put("freeze_visual_encoder", "actor_rollout_ref.actor.freeze_vision_tower")


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[float] | None:
    try:
        return [float(part) for part in _list(text)]
    except ValueError:
        return None
