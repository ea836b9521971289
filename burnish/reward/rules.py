"""REWARDS: the built-in rules by data source. A rule has the same signature as a user's reward function.

A name that ends in * matches every data source with that prefix. Libraries in `needs` must be installed.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from typing import Any

from burnish.errors import UserError, install_extra
from burnish.registry import Entry, Registry

# Library -> the extra of Burnish that installs it.
_EXTRAS = {"math_verify": "math"}


@dataclass(frozen=True)
class Example:
    """A ground truth with a correct and a wrong response, for the contract test."""

    ground_truth: Any
    right: str
    wrong: str


REWARDS = Registry("reward", key="data_source")


def find_rule(data_source: str) -> Entry | None:
    """The entry for this data source, by exact name, else by prefix."""
    if data_source in REWARDS:
        return REWARDS[data_source]
    prefixes = ((name[:-1], entry) for name, entry in REWARDS.entries.items() if name.endswith("*"))
    return next((entry for prefix, entry in prefixes if data_source.startswith(prefix)), None)


def check_needs(entry: Entry) -> None:
    """Raise UserError if a library that the entry needs is not installed."""
    for library in entry.needs & _EXTRAS.keys():
        if not _is_installed(library):
            hint = install_extra(_EXTRAS[library])
            problem = f"the reward of {entry.name!r} requires {library}"
            raise UserError(problem, key="data_source", value=entry.name, hint=hint)


@functools.cache
def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


REWARDS.register_lazy(
    "openai/gsm8k",
    "burnish.reward.gsm8k:gsm8k",
    example=Example("1234", right="So he pays 617 * 2.\n#### 1,234", wrong="So he pays 617.\n#### 617"),
)

for _name in ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"):
    REWARDS.register_lazy(
        _name,
        "burnish.reward.math:boxed_math",
        example=Example(r"\frac{1}{2}", right=r"It is $\boxed{\dfrac12}$.", wrong=r"It is $\boxed{\frac{1}{3}}$."),
    )

for _name in ("burnish/sort", "burnish/sums", "burnish/shapes"):
    REWARDS.register_lazy(_name, "burnish.reward.exact:exact", example=Example("42", right=" 42\n", wrong="24"))

for _name in ("math_dapo", "math", "math_dapo_reasoning", "aime*"):
    REWARDS.register_lazy(
        _name,
        "burnish.reward.math_dapo:math_dapo",
        example=Example("34", right="We add them up.\nAnswer: $34$", wrong="We add them up.\nAnswer: 43"),
    )

REWARDS.register_lazy(
    "numina_*",
    "burnish.reward.numina:numina",
    needs={"math_verify"},
    example=Example("(x+1)^2", right=r"So it is \boxed{x^2 + 2x + 1}.", wrong=r"So it is \boxed{x^2 + 1}."),
)

REWARDS.register_lazy(
    "hiyouga/geometry3k",
    "burnish.reward.geometry3k:geometry3k",
    needs={"math_verify"},
    example=Example(
        r"2\sqrt{2}", right=r"<think>Pythagoras.</think> It is \boxed{\sqrt{8}}.", wrong=r"It is \boxed{\sqrt{7}}."
    ),
)

REWARDS.register_lazy(
    "searchR1_*",
    "burnish.reward.search_qa:search_qa",
    example=Example(
        {"target": ["Marie Curie", "Maria Skłodowska"]},
        right="<think>Nobel prizes</think><answer>the Marie Curie.</answer>",
        wrong="<answer>Pierre Curie</answer>",
    ),
)

for _name in ("codecontests", "apps", "codeforces", "taco"):
    REWARDS.register_lazy(
        _name,
        "burnish.reward.code:code",
        runs_code=True,
        example=Example(
            '{"inputs": ["1 2\\n"], "outputs": ["3\\n"]}',
            right="```python\nprint(sum(map(int, input().split())))\n```",
            wrong="```python\nprint(4)\n```",
        ),
    )
