"""openrlhf.utils.agent: base classes of users' agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class AgentInstanceBase(ABC):
    """One conversation: reset once, then one step per response of the model."""

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The first observation, given `observation` and `label`."""
        return {"observation": states["observation"]}

    @abstractmethod
    async def step(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """`rewards`, `environment_feedback`, `done` and optional entries, given the texts so far."""


class AgentExecutorBase(ABC):
    """Runs conversations from a prompt to their end."""

    @abstractmethod
    async def execute(
        self, prompt: str, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any
    ) -> dict[str, Any]:
        """Tokens of the whole conversation, the ranges the model sampled, and the reward."""


class MultiTurnAgentExecutor(AgentExecutorBase):
    """One agent instance per sample; model and instance alternate until the instance returns `done`."""

    def __init__(self, agent_instance_cls: type[AgentInstanceBase]) -> None:
        self.agent_instance_cls = agent_instance_cls

    async def execute(
        self, prompt: str, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any
    ) -> dict[str, Any]:
        conversation = _Conversation(hf_tokenizer, max_length)
        agent = self.agent_instance_cls()
        first = await agent.reset({"observation": prompt, "label": label})
        conversation.append_text(first["observation"])
        reward, scores, logs, done = 0.0, None, {}, False
        while not done and conversation.remaining > 0:
            before, action = conversation.text, await conversation.generate(llm_engine, sampling_params)
            states = {"observation_text": before, "action_text": action, "label": label}
            result = await agent.step({**states, "sampling_params": sampling_params})
            reward += _number(result["rewards"])
            scores = result.get("scores", scores)
            logs, done = result.get("extra_logs", logs), bool(result["done"])
            sampling_params = result.get("sampling_params") or sampling_params
            conversation.append_text(result.get("environment_feedback") or "")
        return {
            "prompt": prompt,
            "label": label,
            "reward": reward,
            "scores": reward if scores is None else _number(scores),
            "observation_tokens": conversation.tokens,
            "action_ranges": conversation.action_ranges,
            "rollout_log_probs": conversation.log_probs,
            "extra_logs": logs,
            "truncated": not done,
        }


class _Conversation:
    """Tokens of a conversation. Observations are tokenized separately; sampled tokens are kept as they are."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.text = ""
        self.tokens: list[int] = []
        self.action_ranges: list[tuple[int, int]] = []
        self.log_probs: list[float] | None = []

    @property
    def remaining(self) -> int:
        return self.max_length - len(self.tokens)

    def append_text(self, text: str) -> None:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        self.text += text
        self.tokens += list(ids)
        if self.log_probs is not None:
            self.log_probs += [0.0] * len(ids)

    async def generate(self, engine: Any, sampling_params: Any) -> str:
        """Sample one response within the remaining length. Copies the parameters, which all samples share."""
        import copy

        params = copy.copy(sampling_params)
        params.max_tokens = self.remaining if params.max_tokens is None else min(params.max_tokens, self.remaining)
        output = (await engine.generate(list(self.tokens), params)).outputs[0]
        start = len(self.tokens)
        self.tokens += list(output.token_ids)
        self.action_ranges.append((start, len(self.tokens)))
        if self.log_probs is not None and output.logprobs is not None:
            pairs = zip(output.token_ids, output.logprobs, strict=True)
            self.log_probs += [float(entry[token].logprob) for token, entry in pairs]
        else:
            self.log_probs = None
        self.text += output.text
        return output.text


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)
