"""Check the files that a config names: they exist, they load, and they have what the run needs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.config import SftConfig, TrainConfig
from burnish.config.data import DataConfig
from burnish.data.check import check_rows
from burnish.data.files import ListRows, Rows, read_file
from burnish.doctor.rules import NOTE, REFUSED, WARNING, Finding
from burnish.errors import UserError
from burnish.reward.sandbox.python_call import CallFailed, call_isolated, can_isolate
from burnish.storage import is_remote
from burnish.untrusted import is_private_path, is_project_folder
from burnish.user_code import is_user_path

CHECKED_ROWS = 200  # rows of a file whose content is checked
IMPORT_TIMEOUT = 30.0  # seconds
TEMPLATE_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True)
class UserFile:
    """A Python file that a key names, and the attribute that the run uses."""

    key: str
    path: str
    name: str | None = None


def user_files(cfg: TrainConfig) -> Iterator[UserFile]:
    """Every Python file of the user that the run would import."""
    reward_model = cfg.reward_model
    pairs = (
        ("custom_reward_function.path", cfg.custom_reward_function.path, cfg.custom_reward_function.name),
        ("data.custom_cls.path", cfg.data.custom_cls.path, cfg.data.custom_cls.name),
        ("data.sampler.class_path", cfg.data.sampler.class_path, cfg.data.sampler.class_name),
        ("data.datagen.path", cfg.data.datagen.path, cfg.data.datagen.name),
        ("reward_model.model.custom_cls.path", reward_model.model.custom_cls.path, reward_model.model.custom_cls.name),
    )
    yield from (UserFile(key, path, name) for key, path, name in pairs if path)
    selected = {
        "algorithm.adv_estimator": cfg.algorithm.adv_estimator,
        "actor_rollout_ref.actor.policy_loss.loss_mode": cfg.actor_rollout_ref.actor.policy_loss.loss_mode,
        "reward_model.reward_manager": reward_model.reward_manager,
        "actor_rollout_ref.rollout.name": cfg.actor_rollout_ref.rollout.name,
    }
    for key, value in selected.items():
        if is_user_path(value):
            path, _, name = value.rpartition(":")
            yield UserFile(key, path, name)
    for url in cfg.reward.remote_url:
        if url.endswith(".py"):
            yield UserFile("reward.remote_url", url, "reward_func")


def check_user_file(file: UserFile, *, trust: bool = False) -> Finding | None:
    """Import the file in a child process, with a timeout. Without `trust` that process is isolated."""
    if not file.path.startswith("pkg://"):
        path = Path(file.path.removeprefix("file://")).expanduser()
        if not path.is_file():
            text = f"{file.key}={file.path}: no such file on this machine"
            return Finding("user_file", WARNING, text, f"{file.key}=/path/to/file.py", (file.key,))
    if not trust and not can_isolate():
        text = f"{file.key}={file.path}: not imported, because this machine cannot isolate the code of others"
        return Finding("user_file", WARNING, text, "burnish doctor --trust, if you trust the file", (file.key,))
    try:
        problem = _import_trusted(file) if trust else _import_isolated(file)
    except CallFailed as error:
        problem = f"{file.key}={file.path}: the import fails: {error.problem}"
    return None if problem is None else Finding("user_file", REFUSED, str(problem), keys=(file.key,))


def _import_isolated(file: UserFile) -> Any:
    """What is wrong with the file, or None."""
    return call_isolated(
        "burnish.user_code:import_problem",
        {"path": file.path, "name": file.name, "key": file.key},
        readable=code_folders([file.path]),
        seconds=IMPORT_TIMEOUT,
    )


def _import_trusted(file: UserFile) -> str | None:
    code = "import sys; from burnish.user_code import import_problem; sys.exit(import_problem(*sys.argv[1:]))"
    command = [sys.executable, "-c", code, file.path, file.name or "", file.key]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, stderr = child.communicate(timeout=IMPORT_TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise CallFailed(f"it takes longer than {IMPORT_TIMEOUT:g} s") from None
    if child.returncode == 0:
        return None
    return (stderr.strip().splitlines() or [f"importing {file.path} exited with status {child.returncode}"])[-1]


def code_folders(paths: list[str]) -> list[Path]:
    """What isolated Python files may import and read: themselves, their folders, and the current one."""
    files = [Path(path.removeprefix("file://")).expanduser() for path in paths if not path.startswith("pkg://")]
    folders = dict.fromkeys(path.resolve() for path in (*(file.parent for file in files), Path.cwd()))
    return [*files, *(folder for folder in folders if is_project_folder(folder))]


@dataclass
class DataCheck:
    """The result for one key's files."""

    num_rows: int | None = None  # None unless all files are local
    first: dict[str, Any] | None = None  # the first row
    findings: tuple[Finding, ...] = ()


