"""Process counts of torchrun, from which verl's SFT takes its world size (not from its config)."""

from __future__ import annotations

from burnish.dialects.invocation import Invocation
from burnish.dialects.report import CONVERTED, INERT, REFUSED, Item, Translation

# torchrun option -> Burnish key.
_KEYS = {"nproc_per_node": "trainer.n_gpus_per_node", "nnodes": "trainer.nnodes"}
TORCHRUN_KEYS = tuple(_KEYS.values())
_SEQUENCE = "ulysses_sequence_parallel_size"


def apply_torchrun_counts(invocation: Invocation, translation: Translation) -> None:
    """Let torchrun's counts replace those of the config, which verl ignores."""
    if not invocation.processes:
        _count_sequence_ranks(invocation, translation)
        return
    for name, key in _KEYS.items():
        text = invocation.processes.get(name, "1")
        if not text.isdigit():
            why = f"must be a number: --{name}=8"
            translation.items.append(Item(f"--{name}", text, REFUSED, key, why=why))
            continue
        _override_config(translation, key, name, int(text))
        if name in invocation.processes:
            why = "number of processes that torchrun starts"
            translation.add(Item(f"--{name}", text, CONVERTED, key, int(text), why))


def _count_sequence_ranks(invocation: Invocation, translation: Translation) -> None:
    """A command without torchrun, as in a report of its arguments: as many ranks as its sequences need."""
    size, key = translation.settings.get(_SEQUENCE, 1), _KEYS["nproc_per_node"]
    if size > 1 and key not in translation.settings:
        why = f"torchrun sets the number of processes in verl; {_SEQUENCE} needs these"
        translation.add(Item(invocation.entry, None, CONVERTED, key, size, why, explicit=False))


def _override_config(translation: Translation, key: str, name: str, number: int) -> None:
    for index, item in enumerate(translation.items):
        if item.ours == key and item.ours_value != number:
            why = f"verl's SFT ignores it: torchrun starts {number} (--{name})"
            translation.items[index] = Item(item.theirs, item.value, INERT, key, item.ours_value, why, item.explicit)
            translation.settings[key] = number
