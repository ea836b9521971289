"""Rules and remarks about the data section; `rules` has the others."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.root import TrainConfig
from burnish.errors import UserError


def prompt_form(cfg: TrainConfig) -> Iterator[UserError]:
    """A text template has a place for the prompt, and no chat template beside it."""
    template, key = cfg.data.input_template, "data.input_template"
    if template is None:
        return
    if "{}" not in template:
        yield UserError("has no {} for the prompt", key=key, value=template, hint=f"{key}='Question: {{}}'")
    if cfg.data.apply_chat_template:
        hint = "data.apply_chat_template=false"
        yield UserError("the chat template writes the prompts already", key=key, value=template, hint=hint)


def user_classes(cfg: TrainConfig) -> Iterator[UserError]:
    """A class in a file has a name."""
    sampler, datagen = cfg.data.sampler, cfg.data.datagen
    named = {
        "data.sampler.class_name": (sampler.class_path, sampler.class_name),
        "data.datagen.name": (datagen.path, datagen.name),
    }
    for key, (path, name) in named.items():
        if path and not name:
            yield UserError("the class in this file is not named", key=key, hint=f"{key}=MyClass")


def data_remarks(cfg: TrainConfig) -> Iterator[str]:
    """What a text template may not have meant; whose code will run."""
    if "\\n" in (cfg.data.input_template or ""):
        yield (
            "data.input_template has a backslash and an n, which stay two characters: in bash, write $'...' for line"
            " breaks."
        )
    sections = {
        "data": cfg.data.trust_remote_code,
        "actor_rollout_ref.model": cfg.actor_rollout_ref.model.trust_remote_code,
        "reward_model.model": cfg.reward_model.enable and cfg.reward_model.model.trust_remote_code,
    }
    trusted = [f"{key}.trust_remote_code" for key, trusts in sections.items() if trusts]
    if trusted:
        yield f"Python code that comes with the model or the tokenizer will run here ({', '.join(trusted)})."
