"""Every logger passes the same suite, through its real library, with nothing but a folder to write to.

A new row in LOGGERS needs one entry in READERS: how to read back what the logger wrote.
"""

from __future__ import annotations

import io
import json
import math
import re
import sqlite3
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from burnish.errors import UserError
from burnish.log.file import read_metrics
from burnish.log.jsonl import read
from burnish.log.logger import LOGGERS, Loggers, RunInfo

SCORE = "critic/score/mean"
VALIDATION = "val-core/gsm8k/reward/mean@4"
SECRET = "hf_" + "aB3dE5fG7hJ9kL1mN2pQ4rS6"
COLUMNS = ["input", "output", "score"]
ROWS = [["2 + 2 = ?", "四 \U0001f600 ü\n| next", 1.0], ["", "", 0.5]]


class Found(dict):
    """{metric: {step: value}}, and every text the logger wrote."""

    texts: str = ""


def read_console(folder: Path) -> Found:
    text = (folder / "console.txt").read_text(encoding="utf-8")
    found = Found()
    for step, score in re.findall(r"step (\d+)/3 .*?score (\S+)", text):
        found.setdefault(SCORE, {})[int(step)] = float(score)
    for step, value in re.findall(r"validation at step (\d+): .*?mean@4 (\S+)", text):
        found.setdefault(VALIDATION, {})[int(step)] = float(value)
    found.texts = text
    return found


def read_file(folder: Path) -> Found:
    found = Found()
    for step, numbers in read_metrics(folder / "metrics.jsonl").items():
        for name, value in numbers.items():
            found.setdefault(name, {})[step] = value
    notes = [path.read_text(encoding="utf-8") for path in folder.glob("notes.txt")]
    found.texts = "\n".join(notes + [row["output"] for path in folder.glob("tables/**/*.jsonl") for row in read(path)])
    return found


def read_tensorboard(folder: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    found = Found()
    for name in events.Tags()["scalars"]:
        found[name] = {event.step: event.value for event in events.Scalars(name)}
    texts = [event.tensor_proto.string_val[0] for tag in events.Tags()["tensors"] for event in events.Tensors(tag)]
    found.texts = "\n".join(text.decode("utf-8") for text in texts)
    return found


def wandb_records(path: Path) -> list[bytes]:
    """A .wandb file: a 7-byte head, then blocks of 32 KiB with records (checksum, length, kind: whole or a part)."""
    data, place, records, part = path.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + length > len(data):
            break
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            records.append(part)
            part = b""
    return records


def finished_records(path: Path, kind: type) -> list:
    """wandb's own process may still be writing when finish() returns; its last record is `exit`."""
    deadline = time.monotonic() + 20
    while True:
        records = [kind.FromString(data) for data in wandb_records(path)]
        if any(record.HasField("exit") for record in records):
            return records
        assert time.monotonic() < deadline, f"{path} was never finished"
        time.sleep(0.05)


def read_wandb(folder: Path) -> Found:
    from wandb.proto.wandb_internal_pb2 import Record

    found = Found()
    texts = []
    for path in folder.glob("wandb/*run-*/run-*.wandb"):
        for record in finished_records(path, Record):
            values = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            step = record.history.step.num
            for name, value in values.items():
                number = json.loads(value)
                if isinstance(number, int | float):
                    found.setdefault(name, {})[step] = float(number)
            texts.append(record.run.notes)
    for path in folder.glob("wandb/*run-*/files/media/table/**/*.table.json"):
        texts += [str(cell) for row in json.loads(path.read_text(encoding="utf-8"))["data"] for cell in row]
    found.texts = "\n".join(texts)
    return found


def read_swanlab(folder: Path) -> Found:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    found = Found()
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("swanlab/run-*/media/text/*")]
    for path in sorted(folder.glob("swanlab/run-*/run-*.swanlab")):
        reader = DataStoreReader()
        reader.open(str(path))
        while (data := reader.scan()) is not None:
            record = Record()
            record.ParseFromString(data)
            if record.HasField("scalar"):
                found.setdefault(record.scalar.key, {})[record.scalar.step] = record.scalar.value.number
    found.texts = "\n".join(texts)
    return found


def read_mlflow(folder: Path) -> Found:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("contract")
    (run,) = client.search_runs([experiment.experiment_id])
    found = Found()
    for name in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        found[name.replace("_at_", "@")] = {metric.step: metric.value for metric in history}
    notes = [path.read_text(encoding="utf-8") for path in (folder / "mlflow").rglob("notes.txt")]
    tables = [json.loads(path.read_text()) for path in (folder / "mlflow").rglob("tables/**/*.json")]
    found.texts = "\n".join(notes + [str(cell) for table in tables for row in table["data"] for cell in row])
    return found


