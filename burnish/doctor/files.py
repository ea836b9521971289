"""Files that a config names: are they here, can they be read, do they hold what the run will look for?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.config import SftConfig, TrainConfig
from burnish.config.data import DataConfig
from burnish.data.check import check_rows
from burnish.data.files import ListRows, Rows, read_file
from burnish.doctor.rules import REFUSED, WARNING, Finding
from burnish.errors import UserError
from burnish.user_code import is_user_path

LOOKED_AT = 200  # rows of a file whose content is checked
SECONDS = 30.0  # a user's file may take to be imported
_IMPORT = """
import sys
from burnish.errors import UserError
from burnish.user_code import load_user_attribute, load_user_module
path, name, key = sys.argv[1:]
try:
    load_user_attribute(path, name, key=key) if name else load_user_module(path, key=key)
except UserError as error:
    sys.exit(error.text())
"""


@dataclass(frozen=True)
class UserFile:
    """A Python file that a key names, and what the run takes from it."""

    key: str
    path: str
    name: str | None = None


def user_files(cfg: TrainConfig) -> Iterator[UserFile]:
    """Every Python file of the user's own that the run would import."""
    judge = cfg.reward_model
    pairs = (
        ("custom_reward_function.path", cfg.custom_reward_function.path, cfg.custom_reward_function.name),
        ("data.custom_cls.path", cfg.data.custom_cls.path, cfg.data.custom_cls.name),
        ("data.sampler.class_path", cfg.data.sampler.class_path, cfg.data.sampler.class_name),
        ("data.datagen.path", cfg.data.datagen.path, cfg.data.datagen.name),
        ("reward_model.model.custom_cls.path", judge.model.custom_cls.path, judge.model.custom_cls.name),
    )
    yield from (UserFile(key, path, name) for key, path, name in pairs if path)
    chosen = {
        "algorithm.adv_estimator": cfg.algorithm.adv_estimator,
        "actor_rollout_ref.actor.policy_loss.loss_mode": cfg.actor_rollout_ref.actor.policy_loss.loss_mode,
        "reward_model.reward_manager": judge.reward_manager,
        "actor_rollout_ref.rollout.name": cfg.actor_rollout_ref.rollout.name,
    }
    for key, value in chosen.items():
        if is_user_path(value):
            path, _, name = value.rpartition(":")
            yield UserFile(key, path, name)
    for url in cfg.reward.remote_url:
        if url.endswith(".py"):
            yield UserFile("reward.remote_url", url, "reward_func")


def check_user_file(file: UserFile) -> Finding | None:
    """Import it in a process of its own, which is ended when it takes too long."""
    if not file.path.startswith("pkg://"):
        path = Path(file.path.removeprefix("file://")).expanduser()
        if not path.is_file():
            text = f"{file.key}={file.path}: no such file on this machine"
            return Finding("user_file", WARNING, text, f"{file.key}=/path/to/file.py", (file.key,))
    command = [sys.executable, "-c", _IMPORT, file.path, file.name or "", file.key]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, said = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        said, child.returncode = f"{file.key}={file.path}: importing it takes longer than {SECONDS:.0f} s", 1
    if child.returncode == 0:
        return None
    last = (said.strip().splitlines() or [f"{file.path} ended with status {child.returncode}"])[-1]
    return Finding("user_file", REFUSED, last, keys=(file.key,))


@dataclass
class DataLook:
    """What was seen of one key's files."""

    num_rows: int | None = None  # None unless all files are here
    first: dict[str, Any] | None = None  # a row
    findings: tuple[Finding, ...] = ()


def look_at_data(cfg: DataConfig, key: str, files: list[str]) -> DataLook:
    """Count the rows, and check the columns and the first rows of each file."""
    if cfg.custom_cls.path:
        return DataLook()
    findings: list[Finding] = []
    total, first = 0, None
    for name in files:
        rows = _read(name, key, findings)
        if rows is None:
            return DataLook(findings=tuple(findings))
        total += len(rows)
        first = first or (rows.row(0) if len(rows) else None)
        if cfg.handler.name is None:
            findings += _check(cfg, key, rows)
    return DataLook(total if files else None, first, tuple(findings))


