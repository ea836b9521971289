"""Agents written for OpenRLHF's --agent_func_path, in the four forms that its versions have had."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import importlib.util
import inspect
import itertools
import math
import sys
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from burnish.errors import UserError
from burnish.media import InvalidMedia
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.failure import EpisodeFailed, failed
from burnish.rollout.agents.recorded import RecordedCalls, failed_trajectory
from burnish.rollout.agents.sampling_params import NAMES, sampling_fields
from burnish.rollout.agents.user_files import accepted, with_ids_by_default
from burnish.rollout.chat.history import originals
from burnish.rollout.chat.pictures import read_pictures
from burnish.rollout.engine import Completion, Sampling
from burnish.rollout.episode import Prompt, Sampler
from burnish.rollout.tools.execution import call_async
from burnish.rollout.trajectory import Trajectory
from burnish.user_code import load_user_module

MAX_STEPS = 10_000  # OpenRLHF's limit of turns
_numbers = itertools.count()  # of modules that are loaded anew for each conversation


class SamplingParams:
    """The fields of vLLM's SamplingParams that agents read and change. Every conversation has its own."""

    def __init__(self, sampling: Sampling) -> None:
        for name in NAMES:
            setattr(self, name, getattr(sampling, name))
        self.temperature = 0.0 if sampling.greedy else sampling.temperature
        self.max_tokens: int | None = sampling.max_tokens
        self.stop = list(sampling.stop)
        self.stop_token_ids = list(sampling.stop_token_ids)
        self.logprobs: int | None = 1
        self.n = 1
        self.skip_special_tokens = False
        self.include_stop_str_in_output = True

    def clone(self) -> SamplingParams:
        return copy.deepcopy(self)


class LogProb:
    """vLLM's Logprob."""

    def __init__(self, logprob: float) -> None:
        self.logprob = logprob


class Output:
    """vLLM's RequestOutput and its one CompletionOutput."""

    def __init__(self, prompt_ids: Sequence[int], completion: Completion, text: str) -> None:
        self.prompt_token_ids = list(prompt_ids)
        self.outputs = [self]
        self.finished = True
        self.index = 0
        self.token_ids = list(completion.ids)
        self.text = text
        pairs = zip(completion.ids, completion.log_probs, strict=True)
        self.logprobs = [{token: LogProb(log_prob)} for token, log_prob in pairs]
        self.cumulative_logprob = sum(completion.log_probs)
        self.finish_reason = completion.finish_reason
        self.stop_reason = completion.stop_reason


class PendingOutput:
    """Awaited since 0.9.1, iterated over before that."""

    def __init__(self, output: Any) -> None:
        self.output = output

    def __await__(self) -> Generator[Any, Any, Output]:
        return self.output.__await__()

    async def __aiter__(self) -> AsyncIterator[Output]:
        yield await self.output


class LLMEngine:
    """What an agent samples with: token ids in, a RequestOutput out."""

    def __init__(self, calls: RecordedCalls, tokenizer: Any, what: str, images: Sequence[Any] = ()) -> None:
        self.calls = calls
        self.tokenizer = tokenizer
        self.what = what
        self.images = list(images)  # of the conversation so far
        self._loop = asyncio.get_running_loop()

    def generate(self, prompt_ids: Any, sampling_params: Any, request_id: Any = None) -> PendingOutput:
        if isinstance(prompt_ids, Mapping):  # vLLM's TokensPrompt
            shown = (prompt_ids.get("multi_modal_data") or {}).get("image")
            self.images = self.images if shown is None else list(read_pictures(shown, "image", self.what))
            prompt_ids = prompt_ids["prompt_token_ids"]
        if isinstance(prompt_ids, str):
            prompt_ids = self.tokenizer(prompt_ids, add_special_tokens=False)["input_ids"]
        return PendingOutput(self._generate([int(token) for token in prompt_ids], sampling_params))

    def observe(self, text: str, images: Any) -> list[int]:
        """Tokens of what the environment showed: `text` has a placeholder for each of the images."""
        shown = read_pictures(images, "image", self.what)
        vision = self.calls.vision
        if vision is None:
            raise UserError(f"{self.what} shows images, and this model takes text only", key="environment_images")
        try:
            ids = vision.encode(text, shown).ids
        except InvalidMedia as error:
            raise EpisodeFailed(f"{self.what}: {error.problem}") from error
        self.images += shown
        return list(ids)

    async def _generate(self, prompt_ids: list[int], params: Any) -> Output:
        if asyncio.get_running_loop() is not self._loop:
            raise UserError(
                f"{self.what} samples from another thread, which is not supported: a request could not be attributed to"
                " its conversation",
                hint="await llm_engine.generate in execute itself",
            )
        fields = {name: getattr(params, name, None) for name in NAMES}
        dialogue = self.calls.dialogue(prompt_ids)
        sampling = sampling_fields(fields, self.what)
        completion = await self.calls.generate(dialogue, prompt_ids, sampling, (self.images, ()))
        skip = bool(getattr(params, "skip_special_tokens", False))
        return Output(prompt_ids, completion, self.tokenizer.decode(completion.ids, skip_special_tokens=skip))