def read_trackio(folder: Path) -> Found:
    import trackio

    found = Found()
    texts = []
    with sqlite3.connect(Path(trackio.TRACKIO_DIR) / "contract.db") as database:
        for run, step, data in database.execute("select run_name, step, metrics from metrics"):
            if run != folder.name:
                continue
            for name, value in json.loads(data).items():
                if isinstance(value, float | int | str):
                    found.setdefault(name, {})[step] = float(value)
                else:
                    texts.append(json.dumps(value, ensure_ascii=False))
        texts += [text for (text,) in database.execute("select text from alerts")]
    found.texts = "\n".join(texts)
    return found


READERS: dict[str, Callable[[Path], Found]] = {
    "console": read_console,
    "file": read_file,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "swanlab": read_swanlab,
    "mlflow": read_mlflow,
    "trackio": read_trackio,
}
INSTALLED_BY_TEST_ALL = {"swanlab", "mlflow", "trackio"}
NAMES = [pytest.param(name, marks=[pytest.mark.long] if name in INSTALLED_BY_TEST_ALL else []) for name in READERS]

NUMBERS = {
    SCORE: {1: 0.125, 2: 0.25, 3: 0.5},
    "actor/pg_loss": {1: math.nan, 2: -1.5, 3: math.inf},
    VALIDATION: {3: 0.75},
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name in (
        "WANDB_DIR",
        "WANDB_RUN_ID",
        "TENSORBOARD_DIR",
        "MLFLOW_TRACKING_URI",
        "SWANLAB_LOG_DIR",
        "TRACKIO_SPACE_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setattr(sys, "argv", ["burnish", "train", f"custom_reward_function.reward_kwargs.api_key={SECRET}"])
    return tmp_path / f"run-{tmp_path.name}"


def write(name: str, folder: Path) -> None:
    """One run: started, three steps, a table, a note, closed twice; through the fan-out, failures not forgiven."""
    loggers = Loggers([name])
    loggers._report = fail
    if name == "console":
        loggers.loggers[name].console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    config = {"a": {"lr": 1e-6, "hub_token": SECRET}, "long": "x" * 20, "none": None, "list": [1, "二"]}
    loggers.start(RunInfo(project="contract", name=folder.name, folder=folder, config=config, total_steps=3))
    loggers.note("a note: 提示")
    for step in (1, 2, 3):
        loggers.log(step, {key: values[step] for key, values in NUMBERS.items() if step in values})
    loggers.table("val/generations", 3, COLUMNS, ROWS)
    loggers.table("val/empty", 3, COLUMNS, [])
    loggers.close()
    for logger in loggers.loggers.values():
        logger.close()
    if name == "console":
        folder.mkdir()
        (folder / "console.txt").write_text(loggers.loggers[name].console.file.getvalue(), encoding="utf-8")


def fail(name: str, method: str, error: Exception) -> None:
    raise error


def test_every_logger_is_read_back():
    assert set(READERS) == set(LOGGERS.names())


@pytest.mark.parametrize("name", NAMES)
def test_logger_writes_what_it_is_given(name, folder):
    write(name, folder)
    found = READERS[name](folder)
    assert found[SCORE] == pytest.approx(NUMBERS[SCORE])
    assert found[VALIDATION] == pytest.approx(NUMBERS[VALIDATION])
    if name != "console":  # which shows a choice of metrics
        assert found["actor/pg_loss"][2] == -1.5
    assert "提示" in found.texts
    assert "四" in found.texts and "ü" in found.texts
    for path in folder.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("name", NAMES)
def test_a_logger_continues_after_a_resume(name, folder):
    """Killed after step 2 with a checkpoint at step 1: step 2 is made again, and no step is lost."""
    run = RunInfo(project="contract", name=folder.name, folder=folder, total_steps=3)
    screen = io.StringIO()
    for resume_step, steps in ((None, (1, 2)), (1, (2, 3))):
        logger = LOGGERS[name].load()()
        if name == "console":
            logger.console = Console(file=screen, width=80, soft_wrap=True)
        logger.start(run, resume_step=resume_step)
        for step in steps:
            logger.log(step, {SCORE: step / 8})
        logger.close()
    if name == "console":
        folder.mkdir()
        (folder / "console.txt").write_text(screen.getvalue(), encoding="utf-8")
    assert READERS[name](folder)[SCORE] == {1: 0.125, 2: 0.25, 3: 0.375}


@pytest.mark.parametrize("name", NAMES)
def test_logger_not_started_says_so_and_closes(name, folder):
    logger = LOGGERS[name].load()()
    logger.close()
    if name != "console":  # which has nothing to start: it shows what it is given
        with pytest.raises(RuntimeError, match="not started"):
            logger.log(1, {SCORE: 0.5})


@pytest.mark.parametrize("name", [name for name in READERS if "library" in LOGGERS[name].metadata])
def test_missing_library_is_named_before_anything_starts(name, monkeypatch):
    monkeypatch.setattr("burnish.log.logger.importlib.util.find_spec", lambda library: None)
    with pytest.raises(UserError, match=re.escape(f'pip install -e ".[{name}]"')):
        Loggers(["console", name])
