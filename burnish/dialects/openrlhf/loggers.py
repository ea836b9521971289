"""Loggers."""

from __future__ import annotations

from burnish.dialects.openrlhf.translator import Translator

DEFAULT_LOGGERS = ["console", "file"]
LOGGED_IN = ("true", "1", "yes")  # no API key: the user has run `wandb login`


def translate(t: Translator) -> None:
    t.set("logging_steps", "trainer.log_freq", max(1, t.get("logging_steps")))
    translate_loggers(t)


def translate_loggers(t: Translator) -> None:
    token, folder = t.get("use_wandb"), t.get("use_tensorboard")
    if token:
        _wandb(t, token)
        t.inert("use_tensorboard", f"OpenRLHF ignores it with {t.spelling('use_wandb')}")
        return
    for name in ("wandb_org", "wandb_group"):
        t.inert(name, f"wandb is off without {t.spelling('use_wandb')}")
    if folder:
        t.set("use_tensorboard", "trainer.logger", [*DEFAULT_LOGGERS, "tensorboard"])
        t.translation.environment["TENSORBOARD_DIR"] = f"{folder.rstrip('/')}/{t.get('wandb_run_name')}"
        t.converted("use_tensorboard", f"TENSORBOARD_DIR={t.translation.environment['TENSORBOARD_DIR']}")
        _run_names(t)
    else:
        for name in ("wandb_project", "wandb_run_name"):
            t.inert(name, f"wandb is off without {t.spelling('use_wandb')}")


def _wandb(t: Translator, token: str) -> None:
    t.set("use_wandb", "trainer.logger", [*DEFAULT_LOGGERS, "wandb"])
    if token.lower() not in LOGGED_IN:
        t.translation.environment["WANDB_API_KEY"] = token
        t.converted("use_wandb", "its value is WANDB_API_KEY in the environment")
    for name, variable in (("wandb_org", "WANDB_ENTITY"), ("wandb_group", "WANDB_RUN_GROUP")):
        value = t.get(name)
        if value is not None:
            t.translation.environment[variable] = value
            t.converted(name, f"{variable}={value} in the environment")
    _run_names(t)


def _run_names(t: Translator) -> None:
    t.set("wandb_project", "trainer.project_name")
    why = "" if t.has("wandb_run_name") else "OpenRLHF appends the time"
    t.set("wandb_run_name", "trainer.experiment_name", why=why)
