"""Checkpoints of other systems: whose they are, where their Hugging Face weights lie, or how to get some.

verl        global_step_N/{actor,critic}/huggingface, beside model_world_size_W_rank_R.pt (FSDP) or dist_ckpt (Megatron)
OpenRLHF    global_stepN_hf (Hugging Face), _actor/global_stepN/mp_rank_* (DeepSpeed)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import UserError
from burnish.training.checkpoint import MANIFEST, TRAINER
from burnish.training.shards import FILE
from burnish.training.state import HUB, HUB_WEIGHTS

NEW = "NEW_FOLDER"


@dataclass(frozen=True)
class Foreign:
    """Folders whose weights Hugging Face can read. None: that role has none."""

    whose: str
    actor: Path
    critic: Path | None = None


def find_foreign(folder: Path, *, key: str) -> Foreign | None:
    """What another system left there; None if that is not what it is. UserError where it must be converted first."""
    if not folder.is_dir() or (folder / MANIFEST).is_file() or (folder / TRAINER).is_file():
        return None
    for where in (folder / "actor", folder):
        if has_weights(where / HUB) or has_weights(where):
            critic = folder / "critic"
            in_roles = where != folder and (has_weights(critic / HUB) or has_weights(critic))
            whose = "verl" if where != folder or (where / HUB).is_dir() else "Hugging Face"
            return Foreign(whose, where, critic if in_roles else None)
    for problem, hint in _conversions(folder):
        raise UserError(problem, key=key, value=str(folder), hint=hint)
    return None


def has_weights(folder: Path) -> bool:
    """Is this a folder that `from_pretrained` reads a whole model from?"""
    return (folder / "config.json").is_file() and any(any(folder.glob(pattern)) for pattern in HUB_WEIGHTS)


def _conversions(folder: Path) -> Iterator[tuple[str, str]]:
    """What it is, and the command that makes Hugging Face weights of it."""
    actor = folder / "actor" if (folder / "actor").is_dir() else folder
    then = f"then trainer.resume_from_path={NEW}"
    if any(FILE.fullmatch(path.name) for path in actor.iterdir()):
        yield "a verl checkpoint without Hugging Face weights", f"burnish export {folder} {NEW}, {then}"
    if (actor / "dist_ckpt").is_dir():
        merge = f"python -m verl.model_merger merge --backend megatron --local_dir {actor} --target_dir {NEW}"
        yield "a verl checkpoint of Megatron", f"{merge}, {then}"
    if (state := _deepspeed(folder)) is not None:
        whole = state.parent.parent / f"{state.name}_hf"
        if has_weights(whole):
            yield f"a DeepSpeed checkpoint of OpenRLHF; its weights are in {whole}", f"trainer.resume_from_path={whole}"
        script = f"python {state.parent}/zero_to_fp32.py {state.parent} {NEW} --tag {state.name} --safe_serialization"
        rest = "the model's config.json and tokenizer beside them"
        yield "a DeepSpeed checkpoint of OpenRLHF without Hugging Face weights", f"{script}, {rest}, {then}"
    if any(folder.glob("mp_rank_*/model_optim_rng.pt")):
        yield "a checkpoint of Megatron", f"the converter of the system that wrote it, to Hugging Face, {then}"


def _deepspeed(folder: Path) -> Path | None:
    """The folder with DeepSpeed's states: this one, or the newest in it, or in OpenRLHF's _actor."""
    if any(folder.glob("*mp_rank_*_states.pt")):
        return folder
    if (folder / "latest").is_file():
        return _deepspeed(folder / (folder / "latest").read_text().strip())
    return _deepspeed(folder / "_actor") if (folder / "_actor").is_dir() else None
