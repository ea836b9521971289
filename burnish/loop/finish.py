"""The end of a run: the trained model in the run folder, a record that the run is finished, and a summary."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from burnish.errors import UserError
from burnish.log.file import read_metrics
from burnish.log.folder import RunFolder
from burnish.log.jsonl import encode, write_atomically
from burnish.log.logger import Loggers
from burnish.log.validation_score import is_validation, validation_scores
from burnish.loop.experiment import Experiment, check_same_experiment
from burnish.storage import HUGGING_FACE, disk_full, has_weights
from burnish.training.checkpoint import Checkpoints
from burnish.untrusted import read_json_object

MAX_RECORD_BYTES = 1 << 28
SMALL_FILE = 1 << 20  # bytes; below, files are copied instead of linked, so that editing one does not change the other


class LoadedModel(NamedTuple):
    """A trained model and its tokenizer, of transformers."""

    model: Any
    tokenizer: Any


@dataclass
class Result:
    """What a run leaves: its folder, its model, how far it came, and its metrics."""

    folder: Path
    step: int
    metrics: dict[str, float] = field(default_factory=dict)  # of the last step
    validation: dict[int, dict[str, float]] = field(default_factory=dict)  # by step; 0 is before training
    interrupted: bool = False
    signum: int | None = None  # the signal that interrupted it
    model_path: Path | None = None  # of the trained model, in Hugging Face format
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 128 + (self.signum or 2) if self.interrupted else 0

    def load(self, **kwargs: Any) -> LoadedModel:
        """Load the trained model and its tokenizer. Arguments go to transformers' from_pretrained."""
        from transformers import AutoConfig

        from burnish.models.load import load_tokenizer, model_class

        if self.model_path is None:
            hint = "trainer.save_final=true, and train to the end"
            raise UserError(f"the run in {self.folder} left no model", hint=hint)
        options = {"trust_remote_code": False} | kwargs  # None would ask on stdin
        config = AutoConfig.from_pretrained(self.model_path, trust_remote_code=options["trust_remote_code"])
        model = model_class(config).from_pretrained(self.model_path, **options)
        return LoadedModel(model, load_tokenizer(str(self.model_path), key="model_path"))


class AlreadyFinished(Exception):
    """The run in this folder has done all its steps."""

    def __init__(self, result: Result, text: str) -> None:
        self.result = result
        self.text = text
        super().__init__(text)


class Finishing(Protocol):
    """What the end of a run needs: a Recorder, or a supervised run."""

    checkpoints: Checkpoints
    experiment: Experiment | None
    folder: RunFolder
    loggers: Loggers
    saved_step: int

    @property
    def trainer(self) -> Any: ...


def check_finished(run: Finishing, step: int | None, total_steps: int) -> None:
    """Raise AlreadyFinished where nothing is left to do. `step` is that of the checkpoint to resume from, if any."""
    record = _read(run.folder.finished)
    trainer = run.trainer
    if record is None:
        if step is not None and step >= total_steps and (run.folder.model.exists() or not trainer.save_final):
            raise _already_finished(run, {"step": step})
        return
    if step is None and run.experiment is not None:
        check_same_experiment(run.experiment, record.get("experiment"), f"the finished run in {run.folder.path}")
    if record["step"] >= total_steps or record["total_steps"] == total_steps:
        raise _already_finished(run, record)
    if step is None:
        raise UserError(
            f"the run in {run.folder.path} finished at step {record['step']} without a checkpoint, so that it cannot be"
            " extended",
            key="trainer.total_training_steps",
            value=total_steps,
            hint="trainer.resume_mode=disable to start anew (this replaces its model), or"
            " trainer.default_local_dir=/another/folder; with trainer.save_freq=N a run can be extended",
        )


def leave_model(run: Finishing, result: Result, export: Callable[[Path], None]) -> None:
    """Write the trained model to the run folder and to trainer.export_dir. Where one disk is full, the other may not
    be."""
    trainer, failure = run.trainer, None
    if trainer.save_final:
        try:
            result.model_path = _write_final(run, result.step, export)
        except UserError as error:
            failure = error
    if trainer.export_dir is not None:
        folder = Path(trainer.export_dir).expanduser()
        _export(folder, result.model_path, export)
        run.loggers.note(f"exported the model to {folder}")
    if failure is not None:
        raise failure


def conclude(run: Finishing, result: Result, total_steps: int) -> None:
    """Record that the run is finished, and log a summary."""
    validation = _validations(run, result)
    record = {"step": result.step, "total_steps": total_steps, "validation": validation}
    if run.experiment is not None:
        record["experiment"] = run.experiment.state_dict()
    _writing(run.folder.finished, lambda: write_atomically(run.folder.finished, encode(record) + "\n"))
    for line in summary(run, result, validation):
        run.loggers.note(line)