def check_data(cfg: DataConfig, key: str, files: list[str], *, trust: bool = False) -> DataCheck:
    """Count the rows, and check the columns and the first rows of each file."""
    if cfg.custom_cls.path:
        return DataCheck()
    findings: list[Finding] = []
    total, first = 0, None
    for name in files:
        rows = _read(name, key, findings, trust)
        if rows is None:
            return DataCheck(findings=tuple(findings))
        total += len(rows)
        first = first or (rows.row(0) if len(rows) else None)
        if cfg.handler.name is None:
            findings += _check(cfg, key, rows)
    return DataCheck(total if files else None, first, tuple(findings))


def check_examples(cfg: SftConfig, key: str, files: list[str], *, trust: bool = False) -> DataCheck:
    """The same for supervised training, which has other columns."""
    data = cfg.data
    if data.custom_cls.path:
        return DataCheck()
    columns = [data.multiturn.messages_key] if data.multiturn.enable else [data.prompt_key, data.response_key]
    findings: list[Finding] = []
    total = 0
    for name in files:
        rows = _read(name, key, findings, trust)
        if rows is None:
            return DataCheck(findings=tuple(findings))
        total += len(rows)
        for column in columns:
            if column not in rows.kinds:
                findings.append(_no_column(key, rows, column))
    return DataCheck(total if files else None, None, tuple(findings))


def _read(name: str, key: str, findings: list[Finding], trust: bool) -> Rows | None:
    """The rows of a local file; datasets of a hub and remote files are not fetched."""
    path = Path(name).expanduser()
    if is_private_path(path) and not trust:
        text = f"{key}={name}: a private file, not opened"
        findings.append(Finding("data_file", WARNING, text, "burnish doctor --trust", (key,)))
        return None
    if not path.exists():
        if path.suffix:
            text = f"{key}={name}: no such file on this machine, so the number of rows is unknown"
            findings.append(Finding("data_file", WARNING, text, keys=(key,)))
        return None
    if path.is_dir():
        return None
    try:
        return read_file(str(path), key)
    except UserError as error:
        findings.append(Finding("data_file", REFUSED, error.text(), keys=(key,)))
        return None


def _check(cfg: DataConfig, key: str, rows: Rows) -> Iterator[Finding]:
    """Check the columns of the file, and the content of its first rows."""
    if cfg.prompt_key not in rows.kinds:
        yield _no_column(key, rows, cfg.prompt_key)
        return
    first = ListRows([rows.row(number) for number in range(min(len(rows), CHECKED_ROWS))])
    if not len(rows):
        yield Finding("data_file", REFUSED, f"{rows.name}: the file has no rows", keys=(key,))
        return
    sources = cfg.reward_fn_key if cfg.reward_fn_key in rows.kinds else cfg.prompt_key
    report = check_rows(first, prompt_key=cfg.prompt_key, reward_fn_key=sources)
    has_labels = cfg.label_key is not None and cfg.label_key in rows.kinds
    for finding in report.errors.values():
        if sources == cfg.prompt_key and finding.problem.startswith(repr(cfg.prompt_key)):
            continue  # without a data source column, the dataset's name is used
        if has_labels and "ground_truth" in finding.problem:
            continue
        yield Finding("data_file", REFUSED, f"{rows.name}: {finding.text()}", keys=(key,))
    if "reward_model" not in rows.kinds and not has_labels:
        text = f"{rows.name}: no column 'reward_model' and no data.label_key, so rewards get no ground truth"
        yield Finding("data_file", WARNING, text, "data.label_key=answer", (key,))


