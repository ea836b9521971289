"""VllmServer: VllmEngine on a vLLM server, started by us or already running (engine_kwargs.vllm.base_url)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from burnish.errors import UserError
from burnish.rollout.engine import EngineOptions, Sampling
from burnish.rollout.engines.devices import visible_devices
from burnish.rollout.engines.environment import describe, python_of
from burnish.rollout.engines.http import check_address
from burnish.rollout.engines.process import ServerProcess, server_folder
from burnish.rollout.engines.vllm import library
from burnish.rollout.engines.vllm.arguments import check_kwargs, engine_arguments, model_folder, refusals
from burnish.rollout.engines.vllm.engine import VllmEngine
from burnish.rollout.engines.vllm.remote import RemoteCore

START_TIMEOUT, ATTACH_TIMEOUT = 600.0, 60.0  # seconds until a server answers: one that we start, a running one
OLDEST_SERVER = (0, 32)  # the first version with the token-in, token-out API
NEEDED = {
    "VLLM_SERVER_DEV_MODE": "1",  # enables the endpoints for weights, pause and sleep
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_USE_V2_MODEL_RUNNER": library.NEEDED["VLLM_USE_V2_MODEL_RUNNER"],
}


def server_refusals(sampling: Sampling, section: str) -> Iterator[UserError]:
    yield from refusals(sampling, section)
    if any(len(word) > 1 for word in sampling.bad_words):
        problem = "a vLLM server can ban only words of one token; one of these has several"
        yield UserError(problem, key=f"{section}.bad_words", hint=f"{section}.mode=sync")


class VllmServer(VllmEngine):
    """Always with a thread of its own: the server generates whether or not it is stepped."""

    refusals = staticmethod(server_refusals)

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(replace(options, own_thread=True))

    @staticmethod
    def check(extra: Mapping[str, Any], device: torch.device, section: str) -> None:
        key = f"{section}.engine_kwargs.vllm"
        if "base_url" not in extra:
            python = python_of(extra)
            if python is None:
                VllmEngine.check(extra, device, section)
            else:
                check_environment(python, extra, device, section)
            return
        check_address(extra["base_url"], f"{key}.base_url")
        for name in [name for name in extra if name not in ("base_url", "weight_dir", "start_timeout")]:
            problem = f"has no effect on a running server ({key}.base_url)"
            raise UserError(problem, key=f"{key}.{name}", value=extra[name])

    def _make_core(self) -> RemoteCore:
        options = self.options
        key, url = f"{options.section}.engine_kwargs.vllm.base_url", options.extra.get("base_url")
        if url is not None:
            return RemoteCore(url, None, options.extra.get("start_timeout", ATTACH_TIMEOUT), key)
        folder = server_folder("vllm")
        arguments = engine_arguments(options) | {
            "model": model_folder(options.model, self._folder),
            "uds": str(folder / "server"),
            "middleware": "burnish.rollout.engines.vllm.auth.RequireKey",
            "enable_scale_out": True,
        }
        module = ["vllm.entrypoints.openai.api_server", *command_line(arguments)]
        variables = environment(options) | {"VLLM_RPC_BASE_PATH": str(folder)}
        python = python_of(options.extra)
        process = ServerProcess("vLLM", module, f"unix:{folder / 'server'}", variables, folder, python)
        return RemoteCore(process.url, process, options.extra.get("start_timeout", START_TIMEOUT), key)


def check_environment(python: str, extra: Mapping[str, Any], device: torch.device, section: str) -> None:
    """Check the vLLM of another environment as `VllmEngine.check` checks ours."""
    key = f"{section}.engine_kwargs.vllm.python"
    found = describe("vllm", python, key)
    library.check_version(found.version, OLDEST_SERVER, key, python)
    if found.device != device.type:
        built_for = found.device or "no device of this machine"
        problem = f"the vLLM of this environment is built for {built_for}, but the run uses {device.type}"
        raise UserError(problem, key=key, value=python)
    check_kwargs(extra, found.arguments, section, found.version)


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """`--name value` for each; booleans are `--name` or `--no-name`, mappings are JSON."""
    words: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            words += [f"--{flag}", json.dumps(value)]
        elif isinstance(value, list | tuple):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return words


def environment(options: EngineOptions) -> dict[str, str]:
    """Our environment, with only the engine's GPUs visible."""
    return {**library.PREFERRED, **os.environ, **NEEDED, **visible_devices(options)}
