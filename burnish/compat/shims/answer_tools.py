"""verl.tools.gsm8k_tool and verl.tools.geo3k_tool: the model submits an answer and reads its score."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from burnish.compat.shims import scores
from burnish.compat.shims.tools import BaseTool, ToolResponse

NOT_BETTER = -0.05  # step reward of an answer that scores no more than the one before


@dataclass
class _Submission:
    ground_truth: str
    answer: str = ""
    score: float = 0.0


class AnswerTool(BaseTool):
    """extra_info.tools_kwargs gives the ground truth: {NAME: {"create_kwargs": {"ground_truth": ...}}}."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.submissions: dict[str, _Submission] = {}

    @abstractmethod
    def score(self, submission: _Submission) -> float: ...

    async def create(
        self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        instance, response = await super().create(instance_id)
        truth = ground_truth if ground_truth is not None else (kwargs.get("create_kwargs") or {}).get("ground_truth")
        if truth is None:
            raise ValueError(f"extra_info.tools_kwargs.{self.name}.create_kwargs has no ground_truth")
        self.submissions[instance] = _Submission(str(truth))
        return instance, response

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        submission, answer = self.submissions[instance_id], str(parameters.get("answer", ""))
        submission.answer = answer
        reward, before = self.score(submission), submission.score
        submission.score = reward
        step_reward = 0.0 if reward > before else NOT_BETTER
        return ToolResponse(text=f"Current parsed {answer=} {reward=}"), step_reward, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return self.score(self.submissions[instance_id])

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.submissions.pop(instance_id, None)


class Gsm8kTool(AnswerTool):
    """1 for the right number, else 0."""

    def score(self, submission: _Submission) -> float:
        return scores.gsm8k(submission.answer, submission.ground_truth, method="flexible", format_score=0.0, score=1.0)


class Geo3kTool(AnswerTool):
    """1 for the right answer, else 0."""

    def score(self, submission: _Submission) -> float:
        return scores.geo3k(submission.answer, submission.ground_truth, use_boxed=False, format_score=0.0)
