"""Translator: the sections of one MindSpeed RL config, and the translation built from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.config.tree import tree
from burnish.config.values import convert
from burnish.dialects.mindspeed.schema import PER_ROLE, RENAMED
from burnish.dialects.report import CONVERTED, INERT, KEPT, PENDING, REFUSED, Item, Translation, is_default
from burnish.errors import UserError

_UNCHANGED = object()


@dataclass(frozen=True)
class Setting:
    """One MindSpeed RL setting: written in the config (`explicit`), or a default of the config class."""

    theirs: str
    value: Any
    explicit: bool


class Section:
    """Settings of one config class: YAML sections layered over one another and over the class's defaults."""

    def __init__(
        self, defaults: Mapping[str, Any], layers: Sequence[tuple[str, Mapping[str, Any]]], num_library_layers: int = 0
    ) -> None:
        """The first `num_library_layers` layers come from the model library, not from the user's config."""
        self.name, self.base_name = layers[-1][0], layers[num_library_layers][0]
        self.settings: dict[str, Setting] = {}
        for number, (name, layer) in enumerate(layers):
            for key, value in layer.items():
                self.settings[plain_key(key)] = Setting(f"{name}.{key}", value, number >= num_library_layers)
        self.defaults = defaults

    def __getitem__(self, key: str) -> Setting:
        setting = self.settings.get(key)
        if setting is not None:
            return setting
        name = self.name if key in PER_ROLE else self.base_name
        return Setting(f"{name}.{key}", self.defaults.get(key), False)

    def value(self, key: str) -> Any:
        return self[key].value

    def values(self) -> dict[str, Any]:
        """All values, including defaults."""
        return {**self.defaults, **{key: setting.value for key, setting in self.settings.items()}}


def is_refused(translation: Translation, theirs: str) -> bool:
    return any(item.theirs == theirs and item.status == REFUSED for item in translation.items)


def plain_key(key: str) -> str:
    """Normalize `min-lr` to `min_lr`, and names of 2.2 to those of 2.3."""
    name = str(key).replace("-", "_")
    return RENAMED.get(name, name)


@dataclass(frozen=True)
class Stage:
    """A training stage. `kl` says where the KL to the reference is applied: loss, reward, or None."""

    name: str
    script: str
    kl: str | None
    clips_higher: bool = False
    filters: bool = False
    critic: bool = False


@dataclass
class Translator:
    """`actor` and `critic` hold MegatronConfig; `rl`, `generate` and `sampling` hold the other config classes."""

    translation: Translation
    stage: Stage
    actor: Section
    critic: Section
    rl: Section
    generate: Section
    sampling: Section
    folder: str = "."
    handled: set[str] = field(default_factory=set)  # source settings that have an item

    def set(self, setting: Setting, ours: str, value: Any = _UNCHANGED, why: str = "") -> None:
        """Set a Burnish key to `value`, by default the setting's own. Defaults equal to Burnish's need no item."""
        ours_value = setting.value if value is _UNCHANGED else value
        match = tree(self.translation.job).find(ours)
        assert match is not None, ours
        leaf, rest = match
        try:
            ours_value = ours_value if rest else convert(leaf, ours_value)
        except UserError as error:
            allowed = error.allowed if isinstance(error.allowed, str) else ", ".join(map(str, error.allowed or ()))
            self.refuse(setting, error.problem + (f"; allowed: {allowed}" if allowed else ""))
            return
        if not setting.explicit and is_default(ours, ours_value, self.translation.job):
            return
        status = KEPT if ours_value == setting.value else CONVERTED
        self._add(Item(setting.theirs, setting.value, status, ours, ours_value, why, setting.explicit))

    def inert(self, setting: Setting, why: str) -> None:
        """Report a setting without effect. Defaults are not reported."""
        if setting.explicit:
            self._add(Item(setting.theirs, setting.value, INERT, why=why))

    def pending(self, setting: Setting, why: str) -> None:
        """Report a feature that is not supported yet and that no single Burnish key stands for."""
        self._add(Item(setting.theirs, setting.value, PENDING, why=why, explicit=setting.explicit))

    def refuse(self, setting: Setting, why: str) -> None:
        """Refuse a setting, unless its value is refused already: what follows from that needs no report."""
        if is_refused(self.translation, setting.theirs):
            return
        self._add(Item(setting.theirs, setting.value, REFUSED, why=why, explicit=setting.explicit))

    def set_implicit(self, setting: Setting, ours: str, value: Any, why: str) -> None:
        """Set a Burnish key to what MindSpeed RL always does with this setting and has no key for."""
        if not is_default(ours, value, self.translation.job):
            self._add(Item(setting.theirs, setting.value, CONVERTED, ours, value, why, explicit=False))

    def _add(self, item: Item) -> None:
        self.handled.add(item.theirs)
        self.translation.add(item)
