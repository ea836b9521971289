"""Token records: what every token of a step's trajectories was and what it was trained with, for `burnish view`.

{run folder}/tokens/{step}.safetensors has one row per trajectory, in the order of rollouts/{step}.jsonl. Columns are
flat, as in a Batch; `lengths` and `prompt_lengths` divide them. tokenizer.json, beside the files, turns ids into text.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.folders import make_private
from burnish.storage import disk_full

if TYPE_CHECKING:
    from burnish.batch import Batch

FOLDER = "tokens"
TOKENIZER = "tokenizer.json"
SUFFIX = ".safetensors"
SAMPLED, TRAINED = 1, 2  # bits of `flags`
# Batch column -> type on disk. A ratio is the difference of two log-probs, which needs all digits; float16 has three.
COLUMNS = {
    "rollout_log_probs": np.float32,
    "old_log_probs": np.float32,
    "ref_log_prob": np.float16,
    "entropys": np.float16,
    "advantages": np.float16,
    "values": np.float16,
    "token_level_rewards": np.float16,
    "importance_weights": np.float16,
}
MAX_WAITING = 8  # steps that wait for a slow disk; more are skipped


def recorded_steps(folder: Path) -> list[int]:
    """Steps with a file in this folder, oldest first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(stem) for name in names if (stem := name.removesuffix(SUFFIX)) != name and stem.isdecimal())


def token_path(folder: Path, step: int) -> Path:
    return folder / f"{step}{SUFFIX}"


