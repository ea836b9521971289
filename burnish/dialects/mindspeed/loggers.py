"""rl_config: loggers. With wandb, MindSpeed RL does not write to TensorBoard."""

from __future__ import annotations

from burnish.dialects.mindspeed.translator import Translator

_DEFAULT_LOGGERS = ["console", "file"]


def translate_loggers(t: Translator) -> None:
    rl = t.rl
    tensorboard, wandb, swanlab = (rl[f"use_{name}"] for name in ("tensorboard", "wandb", "swanlab"))
    chosen = [name for name, setting in (("wandb", wandb), ("swanlab", swanlab)) if setting.value]
    if tensorboard.value and not wandb.value:
        chosen.append("tensorboard")
        t.translation.environment.setdefault("TENSORBOARD_DIR", "runs")
    for name, setting in (("wandb", wandb), ("swanlab", swanlab), ("tensorboard", tensorboard)):
        if name in chosen:
            t.set(
                setting,
                "trainer.logger",
                [*_DEFAULT_LOGGERS, *chosen],
                "" if name != "tensorboard" else "written to runs/",
            )
        elif setting.value:
            t.inert(setting, "disabled by use_wandb")
        else:
            t.inert(setting, "off")
    _run_names(t, "wandb", "WANDB_DIR" if wandb.value else None)
    _run_names(t, "swanlab", "SWANLAB_LOG_DIR" if swanlab.value and not wandb.value else None)
    mode = rl["swanlab_mode"]
    if swanlab.value and mode.value:
        t.translation.environment["SWANLAB_MODE"] = str(mode.value)
        t.inert(mode, "passed to SwanLab as SWANLAB_MODE")
    else:
        t.inert(mode, "use_swanlab is off")


def _run_names(t: Translator, tool: str, folder_variable: str | None) -> None:
    """Project name, run name and folder of a logger; the folder is passed as an environment variable."""
    rl = t.rl
    project, name, folder = (rl[f"{tool}_{part}"] for part in ("project", "exp_name", "save_dir"))
    if folder_variable is None:
        for setting in (project, name, folder):
            t.inert(setting, f"use_{tool} is off, or another logger sets the run name")
        return
    if not name.value or not project.value:
        missing = name if not name.value else project
        t.refuse(missing, f"use_{tool} requires {tool}_project and {tool}_exp_name, also in MindSpeed RL")
    for setting, ours in ((project, "trainer.project_name"), (name, "trainer.experiment_name")):
        if setting.value:
            t.set(setting, ours)
    if folder.value:
        t.translation.environment[folder_variable] = str(folder.value)
        t.inert(folder, f"passed to {tool} as {folder_variable}")
    else:
        t.inert(folder, "the logger uses its default folder")
