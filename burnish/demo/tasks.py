"""The demo's tasks: what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from burnish.demo.problems import Problems
from burnish.registry import Registry

# An entry is a DemoTask class. They import torch, so they are loaded on use. `folder` is the default output folder.
TASKS = Registry("demo task", key="--task")
TASKS.register_lazy("sort", "burnish.demo.sorting:SortTask", folder="runs/demo", about="sort five digits")
TASKS.register_lazy(
    "tools", "burnish.demo.calculator:CalculatorTask", folder="runs/demo_tools", about="call a calculator when needed"
)
TASKS.register_lazy(
    "vision", "burnish.demo.shapes:VisionTask", folder="runs/demo_vision", about="count the shapes in pictures"
)
DEFAULT = "sort"

Progress = Callable[[str], None]


class DemoTask(Protocol):
    """Data, warm-up and settings of a task."""

    model: ClassVar[str]
    goal: ClassVar[str]  # "A tiny Qwen2 model learns to ..."
    heading: ClassVar[str]  # of the questions in the table at the end
    data_source: ClassVar[str]
    accuracy: ClassVar[str]  # the validation metric
    steps: ClassVar[int]  # of GRPO
    settings: ClassVar[Sequence[str]]  # of GRPO

    def make_problems(self, seed: int) -> Problems: ...

    def warm_up(self, model: Path, problems: Problems, seed: int, progress: Progress) -> str:
        """Create the model and train it with SFT; returns what was done, in words."""
        ...

    def reward(self) -> Callable[..., Any] | None:
        """None: the built-in rule of the data source."""
        ...

    def tools(self) -> Sequence[Any]: ...

    def sample(self, record: Mapping[str, Any]) -> tuple[str, str]:
        """Question and answer of a record of the validation dump."""
        ...
