"""Rules and notices of the data section."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.root import TrainConfig
from burnish.errors import UserError


def prompt_form(cfg: TrainConfig) -> Iterator[UserError]:
    """A text template has a placeholder and excludes the chat template."""
    template, key = cfg.data.input_template, "data.input_template"
    if template is None:
        return
    if "{}" not in template:
        yield UserError("no {} placeholder for the prompt", key=key, value=template, hint=f"{key}='Question: {{}}'")
    if cfg.data.apply_chat_template:
        hint = "data.apply_chat_template=false"
        yield UserError("conflicts with the chat template", key=key, value=template, hint=hint)


def user_classes(cfg: TrainConfig) -> Iterator[UserError]:
    """A class file needs a class name."""
    sampler, datagen = cfg.data.sampler, cfg.data.datagen
    classes = {
        "data.sampler.class_name": (sampler.class_path, sampler.class_name),
        "data.datagen.name": (datagen.path, datagen.name),
    }
    for key, (path, name) in classes.items():
        if path and not name:
            yield UserError("the name of the class is missing", key=key, hint=f"{key}=MyClass")


def data_remarks(cfg: TrainConfig) -> Iterator[str]:
    """Literal \\n in a text template; models whose code will run."""
    if "\\n" in (cfg.data.input_template or ""):
        yield ("data.input_template contains a literal \\n (two characters). For line breaks, use $'...' in bash.")
    sections = {
        "data": cfg.data.trust_remote_code,
        "actor_rollout_ref.model": cfg.actor_rollout_ref.model.trust_remote_code,
        "reward_model.model": cfg.reward_model.enable and cfg.reward_model.model.trust_remote_code,
    }
    trusted = [f"{key}.trust_remote_code" for key, trusts in sections.items() if trusts]
    if trusted:
        yield f"Python code from the model or tokenizer repository will be executed ({', '.join(trusted)})."