class TokenWriter:
    """Writes the token records of steps in a thread, and keeps those of the newest `keep` steps.

    `record` only copies what lives on a device. What the disk refuses is lost and reported by `take_problem`: the
    viewer must not stop a run.
    """

    def __init__(self, folder: Path, keep: int | None, tokenizer: Any = None) -> None:
        self.folder = folder
        self.keep = keep
        self.tokenizer = tokenizer
        self._waiting: queue.Queue[tuple[int, dict[str, Any]] | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._problem: str | None = None

    def record(self, step: int, batch: Batch) -> None:
        """Queue the step's tokens for writing."""
        if self.keep == 0:
            return
        columns = token_columns(batch)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(step,), name="burnish-tokens", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait((step, columns))
        except queue.Full:
            self._problem = f"the disk is too slow: the tokens of step {step} are not recorded for `burnish view`"

    def take_problem(self) -> str | None:
        """What went wrong since the last call."""
        problem, self._problem = self._problem, None
        return problem

    def wait(self) -> None:
        """Wait until everything that was queued is written."""
        self._waiting.join()

    def close(self) -> None:
        """The same, and end the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self, first_step: int) -> None:
        is_first = True
        while (job := self._waiting.get()) is not None:
            step, columns = job
            try:
                if is_first:
                    self._start(first_step)
                    is_first = False
                write_tokens(token_path(self.folder, step), columns, step)
                self._drop_old()
            except Exception as error:  # of the disk, or of a tokenizer that cannot be written: no reason to stop a run
                problem = f"cannot record the tokens of step {step} for `burnish view`: {error}"
                self._problem = f"{disk_full(error) if isinstance(error, OSError) else ''}{problem}"
            finally:
                self._waiting.task_done()

    def _start(self, first_step: int) -> None:
        """Remove the records of steps that this run repeats, and write the tokenizer."""
        make_private(self.folder)
        for step in recorded_steps(self.folder):
            if step >= first_step:
                token_path(self.folder, step).unlink(missing_ok=True)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            _replace(self.folder / TOKENIZER, backend.to_str().encode())

    def _drop_old(self) -> None:
        for step in [] if self.keep is None else recorded_steps(self.folder)[: -self.keep]:
            token_path(self.folder, step).unlink(missing_ok=True)


def token_columns(batch: Batch) -> dict[str, Any]:
    """The columns to write, as tensors or lists in main memory."""
    columns: dict[str, Any] = {
        "prompt_ids": batch["prompt_ids"].flat.cpu(),
        "prompt_lengths": batch["prompt_ids"].lengths,
        "ids": batch["responses"].flat.cpu(),
        "lengths": batch["responses"].lengths,
        "token_level_scores": batch["token_level_scores"].flat.detach().cpu(),
        "response_mask": batch["response_mask"].flat.cpu(),
    }
    for name in (*COLUMNS, "loss_mask", "weight_version"):
        if name in batch:
            columns[name] = batch[name].flat.detach().cpu()
    if "top_log_probs" in batch:
        columns["top_log_probs"] = batch["top_log_probs"]
    if any(batch.get("generation_time") or ()):
        columns["generation_time"] = [span or (float("nan"), float("nan")) for span in batch["generation_time"]]
    if any(batch.get("segments") or ()):
        columns["segments"] = batch["segments"]
    return columns


def write_tokens(path: Path, columns: Mapping[str, Any], step: int) -> None:
    """Convert to compact types, and write under a temporary name, then rename."""
    from safetensors.numpy import save

    arrays, metadata = _arrays(columns), {"step": str(step)}
    versions = arrays.pop("versions", None)
    if versions is not None:
        sampled = versions[arrays["flags"] & SAMPLED > 0]
        if len(sampled) and sampled.min() == sampled.max():  # as a rule, one set of weights sampled the whole step
            metadata["version"] = str(sampled[0])
        else:
            arrays["versions"] = versions
    _replace(path, save(arrays, metadata))


def _arrays(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    integers = {name: columns[name] for name in ("prompt_ids", "prompt_lengths", "ids", "lengths")}
    arrays = {name: column.numpy().astype(np.int32) for name, column in integers.items()}
    sampled = columns["response_mask"].numpy() > 0
    trained = sampled & (columns["loss_mask"].numpy() > 0) if "loss_mask" in columns else sampled
    arrays["flags"] = sampled * np.uint8(SAMPLED) + trained * np.uint8(TRAINED)
    rows = np.repeat(np.arange(len(arrays["lengths"])), arrays["lengths"])
    scores = np.bincount(rows, columns["token_level_scores"].double().numpy(), len(arrays["lengths"]))
    arrays["scores"] = scores.astype(np.float32)
    for name, dtype in COLUMNS.items():
        if name in columns:
            numbers, limit = columns[name].float().numpy(), float(np.finfo(dtype).max)
            arrays[name] = np.clip(numbers, -limit, limit).astype(dtype)
    if "weight_version" in columns:
        arrays["versions"] = columns["weight_version"].numpy().astype(np.int32)
    arrays |= _alternatives(columns.get("top_log_probs"), columns["lengths"].tolist())
    if "generation_time" in columns:
        times = np.array(columns["generation_time"], np.float64).reshape(-1, 2)
        arrays["started"], arrays["finished"] = times[:, 0].copy(), times[:, 1].copy()
    if "segments" in columns:  # what each conversation did when, one row after the other
        rows = columns["segments"]
        arrays["segment_lengths"] = np.array([len(row) for row in rows], np.int32)
        flat = np.array([segment for row in rows for segment in row], np.float64).reshape(-1, 3)
        arrays["segment_kinds"] = flat[:, 0].astype(np.uint8)
        arrays["segment_starts"], arrays["segment_seconds"] = flat[:, 1].copy(), flat[:, 2].astype(np.float32)
    return arrays


def _alternatives(rows: list[Any] | None, lengths: list[int]) -> dict[str, np.ndarray]:
    """The likeliest tokens at every position, [tokens, k]; -1 where there are fewer."""
    if rows is None or len(rows) != len(lengths):
        return {}
    places: list[list[tuple[int, float]]] = [
        top for row, length in zip(rows, lengths, strict=True) for top in (row or [[]] * length)
    ]
    width = max(map(len, places), default=0)
    if width == 0 or len(places) != sum(lengths):
        return {}
    ids, log_probs = np.full((len(places), width), -1, np.int32), np.full((len(places), width), np.nan, np.float16)
    for place, top in enumerate(places):
        for rank, (token, log_prob) in enumerate(top):
            ids[place, rank], log_probs[place, rank] = token, log_prob
    return {"top_ids": ids, "top_log_probs": log_probs}


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
