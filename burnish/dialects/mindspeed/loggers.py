"""rl_config: where the numbers go. wandb switches TensorBoard off."""

from __future__ import annotations

from burnish.dialects.mindspeed.reading import Reading

_ALWAYS = ["console", "file"]


def read_loggers(reading: Reading) -> None:
    rl = reading.rl
    tensorboard, wandb, swanlab = (rl[f"use_{name}"] for name in ("tensorboard", "wandb", "swanlab"))
    chosen = [name for name, setting in (("wandb", wandb), ("swanlab", swanlab)) if setting.value]
    if tensorboard.value and not wandb.value:
        chosen.append("tensorboard")
        reading.translation.environment.setdefault("TENSORBOARD_DIR", "runs")
    for name, setting in (("wandb", wandb), ("swanlab", swanlab), ("tensorboard", tensorboard)):
        if name in chosen:
            reading.put(
                setting, "trainer.logger", [*_ALWAYS, *chosen], "" if name != "tensorboard" else "written to runs/"
            )
        elif setting.value:
            reading.inert(setting, "use_wandb switches it off")
        else:
            reading.inert(setting, "off")
    _names(reading, "wandb", "WANDB_DIR" if wandb.value else None)
    _names(reading, "swanlab", "SWANLAB_LOG_DIR" if swanlab.value and not wandb.value else None)
    mode = rl["swanlab_mode"]
    if swanlab.value and mode.value:
        reading.translation.environment["SWANLAB_MODE"] = str(mode.value)
        reading.inert(mode, "given to SwanLab as SWANLAB_MODE")
    else:
        reading.inert(mode, "use_swanlab is off")


def _names(reading: Reading, tool: str, folder_variable: str | None) -> None:
    """Project, run and folder of a logger; the folder goes by an environment variable."""
    rl = reading.rl
    project, name, folder = (rl[f"{tool}_{part}"] for part in ("project", "exp_name", "save_dir"))
    if folder_variable is None:
        for setting in (project, name, folder):
            reading.inert(setting, f"use_{tool} is off, or another logger names the run")
        return
    if not name.value or not project.value:
        missing = name if not name.value else project
        reading.refuse(missing, f"use_{tool} needs {tool}_project and {tool}_exp_name, as MindSpeed RL says too")
    for setting, ours in ((project, "trainer.project_name"), (name, "trainer.experiment_name")):
        if setting.value:
            reading.put(setting, ours)
    if folder.value:
        reading.translation.environment[folder_variable] = str(folder.value)
        reading.inert(folder, f"given to {tool} as {folder_variable}")
    else:
        reading.inert(folder, "the logger's own folder")
