"""REWARDS: the built-in rules, one row per data source. A rule is a function of the same form as a user's own."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.table import Table


@dataclass(frozen=True)
class Example:
    """A ground truth with a right and a wrong response; the contract test scores them."""

    ground_truth: str
    right: str
    wrong: str


REWARDS = Table("reward", key="data_source")

REWARDS.add_lazy(
    "openai/gsm8k",
    "burnish.reward.gsm8k:gsm8k",
    example=Example("1234", right="So he pays 617 * 2.\n#### 1,234", wrong="So he pays 617.\n#### 617"),
)

for _name in ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"):
    REWARDS.add_lazy(
        _name,
        "burnish.reward.math:boxed_math",
        example=Example(r"\frac{1}{2}", right=r"It is $\boxed{\dfrac12}$.", wrong=r"It is $\boxed{\frac{1}{3}}$."),
    )

for _name in ("burnish/sort", "burnish/sums"):
    REWARDS.add_lazy(_name, "burnish.reward.exact:exact", example=Example("42", right=" 42\n", wrong="24"))
