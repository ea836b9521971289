"""A custom dataset class: reads CSV files with the columns `question` and `answer`.

burnish train ... data.train_files=train.csv custom_reward_function.path=examples/reward_function.py \\
    data.custom_cls.path=examples/my_dataset.py data.custom_cls.name=CsvQuestions
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any


class CsvQuestions:
    """Yields one row in verl's schema per CSV line. `config` is the run's `data` section."""

    def __init__(self, data_files: list[str], tokenizer: Any, config: Any, processor: Any = None) -> None:
        self.config = config
        self.lines: list[dict[str, str]] = []
        for file in data_files:
            with Path(file).open(newline="", encoding="utf-8") as opened:
                self.lines += csv.DictReader(opened)

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, number: int) -> dict[str, Any]:
        line = self.lines[number]
        return {
            self.config.prompt_key: [{"role": "user", "content": line["question"]}],
            self.config.reward_fn_key: "my/csv",
            "reward_model": {"style": "rule", "ground_truth": line["answer"]},
        }
