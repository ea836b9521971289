"""Models, prompt data, evaluation data, images."""

from __future__ import annotations

from burnish.dialects.openrlhf.roles import (
    MODEL,
    ROLLOUT,
    has_critic,
    has_custom_reward,
    has_reward_model,
)
from burnish.dialects.openrlhf.translator import KeyMapping, Translator

MAPPINGS = (
    KeyMapping("input_key", "data.prompt_key"),
    KeyMapping("label_key", "data.label_key"),
    KeyMapping("prompt_split", "data.train_split"),
)
NO_LIMIT = 100_000_000  # OpenRLHF's default of --max_samples
VAL = f"{ROLLOUT}.val_kwargs"
TRUST_WHY = "OpenRLHF always allows models and tokenizers to run code of their repository"


def translate(t: Translator) -> None:
    _models(t)
    t.set_all(MAPPINGS)
    _prompts(t)
    _template(t)
    _evaluation(t)
    _images(t)
    t.inert("disable_fast_tokenizer", "transformers 5 has one tokenizer per model")
    t.inert("dataloader_num_workers", "rows are loaded without worker processes")
    t.inert("output_key", "only SFT uses it")
    if t.has("use_ms"):
        why = "ModelScope is not supported: download models and data, and pass local folders"
        t.refuse("use_ms", why)


def _models(t: Translator) -> None:
    if t.has("pretrain"):
        t.set("pretrain", f"{MODEL}.path")
        for key in (f"{MODEL}.trust_remote_code", "data.trust_remote_code"):
            t.set_implicit(key, True, TRUST_WHY)
    _reward_model(t)
    if not has_critic(t):
        t.inert("critic_pretrain", f"{t.spelling('advantage_estimator')} {t.get('advantage_estimator')} has no critic")
    elif t.get("critic_pretrain") is not None:
        t.set("critic_pretrain", "critic.model.path")
    elif has_reward_model(t):
        first = t.get("reward_pretrain").split(",")[0]
        t.set(
            "critic_pretrain",
            "critic.model.path",
            first,
            "the critic is initialized from the reward model, including its head",
        )
    prefix, scores = t.get("value_head_prefix"), has_critic(t) or has_reward_model(t)
    if prefix == "score" or not scores:
        t.inert("value_head_prefix", "the head of Hugging Face classifiers is named score")
    else:
        why = f"Hugging Face classifiers name their head score, not {prefix}: rename it in the model"
        t.refuse("value_head_prefix", why)


def _reward_model(t: Translator) -> None:
    path = t.get("reward_pretrain")
    if path is None:
        return
    if has_custom_reward(t):
        source = "agent_func_path" if t.get("agent_func_path") else "remote_rm_url"
        return t.inert(
            "reward_pretrain", f"{t.spelling(source)} computes the scores: OpenRLHF then loads no reward model"
        )
    if "," in path:
        return t.refuse("reward_pretrain", "only one reward model is supported, as in OpenRLHF: pass one path")
    t.set("reward_pretrain", "reward_model.enable", True)
    t.set("reward_pretrain", "reward_model.model.path")
    t.set_implicit("reward_model.model.trust_remote_code", True, TRUST_WHY)
    t.set_implicit("reward_model.model.input_tokenizer", None, "the reward model gets the policy's tokens")
    return None


def _prompts(t: Translator) -> None:
    data = t.get("prompt_data")
    if data is not None:
        t.set("prompt_data", "data.train_files", _split_list(data))
    probs = t.get("prompt_data_probs")
    if probs is not None:
        weights = _parse_numbers(probs)
        if weights is None or len(weights) != len(_split_list(data or "")):
            t.refuse(
                "prompt_data_probs", f"needs one number per dataset of {t.spelling('prompt_data')}, separated by commas"
            )
        else:
            t.set("prompt_data_probs", "data.train_probs", weights)
    limit = t.get("max_samples")
    if limit >= NO_LIMIT:
        t.inert("max_samples", "all rows are used")
    else:
        why = "OpenRLHF takes the first rows; with data.shuffle, Burnish selects them by the seed"
        t.set("max_samples", "data.train_max_samples", limit, why)


def _template(t: Translator) -> None:
    applied, template = t.get("apply_chat_template"), t.get("input_template")
    why = "" if applied else "without the flag the text is used as the prompt"
    t.set("apply_chat_template", "data.apply_chat_template", why=why)
    if template is None:
        return
    if applied:
        t.inert("input_template", f"{t.spelling('apply_chat_template')} formats the prompts")
    elif "{}" not in template:
        t.inert("input_template", "has no {} for the prompt: OpenRLHF ignores it with a warning")
    else:
        has_escape = "\\n" in template
        why = r"contains \n as two characters, not a line break: in bash, write $'...'" if has_escape else ""
        t.set("input_template", "data.input_template", why=why)


def _evaluation(t: Translator) -> None:
    flags = ("eval_split", "eval_temperature", "eval_n_samples_per_prompt")
    data = t.get("eval_dataset")
    if data is None or t.get("async_train"):
        why = "no evaluation without an eval dataset" if data is None else "OpenRLHF never evaluates in async runs"
        for name in ("eval_dataset", *flags):
            t.inert(name, why)
        return
    if not has_custom_reward(t):
        sources = f"{t.spelling('remote_rm_url')} or {t.spelling('agent_func_path')}"
        t.refuse("eval_dataset", f"OpenRLHF evaluates only with {sources}")
        return
    t.set("eval_dataset", "data.val_files", _split_list(data))
    t.set("eval_split", "data.val_split")
    t.set("eval_temperature", f"{VAL}.temperature")
    t.set("eval_n_samples_per_prompt", f"{VAL}.n")
    t.set_implicit(f"{VAL}.do_sample", True, "OpenRLHF samples in evaluation")
    t.set_implicit(f"{VAL}.top_p", t.get("top_p"), f"{t.spelling('top_p')} applies to evaluation too")


def _images(t: Translator) -> None:
    count = t.get("max_images_per_prompt")
    if count == 0:
        t.inert("max_images_per_prompt", "0 means text only")
        t.inert("image_key", f"{t.spelling('max_images_per_prompt')} is 0: text only")
    else:
        t.set("image_key", "data.image_key")
        t.set("max_images_per_prompt", "data.max_images_per_prompt")
        for name, conflicts in (("advantage_estimator", has_critic(t)), ("packing_samples", t.get("packing_samples"))):
            if conflicts:
                t.refuse(name, "OpenRLHF does not support images with a critic or with packing")
    t.set("freeze_visual_encoder", "actor_rollout_ref.actor.freeze_vision_tower")


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_numbers(text: str) -> list[float] | None:
    try:
        return [float(part) for part in _split_list(text)]
    except ValueError:
        return None
