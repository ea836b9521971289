"""An agent in OpenRLHF's protocol: actor_rollout_ref.rollout.agent.agent_func_path, or --agent_func_path.

It asks once for a second thought, and rewards the label in the last answer.
"""

from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    async def reset(self, states: dict, **kwargs: Any) -> dict:
        self.num_turns = 0
        return {"observation": states["observation"]}

    async def step(self, states: dict, **kwargs: Any) -> dict:
        self.num_turns += 1
        is_right = str(states["label"]) in states["action_text"]
        done = is_right or self.num_turns == 2
        return {
            "rewards": torch.tensor(float(is_right)),
            "scores": torch.tensor(float(is_right)),
            "environment_feedback": "" if done else "\nAre you sure? ",
            "done": done,
            "sampling_params": states.get("sampling_params"),
            "extra_logs": {"turns": self.num_turns},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self) -> None:
        super().__init__(AgentInstance)
