"""Reading: the sections of one config beside the translation that grows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.config.tree import tree
from burnish.config.values import convert
from burnish.dialects.mindspeed.sections import OF_A_ROLE, OLDER
from burnish.dialects.report import CONVERTED, INERT, KEPT, PENDING, REFUSED, Item, Translation, is_default
from burnish.errors import UserError

_SAME = object()


@dataclass(frozen=True)
class Setting:
    """One setting of theirs: as it was written, or the default of their class (`given` is False)."""

    theirs: str
    value: Any
    given: bool


class Section:
    """Settings of one class of theirs: YAML sections laid over one another, over the class's own defaults."""

    def __init__(self, defaults: Mapping[str, Any], layers: Sequence[tuple[str, Mapping[str, Any]]], library: int = 0):
        """The first `library` layers are entries of the model library: nobody wrote those into this config."""
        self.name, self.home = layers[-1][0], layers[library][0]
        self.found: dict[str, Setting] = {}
        for number, (name, layer) in enumerate(layers):
            for key, value in layer.items():
                self.found[plain_key(key)] = Setting(f"{name}.{key}", value, number >= library)
        self.defaults = defaults

    def __getitem__(self, key: str) -> Setting:
        found = self.found.get(key)
        if found is not None:
            return found
        name = self.name if key in OF_A_ROLE else self.home
        return Setting(f"{name}.{key}", self.defaults.get(key), False)

    def value(self, key: str) -> Any:
        return self[key].value

    def values(self) -> dict[str, Any]:
        """All of them, defaults included."""
        return {**self.defaults, **{key: setting.value for key, setting in self.found.items()}}


def plain_key(key: str) -> str:
    """`min-lr` is `min_lr`, and a name of 2.2 is that of 2.3."""
    name = str(key).replace("-", "_")
    return OLDER.get(name, name)


@dataclass(frozen=True)
class Stage:
    """What `stage` selects. `kl` says where the KL to the reference goes: loss, reward, or nowhere."""

    name: str
    script: str
    kl: str | None
    clips_higher: bool = False
    filters: bool = False
    critic: bool = False


@dataclass
class Reading:
    """`actor` and `critic` are their MegatronConfig; `rl`, `generate` and `sampling` the other classes."""

    translation: Translation
    stage: Stage
    actor: Section
    critic: Section
    rl: Section
    generate: Section
    sampling: Section
    folder: str = "."
    read: set[str] = field(default_factory=set)  # settings of theirs that have an item

    def put(self, setting: Setting, ours: str, value: Any = _SAME, why: str = "") -> None:
        """Our key gets this value, or theirs as it is. A default of theirs that is ours too needs no word."""
        ours_value = setting.value if value is _SAME else value
        leaf, rest = tree(self.translation.job).find(ours)
        try:
            ours_value = ours_value if rest else convert(leaf, ours_value)
        except UserError as error:
            allowed = error.allowed if isinstance(error.allowed, str) else ", ".join(map(str, error.allowed or ()))
            self.refuse(setting, error.problem + (f"; allowed: {allowed}" if allowed else ""))
            return
        if not setting.given and is_default(ours, ours_value, self.translation.job):
            return
        status = KEPT if ours_value == setting.value else CONVERTED
        self._add(Item(setting.theirs, setting.value, status, ours, ours_value, why, setting.given))

    def inert(self, setting: Setting, why: str) -> None:
        """Understood and without effect. Nobody needs to hear that of a default."""
        if setting.given:
            self._add(Item(setting.theirs, setting.value, INERT, why=why))

    def pend(self, setting: Setting, why: str) -> None:
        """Understood, and it waits for later work in a form that no single key says."""
        self._add(Item(setting.theirs, setting.value, PENDING, why=why, given=setting.given))

    def refuse(self, setting: Setting, why: str) -> None:
        self._add(Item(setting.theirs, setting.value, REFUSED, why=why, given=setting.given))

    def also(self, setting: Setting, ours: str, value: Any, why: str) -> None:
        """What MindSpeed RL always does beside this setting, and has no key for."""
        if not is_default(ours, value, self.translation.job):
            self._add(Item(setting.theirs, setting.value, CONVERTED, ours, value, why, given=False))

    def _add(self, item: Item) -> None:
        self.read.add(item.theirs)
        self.translation.put(item)
