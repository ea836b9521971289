"""What one can see of data and files that lie elsewhere, and the files that such rows need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pytest

import burnish.storage
from burnish.loop.build import build
from burnish.loop.state import resume

from . import observe as see
from .kit import PROMPTS, Case, Kit
from .row import Observe

HDFS = "memory://keys/run"


def ground_truth(case: Case) -> list[Any]:
    return see.prompts(case)["ground_truth"]


def prompt_texts(case: Case) -> list[str]:
    """The first prompts as the model reads them."""
    return case.run.recorder.tokenizer.batch_decode(see.prompt_ids(case))


def chats(case: Case) -> list[Any]:
    return see.prompts(case)["raw_prompt"]


def extra_info(case: Case) -> list[Any]:
    return see.prompts(case)["extra_info"]


def in_shared_memory(*names: str) -> Observe:
    """Does a copy of one of these files appear in shared memory?"""

    def observe(case: Case) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            shm = case.kit.root / f"shm{len(list(case.kit.root.glob('shm*')))}"
            shm.mkdir()
            patch.setattr(burnish.storage, "SHARED_MEMORY", shm)
            build(case.cfg).close()
            return any(list(shm.rglob(name)) for name in names)

    return observe


data_in_shm = in_shared_memory("train.jsonl")
model_in_shm = in_shared_memory("config.json")


def copied_steps(case: Case) -> list[str]:
    """Checkpoints that a whole run leaves in memory://."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    case.fitted()
    return sorted(name.split("/")[3] for name in filesystem.store if name.endswith("manifest.json"))


def local_after_loading(case: Case) -> bool:
    """Is the checkpoint that a run resumed from still there?"""
    fsspec.filesystem("memory").store.clear()
    case.fitted()
    again = build(case.cfg)
    try:
        resume(again)
        assert again.step == 2
        return again.recorder.checkpoints.path(2).is_dir()
    finally:
        again.close()


def num_after_training(case: Case) -> int:
    """Prompts there are after a whole run."""
    case.fitted()
    return len(case.run.rollout.train_data)


# files


def texts(kit: Kit) -> str:
    """Rows of plain text with a label, as OpenRLHF's data has them."""
    return _json(kit, "texts", [{"prompt": f"{n}+{n}", "label": str(n), "second": f"L{n}"} for n in range(12)])


def alpaca(kit: Kit) -> str:
    rows = [{"instruction": f"{n}?", "input": f"{n}", "output": str(n), "prompt": f"{n}-"} for n in range(12)]
    return _json(kit, "alpaca", rows)


def splits(kit: Kit) -> str:
    """A saved dataset of two splits."""
    folder = kit.root / "splits"
    if not folder.exists():
        datasets.disable_progress_bars()
        rows = [json.loads(line) for line in kit.train_file.read_text().splitlines()]
        parts = {"train": rows, "test": rows[:5], "more": rows[:4]}
        saved = {name: datasets.Dataset.from_list(part) for name, part in parts.items()}
        datasets.DatasetDict(saved).save_to_disk(folder)
    return str(folder)


def packed(kit: Kit) -> str:
    """Prompts and answers as MindSpeed RL packs them."""
    from ..data.packed import write_field

    prefix = kit.root / "packed"
    write_field(prefix, "input_ids", [[3 + n % 5, 4, 5] for n in range(12)])
    write_field(prefix, "labels", [[3 + n % 5] for n in range(12)])
    return str(prefix)


def template(kit: Kit) -> str:
    path = kit.root / "template.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}={% endfor %}")
    return str(path)


def _json(kit: Kit, name: str, rows: list[dict[str, Any]]) -> str:
    path: Path = kit.root / f"{name}.json"
    path.write_text(json.dumps(rows))
    assert len(rows) >= PROMPTS
    return str(path)
