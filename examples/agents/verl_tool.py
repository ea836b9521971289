"""A tool in verl's protocol: create once per conversation, execute per call, calc_reward and release at the end."""

from typing import Any

from verl.tools.base_tool import BaseTool


class AnswerChecker(BaseTool):
    """Tells the model whether an answer is right; a wrong attempt costs a little."""

    def __init__(self, config: dict, tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.answers = {}

    async def create(self, instance_id: str | None = None, ground_truth: str = "", **kwargs: Any) -> str | None:
        self.answers[instance_id] = ground_truth
        return instance_id

    async def execute(self, instance_id: str, parameters: dict, **kwargs: Any) -> tuple[str, float, dict]:
        is_right = str(parameters.get("answer", "")).strip() == str(self.answers.get(instance_id))
        return ("right" if is_right else "wrong, try again"), (0.0 if is_right else -0.1), {"right": float(is_right)}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.answers.pop(instance_id, None)
