"""openrlhf.utils.agent: the bases that users' agents are written against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class AgentInstanceBase(ABC):
    """One conversation: reset once, then a step per response of the model."""

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Of `observation` and `label`: the first observation."""
        return {"observation": states["observation"]}

    @abstractmethod
    async def step(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Of the texts so far: `rewards`, `environment_feedback`, `done`, and what else there is to say."""


class AgentExecutorBase(ABC):
    """Runs conversations from a prompt to their end."""

    @abstractmethod
    async def execute(
        self, prompt: str, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any
    ) -> dict[str, Any]:
        """The whole conversation as tokens, which of them the model said, and its reward."""


class MultiTurnAgentExecutor(AgentExecutorBase):
    """The usual way: an instance per sample; the model speaks, the instance answers, until it says that it is done."""

    def __init__(self, agent_instance_cls: type[AgentInstanceBase]) -> None:
        self.agent_instance_cls = agent_instance_cls

    async def execute(
        self, prompt: str, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any
    ) -> dict[str, Any]:
        talk = _Talk(hf_tokenizer, max_length)
        agent = self.agent_instance_cls()
        begin = await agent.reset({"observation": prompt, "label": label})
        talk.hear(begin["observation"])
        reward, scores, logs, done = 0.0, None, {}, False
        while not done and talk.room > 0:
            before, action = talk.text, await talk.speak(llm_engine, sampling_params)
            states = {"observation_text": before, "action_text": action, "label": label}
            told = await agent.step({**states, "sampling_params": sampling_params})
            reward += _number(told["rewards"])
            scores = told.get("scores", scores)
            logs, done = told.get("extra_logs", logs), bool(told["done"])
            sampling_params = told.get("sampling_params") or sampling_params
            talk.hear(told.get("environment_feedback") or "")
        return {
            "prompt": prompt,
            "label": label,
            "reward": reward,
            "scores": reward if scores is None else _number(scores),
            "observation_tokens": talk.tokens,
            "action_ranges": talk.spoken,
            "rollout_log_probs": talk.log_probs,
            "extra_logs": logs,
            "truncated": not done,
        }


class _Talk:
    """The tokens of a conversation. What is heard is tokenised by itself; what is spoken stays as it was sampled."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.text = ""
        self.tokens: list[int] = []
        self.spoken: list[tuple[int, int]] = []
        self.log_probs: list[float] | None = []

    @property
    def room(self) -> int:
        return self.max_length - len(self.tokens)

    def hear(self, text: str) -> None:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        self.text += text
        self.tokens += list(ids)
        if self.log_probs is not None:
            self.log_probs += [0.0] * len(ids)

    async def speak(self, engine: Any, sampling_params: Any) -> str:
        """One response, within the room that is left. The parameters are shared by all samples: a copy is changed."""
        import copy

        params = copy.copy(sampling_params)
        params.max_tokens = self.room if params.max_tokens is None else min(params.max_tokens, self.room)
        output = (await engine.generate(list(self.tokens), params)).outputs[0]
        start = len(self.tokens)
        self.tokens += list(output.token_ids)
        self.spoken.append((start, len(self.tokens)))
        if self.log_probs is not None and output.logprobs is not None:
            pairs = zip(output.token_ids, output.logprobs, strict=True)
            self.log_probs += [float(found[token].logprob) for token, found in pairs]
        else:
            self.log_probs = None
        self.text += output.text
        return output.text


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)