def stopped(run: Finishing, step: int, cause: str = "") -> str:
    """What is left of an interrupted run."""
    if step == 0:
        return f"stopped before the first step{cause}; there is nothing to save"
    return f"stopped after step {step}{cause}; checkpoint saved: {run.checkpoints.path(run.saved_step)}"


def summary(run: Finishing, result: Result, validation: dict[int, dict[str, float]]) -> list[str]:
    """Where the model is, how good it is, how long it took, and what to do next."""
    folder = _shown(run.folder.path)
    lines = [f"finished: {_steps(result.step)} in {_duration(result.seconds)}, in {folder}"]
    scores = validation_scores(validation)
    if scores is not None:
        lines.append(f"validation: {scores}")
    if result.model_path is None:
        return [*lines, "no model was written (trainer.save_final=false)"]
    model = shlex.quote(_shown(result.model_path))
    lines += [f"model: {_shown(result.model_path)}", "next:", f"  burnish view {shlex.quote(folder)}"]
    lines.append(f"  burnish generate model.path={model} data.path=FILE data.output_path=OUT.parquet")
    lines.append("  burnish eval data.path=OUT.parquet")
    if run.checkpoints.steps():
        lines.append(f"  burnish export {shlex.quote(folder)} OUT")
    return lines


def _already_finished(run: Finishing, record: dict[str, Any]) -> AlreadyFinished:
    folder, step = run.folder, record["step"]
    model = folder.model if folder.model.exists() else None
    validation = {int(number): metrics for number, metrics in record.get("validation", {}).items()}
    result = Result(folder.path, step, validation=validation, model_path=model)
    more = f"trainer.total_training_steps={2 * step}" if run.checkpoints.steps() else "trainer.resume_mode=disable"
    lines = [
        f"already finished: {_steps(step)} in {_shown(folder.path)}",
        *([] if model is None else [f"model: {_shown(model)}"]),
        f"to go on: {more}{' (more steps)' if run.checkpoints.steps() else ' (anew)'}, or",
        "  trainer.default_local_dir=/another/folder",
    ]
    return AlreadyFinished(result, "\n".join(lines))


def _write_final(run: Finishing, step: int, export: Callable[[Path], None]) -> Path:
    """Replace the run folder's model atomically. Weights that the last checkpoint holds are linked."""
    target, partial = run.folder.model, run.folder.path / ".model.partial"
    saved = run.checkpoints.path(step) / "actor" / HUGGING_FACE

    def write() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        if run.saved_step == step and has_weights(saved):
            link_files(saved, partial)
        else:
            partial.mkdir()
            export(partial)
        old = run.folder.path / ".model.old"
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        partial.rename(target)
        shutil.rmtree(old, ignore_errors=True)

    try:
        _writing(target, write)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _export(folder: Path, model: Path | None, export: Callable[[Path], None]) -> None:
    _writing(folder, lambda: export(folder) if model is None else link_files(model, folder), key="trainer.export_dir")


def link_files(source: Path, target: Path) -> None:
    """Give another folder the same files: large ones as hard links where the file system has them, else copies."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if not file.is_file():
            continue
        other = target / file.name
        other.unlink(missing_ok=True)
        if file.stat().st_size < SMALL_FILE or not _linked(file, other):
            shutil.copy2(file, other)


def _linked(file: Path, other: Path) -> bool:
    """False on another file system, or on one without hard links."""
    try:
        os.link(file, other)
    except OSError:
        return False
    return True


def _writing(path: Path, write: Callable[[], None], key: str = "trainer.default_local_dir") -> None:
    try:
        write()
    except OSError as error:
        problem = f"{disk_full(error)}cannot write the model to {path}: {error}"
        raise UserError(problem, key=key, hint=f"{key}=/a/folder/with/room") from error


def _read(path: Path) -> dict[str, Any] | None:
    """The record of a finished run; None where there is none, or no readable one."""
    try:
        record = read_json_object(path, limit=MAX_RECORD_BYTES)
    except (OSError, UserError):
        return None
    return record if all(type(record.get(name)) is int for name in ("step", "total_steps")) else None


def _validations(run: Finishing, result: Result) -> dict[int, dict[str, float]]:
    """All validations of the run, also those before it was resumed."""
    steps = read_metrics(run.folder.metrics) if run.folder.metrics.exists() else {}
    logged = {
        step: found
        for step, metrics in steps.items()
        if (found := {name: value for name, value in metrics.items() if is_validation(name)})
    }
    return logged | result.validation


def _shown(path: Path) -> str:
    """Relative to the current folder where it is inside: shorter to read and to type."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _steps(number: int) -> str:
    return f"{number} step{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
