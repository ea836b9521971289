"""Trajectories -> scored trajectories, and scores -> columns of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from burnish.batch import Batch, Ragged
from burnish.reward.absent import NoFunction
from burnish.reward.sample import Sample, Score
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


class TrajectoryScorer:
    """Calls the reward function on trajectories as they finish.

    `decode` drops special tokens, as rewards read a response; `decode_all` keeps them.
    """

    def __init__(self, scorer: Scorer | NoFunction, decode: Decode, decode_all: Callable[[Sequence[int]], str]) -> None:
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
        sample = Sample(
            data_source=prompt.row["data_source"],
            solution_str=texts[-1],
            ground_truth=prompt.row["ground_truth"],
            extra_info=prompt.row["extra_info"],
            uid=prompt.uid,
            sample=prompt.sample,
            **(self._full_texts(trajectories[-1]) if self.scorer.reads_prompts else {}),
        )
        score = await asyncio.wrap_future(self.scorer.submit(sample))
        rows = zip(trajectories, texts, strict=True)
        return [ScoredTrajectory(trajectory, text, score) for trajectory, text in rows]

    def _full_texts(self, trajectory: Trajectory) -> dict[str, str]:
        """Prompt, and prompt with response, as the model saw them: with special tokens."""
        ids = trajectory.prompt.ids
        return {"prompt": self.decode_all(ids), "query": self.decode_all([*ids, *trajectory.ids])}


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