def look_at_examples(cfg: SftConfig, key: str, files: list[str]) -> DataLook:
    """The same for supervised training: its columns are other ones."""
    data = cfg.data
    if data.custom_cls.path:
        return DataLook()
    wanted = [data.multiturn.messages_key] if data.multiturn.enable else [data.prompt_key, data.response_key]
    findings: list[Finding] = []
    total = 0
    for name in files:
        rows = _read(name, key, findings)
        if rows is None:
            return DataLook(findings=tuple(findings))
        total += len(rows)
        for column in wanted:
            if column not in rows.kinds:
                findings.append(_no_column(key, rows, column))
    return DataLook(total if files else None, None, tuple(findings))


def _read(name: str, key: str, findings: list[Finding]) -> Rows | None:
    """The rows of a local file. What is elsewhere (a hub, a store) is not fetched."""
    path = Path(name).expanduser()
    if not path.exists():
        if path.suffix:
            text = f"{key}={name}: no such file on this machine; its rows are not counted"
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
    """Columns of the whole file, content of its first rows."""
    if cfg.prompt_key not in rows.kinds:
        yield _no_column(key, rows, cfg.prompt_key)
        return
    some = ListRows([rows.row(number) for number in range(min(len(rows), LOOKED_AT))])
    if not len(rows):
        yield Finding("data_file", REFUSED, f"{rows.name} has no rows", keys=(key,))
        return
    sources = cfg.reward_fn_key if cfg.reward_fn_key in rows.kinds else cfg.prompt_key
    report = check_rows(some, prompt_key=cfg.prompt_key, reward_fn_key=sources)
    labelled = cfg.label_key is not None and cfg.label_key in rows.kinds
    for finding in report.errors.values():
        if sources == cfg.prompt_key and finding.problem.startswith(repr(cfg.prompt_key)):
            continue  # there is no column of data sources: the dataset's own name stands in
        if labelled and "ground_truth" in finding.problem:
            continue
        yield Finding("data_file", REFUSED, f"{rows.name}: {finding.text()}", keys=(key,))
    if "reward_model" not in rows.kinds and not labelled:
        text = f"{rows.name} has neither a column 'reward_model' nor a data.label_key: rewards get no ground truth"
        yield Finding("data_file", WARNING, text, "data.label_key=answer", (key,))


def _no_column(key: str, rows: Rows, column: str) -> Finding:
    text = f"{rows.name} has no column {column!r}; it has {', '.join(rows.kinds)}"
    wanted = "data.messages_key" if column == "messages" else "data.prompt_key"
    return Finding("data_file", REFUSED, text, f"{wanted}={next(iter(rows.kinds), '')}", (key, wanted))


def check_template(cfg: TrainConfig, row: dict[str, Any]) -> Finding | None:
    """The first prompt through the model's own chat template, where its tokenizer is here."""
    model = cfg.actor_rollout_ref.model
    path = cfg.data.tokenizer or model.tokenizer_path or model.path
    if not path or not (Path(path).expanduser() / "tokenizer_config.json").is_file():
        return None
    from burnish.data.encode import PromptEncoder, TemplateFailure
    from burnish.data.prompt import read_prompt
    from burnish.models.load import load_tokenizer

    key = "data.tokenizer" if cfg.data.tokenizer else "actor_rollout_ref.model.path"
    try:
        tokenizer = load_tokenizer(
            path, trust_remote_code=model.trust_remote_code, key=key, chat_template=model.custom_chat_template
        )
        data = cfg.data
        encoder = PromptEncoder(
            tokenizer, dict(data.apply_chat_template_kwargs), data.apply_chat_template, data.input_template
        )
        length = len(encoder.ids(read_prompt(row, data.prompt_key, where="the first row")))
    except UserError as error:
        return Finding("template", REFUSED, error.text(), keys=(key,))
    except TemplateFailure as error:
        return Finding("template", REFUSED, f"the chat template fails on the first row: {error}", keys=(key,))
    limit = cfg.data.max_prompt_length
    if length > limit:
        text = f"the first prompt has {length} tokens, data.max_prompt_length is {limit}"
        return Finding("template", WARNING, text, f"data.max_prompt_length={2 * length}", ("data.max_prompt_length",))
    return None
