"""Classes of a user: datasets for data.custom_cls, a reward manager, and one more compute_score."""

import json
from pathlib import Path

from burnish.reward.sample import Score
from burnish.reward.score import Scorer


class Backwards:
    """The rows of the files, last one first."""

    def __init__(self, data_files, tokenizer, config, processor):
        lines = [line for file in data_files for line in Path(file).read_text().splitlines()]
        self.rows = [json.loads(line) for line in reversed(lines)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


class Halved(Scorer):
    """A reward manager: half of what the reward function gives."""

    def _finish(self, job, outcome):
        super()._finish(job, outcome._replace(value=outcome.value / 2))


def compute_score(solution_str):
    return Score(0.25).value
