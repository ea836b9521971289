"""openrlhf.utils.agent: base classes of users' agents, of all versions that have them."""

from __future__ import annotations

import copy
import inspect
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


class AgentExecutorBase:
    """Runs conversations from a prompt to their end.

    From 0.9.1 on a subclass takes no arguments and overrides `execute`, which gets the engine. In 0.8.8 to 0.9.0 it
    passes the agent class and the engine on to this constructor, and results go to a queue.
    """

    def __init__(self, *args: Any) -> None:
        self.agent_instance_cls: type[AgentInstanceBase] | None = None
        if args:  # agent_instance_cls, max_steps, max_length, llm_engine, hf_tokenizer, result_queue
            self.agent_instance_cls, self.max_steps, self.max_length, self.llm_engine, *tokenizer, queue = args
            self.hf_tokenizer = tokenizer[0] if tokenizer else self.llm_engine.tokenizer
            self.result_queue = queue

    async def generate(self, prompt_ids: list[int], sampling_params: Any) -> Any:
        return await self.llm_engine.generate(prompt_ids, sampling_params)

    async def execute(self, prompt: str, label: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        """Tokens of the whole conversation, the ranges the model sampled, and the reward."""
        if self.agent_instance_cls is None:
            raise NotImplementedError(f"{type(self).__name__}.execute")
        conversation = _Conversation(self.hf_tokenizer, self.max_length, self.llm_engine)
        result = await conversation.run(self.agent_instance_cls, prompt, label, sampling_params, self.max_steps)
        await self.result_queue.put(result)


class MultiTurnAgentExecutor(AgentExecutorBase):
    """One agent instance per sample; model and instance alternate until the instance returns `done`."""

    def __init__(self, agent_instance_cls: type[AgentInstanceBase]) -> None:
        super().__init__()
        self.agent_instance_cls = agent_instance_cls

    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        assert self.agent_instance_cls is not None
        conversation = _Conversation(hf_tokenizer, max_length, llm_engine)
        return await conversation.run(self.agent_instance_cls, prompt, label, sampling_params)


class _Conversation:
    """Tokens of a conversation. Observations are tokenized separately; sampled tokens are kept as they are."""

    def __init__(self, tokenizer: Any, max_length: int, engine: Any) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.engine = engine
        self.text = ""
        self.tokens: list[int] = []
        self.action_ranges: list[tuple[int, int]] = []
        self.log_probs: list[float] | None = []

    async def run(
        self, cls: type[AgentInstanceBase], prompt: str, label: Any, params: Any, max_steps: int | None = None
    ) -> dict[str, Any]:
        agent = await _new(cls)
        first = await agent.reset({"observation": prompt, "prompt": prompt, "label": label})
        self.append_text(first["observation"])
        reward, scores, logs, done = 0.0, None, {}, False
        while not done and self.remaining > 0 and (max_steps is None or len(self.action_ranges) < max_steps):
            before, action = self.text, await self.generate(params)
            states = {"observation_text": before, "action_text": action, "label": label, "sampling_params": params}
            result = await agent.step(states)
            reward += _number(result["rewards"])
            scores = result.get("scores", scores)
            logs, done = result.get("extra_logs", logs), bool(result["done"])
            params = result.get("sampling_params") or params
            self.append_text(result.get("environment_feedback") or "", result.get("environment_images"))
        return {
            "prompt": prompt,
            "label": label,
            "reward": reward,
            "scores": reward if scores is None else _number(scores),
            "observation_tokens": self.tokens,
            "action_ranges": self.action_ranges,
            "rollout_log_probs": self.log_probs,
            "extra_logs": logs,
            "truncated": not done,
        }

    @property
    def remaining(self) -> int:
        return self.max_length - len(self.tokens)

    def append_text(self, text: str, images: Any = None) -> None:
        """`text` has a placeholder for each of the images."""
        if images:
            ids = self.engine.observe(text, images)
        else:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        self.text += text
        self.tokens += list(ids)
        if self.log_probs is not None:
            self.log_probs += [0.0] * len(ids)

    async def generate(self, sampling_params: Any) -> str:
        """Sample one response within the remaining length. Copies the parameters, which all samples share."""
        params = copy.copy(sampling_params)
        params.max_tokens = self.remaining if params.max_tokens is None else min(params.max_tokens, self.remaining)
        output = (await self.engine.generate(list(self.tokens), params)).outputs[0]
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


async def _new(cls: type[AgentInstanceBase]) -> AgentInstanceBase:
    """An instance; the examples of 0.8.8 to 0.9.2 have `async def __init__`, which a plain call rejects."""
    if not inspect.iscoroutinefunction(cls.__init__):
        return cls()
    instance = cls.__new__(cls)
    await cls.__init__(instance)  # type: ignore[func-returns-value]
    return instance


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)
