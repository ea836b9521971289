"""Where the numbers go."""

from __future__ import annotations

from burnish.dialects.openrlhf.writing import HIDDEN, Writing

LOGGERS = ["console", "file"]
LOGGED_IN = ("true", "1", "yes")  # wandb was logged in to before


def write(w: Writing) -> None:
    w.put("logging_steps", "trainer.log_freq", max(1, w.get("logging_steps")))
    loggers(w)


def loggers(w: Writing) -> None:
    token, folder = w.get("use_wandb"), w.get("use_tensorboard")
    if token:
        _wandb(w, token)
        w.inert("use_tensorboard", f"theirs leaves it out beside {w.name('use_wandb')}")
        return
    for name in ("wandb_org", "wandb_group"):
        w.inert(name, f"nothing goes to wandb without {w.name('use_wandb')}")
    if folder:
        w.put("use_tensorboard", "trainer.logger", [*LOGGERS, "tensorboard"])
        w.out.environment["TENSORBOARD_DIR"] = f"{folder.rstrip('/')}/{w.get('wandb_run_name')}"
        w.elsewhere("use_tensorboard", f"TENSORBOARD_DIR={w.out.environment['TENSORBOARD_DIR']}")
        _names(w)
    else:
        for name in ("wandb_project", "wandb_run_name"):
            w.inert(name, f"nothing goes to wandb without {w.name('use_wandb')}")


def _wandb(w: Writing, token: str) -> None:
    w.put("use_wandb", "trainer.logger", [*LOGGERS, "wandb"])
    if token.lower() not in LOGGED_IN:
        w.out.environment["WANDB_API_KEY"] = token
        w.elsewhere("use_wandb", f"WANDB_API_KEY={HIDDEN} in the environment")
    for name, variable in (("wandb_org", "WANDB_ENTITY"), ("wandb_group", "WANDB_RUN_GROUP")):
        value = w.get(name)
        if value is not None:
            w.out.environment[variable] = value
            w.elsewhere(name, f"{variable}={value} in the environment")
    _names(w)


def _names(w: Writing) -> None:
    w.put("wandb_project", "trainer.project_name")
    why = "" if w.given("wandb_run_name") else "theirs adds the time of day"
    w.put("wandb_run_name", "trainer.experiment_name", why=why)
