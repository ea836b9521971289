"""Agents, a simulated user and an environment, as files of users have them."""

import time

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.interactions.base import BaseInteraction


class Twice(AgentLoopBase):
    """Samples twice in a row."""

    async def run(self, sampling_params, raw_prompt, **kwargs):
        prompt_ids = await self.apply_chat_template(list(raw_prompt))
        ids = []
        for _ in range(2):
            params = {**sampling_params, "max_tokens": 2}
            output = await self.server_manager.generate(
                request_id="one", prompt_ids=prompt_ids + ids, sampling_params=params
            )
            ids += output.token_ids
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=ids, response_mask=[1] * len(ids), num_turns=2, metrics={}
        )


class Patient(BaseInteraction):
    """Always says the same."""

    async def start_interaction(self, instance_id=None, **kwargs):
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        return False, "4", 0.0, {}


class Game:
    """Three rounds; each pays `pay` more than the one before."""

    def __init__(self, pay=0.5, seconds=0.0):
        self.pay, self.seconds = pay, seconds

    def reset(self, seed, row):
        self.round = 0
        return "1"

    def step(self, action):
        time.sleep(self.seconds)
        self.round += 1
        return "2", self.pay * self.round, self.round == 3


async def step(observation, action, label, **kwargs):
    """OpenRLHF's function: one step, which pays three."""
    return {"rewards": 3.0, "scores": 3.0, "next_observation": observation + action, "done": True, "extra_logs": {}}