def _no_column(key: str, rows: Rows, column: str) -> Finding:
    text = f"{rows.name}: no column {column!r}; the columns are {', '.join(rows.kinds)}"
    setting = "data.messages_key" if column == "messages" else "data.prompt_key"
    return Finding("data_file", REFUSED, text, f"{setting}={next(iter(rows.kinds), '')}", (key, setting))


def check_template(cfg: TrainConfig, row: dict[str, Any], *, trust: bool = False) -> Finding | None:
    """Render the first prompt with the chat template, where the tokenizer is local. A template may run forever."""
    findings: list[Finding | None] = []

    def render() -> None:
        with contextlib.suppress(SystemExit):  # see _interrupt
            findings.append(_check_template(cfg, row, trust))

    thread = threading.Thread(target=render, daemon=True)
    thread.start()
    thread.join(TEMPLATE_TIMEOUT)
    if thread.is_alive():
        _interrupt(thread)
        text = f"rendering the first prompt with the chat template takes longer than {TEMPLATE_TIMEOUT:g} s"
        return Finding("template", REFUSED, text, keys=("actor_rollout_ref.model.path",))
    return findings[0] if findings else None


def _interrupt(thread: threading.Thread) -> None:
    """End a thread that runs Python code, as soon as it runs any: a template would go on filling the memory."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))


def _check_template(cfg: TrainConfig, row: dict[str, Any], trust: bool) -> Finding | None:
    model = cfg.actor_rollout_ref.model
    path = cfg.data.tokenizer or model.tokenizer_path or model.path
    if not path or not (Path(path).expanduser() / "tokenizer_config.json").is_file():
        return None
    template = model.custom_chat_template
    if (
        template is not None
        and "{" not in template
        and (is_remote(template) or (is_private_path(template) and not trust))
    ):
        text = f"the chat template {template} is not opened: it is a private file, or on another machine"
        return Finding("template", WARNING, text, keys=("actor_rollout_ref.model.custom_chat_template",))
    from burnish.data.encode import PromptEncoder, TemplateFailure
    from burnish.data.prompt import read_prompt
    from burnish.models.load import load_tokenizer

    key = "data.tokenizer" if cfg.data.tokenizer else "actor_rollout_ref.model.path"
    try:
        tokenizer = load_tokenizer(
            path, trust_remote_code=trust and model.trust_remote_code, key=key, chat_template=template
        )
        data = cfg.data
        encoder = PromptEncoder(
            tokenizer, dict(data.apply_chat_template_kwargs), data.apply_chat_template, data.input_template
        )
        length = len(encoder.ids(read_prompt(row, data.prompt_key, where="the first row")))
    except UserError as error:
        if model.trust_remote_code and not trust and error.hint and "trust_remote_code" in error.hint:
            text = "the model's own Python code was not run, so its chat template was not tried"
            return Finding("template", NOTE, text, "burnish doctor --trust, if you trust that code", (key,))
        return Finding("template", REFUSED, error.text(), keys=(key,))
    except TemplateFailure as error:
        return Finding("template", REFUSED, f"the chat template fails on the first row: {error}", keys=(key,))
    limit = cfg.data.max_prompt_length
    if length > limit:
        text = f"the first prompt has {length} tokens; data.max_prompt_length is {limit}"
        return Finding("template", WARNING, text, f"data.max_prompt_length={2 * length}", ("data.max_prompt_length",))
    return None
