"""Trajectories -> scored trajectories, and scores -> columns of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from burnish.batch import Batch, Ragged
from burnish.reward.null_scorer import NullScorer
from burnish.reward.sample import Sample, SampleRow, Score
from burnish.reward.score import Scorer
from burnish.rollout.episode import Prompt
from burnish.rollout.stop import Decode
from burnish.rollout.trajectory import Trajectory


@dataclass(frozen=True)
class ScoredTrajectory:
    """One row of training data with its text and score."""

    trajectory: Trajectory
    text: str
    score: Score
    turn_rewards: float = 0.0  # sum over the turns of the whole episode, which the score does not contain

    @property
    def total(self) -> float:
        """What the episode earned: its score and the rewards of its turns."""
        return self.score.value + self.turn_rewards


class TrajectoryScorer:
    """Calls the reward function on trajectories as they finish.

    `decode` drops special tokens, as rewards read a response; `decode_all` keeps them.
    """

    def __init__(self, scorer: Scorer | NullScorer, decode: Decode, decode_all: Callable[[Sequence[int]], str]) -> None:
        self.scorer = scorer
        self.decode = decode
        self.decode_all = decode_all

    def begin(self) -> None:
        self.scorer.begin()

    def expect(self, count: int) -> None:
        self.scorer.expect(count)

    async def score(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> list[ScoredTrajectory]:
        """An episode of several rows has one score, that of its last row."""
        texts = [trajectory.text(self.decode) for trajectory in trajectories]
        score = await self._score(prompt, trajectories[-1], texts[-1])
        turn_rewards = sum(turn.reward or 0.0 for trajectory in trajectories for turn in trajectory.turns)
        rows = zip(trajectories, texts, strict=True)
        return [ScoredTrajectory(trajectory, text, score, turn_rewards) for trajectory, text in rows]

    async def _score(self, prompt: Prompt, trajectory: Trajectory, text: str) -> Score:
        if trajectory.problem is not None:
            return self.scorer.fail(self._sample(prompt, trajectory, text), trajectory.problem)
        if trajectory.score is not None:
            self.scorer.already_scored()
            return Score(trajectory.score, trajectory.extras)
        if trajectory.futures:
            self.scorer.expect(len(trajectory.futures) - 1)
            scores = [self._score(prompt, future, future.text(self.decode)) for future in trajectory.futures]
            return mean_score(await asyncio.gather(*scores))
        return await asyncio.wrap_future(self.scorer.submit(self._sample(prompt, trajectory, text)))

    def _sample(self, prompt: Prompt, trajectory: Trajectory, text: str) -> Sample:
        return Sample(
            data_source=prompt.row["data_source"],
            solution_str=text,
            ground_truth=prompt.row["ground_truth"],
            extra_info={**prompt.row["extra_info"], **trajectory.extras},
            uid=prompt.uid,
            sample=prompt.sample,
            row=self._row(prompt, trajectory) if self.scorer.reads_rows else None,
            **(self._full_texts(trajectory) if self.scorer.reads_prompts else {}),
            pictures=pictures_of(trajectory) if self.scorer.reads_pictures else {},
        )

    def _row(self, prompt: Prompt, trajectory: Trajectory) -> SampleRow:
        """The row of the data; a prompt that is tokens only becomes text."""
        messages, columns = prompt.row["dataset_row"]
        if messages is None:
            messages = self.decode_all(trajectory.prompt.ids)
        return SampleRow(messages, columns, list(trajectory.ids))

    def _full_texts(self, trajectory: Trajectory) -> dict[str, str]:
        """Prompt, and prompt with response, as the model saw them: with special tokens."""
        ids = trajectory.prompt.ids
        return {"prompt": self.decode_all(ids), "query": self.decode_all([*ids, *trajectory.ids])}


def pictures_of(trajectory: Trajectory) -> dict[str, list[Any]]:
    """The images and videos of a conversation, in order, as they were before they were processed."""
    shown = [media for media in trajectory.all_media if media.source is not None]
    return {kind: [media.source for media in shown if media.kind == kind] for kind in ("image", "video")}


def mean_score(scores: Sequence[Score]) -> Score:
    """The score of simulated futures: their mean, and that of every number that all of them report."""
    names = [name for name in scores[0].extras if all(_is_number(score.extras.get(name)) for score in scores)]
    extras = {name: sum(float(score.extras[name]) for score in scores) / len(scores) for name in names}
    problem = next((score.problem for score in scores if score.problem is not None), None)
    return Score(sum(score.value for score in scores) / len(scores), extras, problem)


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


def credit_last(rows: Sequence[ScoredTrajectory]) -> list[ScoredTrajectory]:
    """Rows of one sample: the score counts once, at the end of the last row (loop/credit.py joins them)."""
    return [*(replace(row, score=replace(row.score, value=0.0)) for row in rows[:-1]), *rows[-1:]]


def last_rows(batch: Batch) -> list[int]:
    """The row of each episode that has its score."""
    last = {sample: row for row, sample in enumerate(zip(batch["uid"], batch["sample"], strict=True))}
    return list(last.values())


def add_scores(batch: Batch, scores: Sequence[Score]) -> Batch:
    """Adds token_level_scores, reward_extras and reward_problem.

    A score goes to the last token that the policy sampled, a turn's own reward to the turn's last token.
    """
    responses: Ragged = batch["responses"]
    flat = torch.zeros(len(responses.flat))
    values = torch.tensor([score.value for score in scores], dtype=torch.float32)
    last, has_tokens = last_sampled_tokens(batch)
    flat[last] = values[has_tokens]
    if "turns" in batch:
        for start, turns in zip(responses.offsets[:-1].tolist(), batch["turns"], strict=True):
            for turn in turns:
                if turn.reward is not None and turn.end > turn.start:
                    flat[start + turn.end - 1] += turn.reward
    return batch.add(
        token_level_scores=Ragged.like(flat, responses),
        reward_extras=[score.extras for score in scores],
        reward_problem=[score.problem for score in scores],
    )


def last_sampled_tokens(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat index of the last sampled token of each row that has one, and which rows have one."""
    responses: Ragged = batch["responses"]
    mask = batch["response_mask"].flat.bool() if "response_mask" in batch else torch.ones(len(responses.flat)).bool()
    row_of_token = torch.arange(len(responses)).repeat_interleave(responses.lengths)
    last = torch.full((len(responses),), -1, dtype=torch.int64)
    sampled = mask.nonzero().flatten()
    last.scatter_reduce_(0, row_of_token[sampled], sampled, "amax")
    return last[last >= 0], last >= 0