class OpenRLHFAgent:
    """An agent file as an episode."""

    uses_session = True
    scores = True

    def __init__(self, context: AgentContext, path: str, key: str) -> None:
        self.context = context
        self.path = path
        self.tokenizer = with_ids_by_default(context.tokenizer)
        self.what = f"agent {path}"
        self.max_steps = context.limits.max_assistant_turns or MAX_STEPS
        module = load_user_module(path, key=key)
        self.executor_class = getattr(module, "AgentExecutor", None)
        self._executor: Any = None
        if self.executor_class is None and not inspect.iscoroutinefunction(getattr(module, "step", None)):
            raise UserError(
                "the file has neither a class AgentExecutor nor a function `step`",
                key=key,
                value=path,
                allowed="class AgentExecutor with `async def execute(...)`, or"
                " `async def step(observation, action, label, **kwargs)`",
            )

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory | list[Trajectory]:
        text = self.context.decode(prompt.input.ids)
        num_prompt = len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        turn = self.context.limits.of_turn(prompt.sampling)
        calls = RecordedCalls(sampler, num_prompt + prompt.sampling.max_tokens, turn, self.context.template.vision)
        images, videos = originals(prompt.input)
        if videos:
            raise UserError(f"{self.what}: agents of OpenRLHF are shown images, not videos", key="data.video_key")
        arguments = {
            "prompt": text,
            "label": "" if prompt.row.get("ground_truth") is None else prompt.row["ground_truth"],
            "sampling_params": SamplingParams(prompt.sampling),
            "max_length": calls.max_length,
            "hf_tokenizer": self.tokenizer,
            "llm_engine": LLMEngine(calls, self.tokenizer, self.what, images),
            "images": images or None,
        }
        try:
            result = await calls.run(self._execute(arguments), self.context.timeout, self.what)
            return self._trajectories(calls, result)
        except UserError:
            raise
        except EpisodeFailed as failure:
            return failed_trajectory(prompt.input, str(failure))
        except Exception as error:  # an agent is the user's program and may raise anything
            return failed_trajectory(prompt.input, str(failed(self.what, error)))

    async def _execute(self, arguments: dict[str, Any]) -> Any:
        """By the file's generation: a function `step`, results in a queue, or a result that is returned."""
        if self.executor_class is None:
            return await StepFunction(self.path, self.max_steps).execute(**arguments)
        if not _takes_engine(self.executor_class):
            if self._executor is None:
                self._executor = self.executor_class()
            return await self._executor.execute(**accepted(self._executor.execute, arguments))
        queue: asyncio.Queue[Any] = asyncio.Queue()
        given = {**arguments, "max_steps": self.max_steps, "result_queue": queue}
        executor = self.executor_class(**accepted(self.executor_class.__init__, given))
        result = await executor.execute(**accepted(executor.execute, arguments))
        return queue.get_nowait() if not queue.empty() else result

    def _trajectories(self, calls: RecordedCalls, result: Any) -> list[Trajectory]:
        """A conversation whose history was rewritten has several rows; the last one is scored."""
        rows = result if isinstance(result, list) else [result]
        if not rows or not isinstance(rows[-1], Mapping) or "observation_tokens" not in rows[-1]:
            raise EpisodeFailed(f"{self.what} must return a dict with observation_tokens and action_ranges")
        reward = _number(rows[-1].get("reward"), self.what)
        scores = rows[-1].get("scores")
        logs = {name: value for name, value in (rows[-1].get("extra_logs") or {}).items() if _is_scalar(value)}
        extras = {"scores": reward if scores is None else _number(scores, self.what)}
        extras |= {str(name): _number(value, self.what) for name, value in logs.items()}
        return [self._trajectory(calls, row, score=reward, extras=extras) for row in rows]

    def _trajectory(self, calls: RecordedCalls, row: Mapping[str, Any], **fields: Any) -> Trajectory:
        tokens, ranges = list(row["observation_tokens"]), sorted(tuple(span) for span in row["action_ranges"])
        if not ranges:
            raise EpisodeFailed(f"{self.what} returned no action_ranges: the model sampled nothing")
        start = ranges[0][0]
        mask = [any(first <= number < end for first, end in ranges) for number in range(start, len(tokens))]
        return calls.trajectory(tokens[:start], tokens[start:], mask, self.what, **fields)


