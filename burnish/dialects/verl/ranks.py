"""The ranks that torchrun starts: verl's supervised training takes their number from there, not from its config."""

from __future__ import annotations

from burnish.dialects.invocation import Invocation
from burnish.dialects.report import CONVERTED, INERT, REFUSED, Item, Translation

# What torchrun says -> our key.
_KEYS = {"nproc_per_node": "trainer.n_gpus_per_node", "nnodes": "trainer.nnodes"}


def read_ranks(invocation: Invocation, translation: Translation) -> None:
    """Put torchrun's numbers over those of the config, which verl does not read."""
    if not invocation.processes:
        return
    for name, key in _KEYS.items():
        text = invocation.processes.get(name, "1")
        given = name in invocation.processes
        if not text.isdigit():
            why = f"the number of processes must be known. Type: --{name}=8"
            translation.items.append(Item(f"--{name}", text, REFUSED, key, why=why))
            continue
        _overrule(translation, key, name, int(text))
        if given:
            why = "torchrun starts the processes"
            translation.put(Item(f"--{name}", text, CONVERTED, key, int(text), why))


def _overrule(translation: Translation, key: str, name: str, number: int) -> None:
    for index, item in enumerate(translation.items):
        if item.ours == key and item.ours_value != number:
            why = f"verl's supervised training does not read it: torchrun starts {number} (--{name})"
            translation.items[index] = Item(item.theirs, item.value, INERT, key, item.ours_value, why, item.given)
            translation.settings[key] = number