class StepFunction:
    """OpenRLHF up to 0.8.6: a module whose function `step` returns the whole next observation as text.

    The module's globals are the state of a conversation, so that every conversation loads the file anew.
    """

    def __init__(self, path: str, max_steps: int) -> None:
        self.path = path
        self.max_steps = max_steps

    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: LLMEngine,
        images: Any = None,
    ) -> list[dict[str, Any]]:
        module = await call_async(_fresh_module, self.path)
        try:
            rows = [_new_row(hf_tokenizer, prompt)]
            observation, reward, scores, logs = prompt, 0.0, None, {}
            for _ in range(self.max_steps):
                tokens = rows[-1]["observation_tokens"]
                params = copy.copy(sampling_params)
                limit = max_length - len(tokens)
                params.max_tokens = limit if params.max_tokens is None else min(params.max_tokens, limit)
                if params.max_tokens <= 0:
                    break
                output = await llm_engine.generate(tokens, params)
                rows[-1]["action_ranges"].append((len(tokens), len(tokens) + len(output.token_ids)))
                tokens += output.token_ids
                result = _step_result(await module.step(observation, output.text, label, sampling_params=params))
                reward += _number(result["rewards"], self.path)
                scores, logs = result.get("scores", scores), result.get("extra_logs", logs)
                before, observation = observation + output.text, result["next_observation"]
                if result["done"]:
                    break
                sampling_params = result.get("sampling_params") or sampling_params
                if observation.startswith(before):
                    tokens += hf_tokenizer(observation[len(before) :], add_special_tokens=False)["input_ids"]
                else:  # the history was rewritten: another context, and so another row
                    rows.append(_new_row(hf_tokenizer, observation))
            rows = [row for row in rows if row["action_ranges"]]
            return [*rows[:-1], {**rows[-1], "reward": reward, "scores": scores, "extra_logs": logs}]
        finally:
            sys.modules.pop(module.__name__, None)


def _new_row(tokenizer: Any, text: str) -> dict[str, Any]:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {"observation_tokens": list(ids), "action_ranges": []}


def _step_result(result: Any) -> Mapping[str, Any]:
    """The first releases return (reward, next_observation, done, extra_info)."""
    if isinstance(result, tuple):
        return dict(zip(("rewards", "next_observation", "done", "extra_logs"), result, strict=False))
    return result


def _fresh_module(path: str) -> ModuleType:
    """The file as a module of its own."""
    file = Path(path.removeprefix("file://")).expanduser()
    digest = hashlib.blake2b(str(file.resolve()).encode(), digest_size=6).hexdigest()
    module_name = f"burnish_agent_{file.stem}_{digest}_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


def _takes_engine(executor_class: Any) -> bool:
    return "llm_engine" in inspect.signature(executor_class.__init__).parameters


def _is_scalar(value: Any) -> bool:
    is_tensor = hasattr(value, "item") and getattr(value, "numel", lambda: 1)() == 1
    return is_tensor or isinstance(value, bool | int | float)


def _number(value: Any, what: str) -> float:
    if value is None:
        raise EpisodeFailed(f"{what} returned no reward")
    number = float(value.item() if hasattr(value, "item") else value)
    if not math.isfinite(number):
        raise EpisodeFailed(f"{what} returned the reward {number}")
    return number
