"""SGLang's server process and its arguments."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from burnish.errors import UserError, install_extra, nearest
from burnish.models.load import flat_overrides, load_config
from burnish.network import LOOPBACK, bind, listens
from burnish.rollout.engine import EngineDied, EngineOptions
from burnish.rollout.engines.environment import describe, python_of
from burnish.rollout.engines.http import HttpClient, Refused, check_address
from burnish.rollout.engines.process import ServerProcess
from burnish.rollout.engines.sglang.weights import weight_sync_method

OWN = (
    "base_url",
    "python",
    "weight_sync",
    "weight_dir",
    "start_timeout",
)  # entries of engine_kwargs.sglang that the server does not get
# Arguments of the server that Burnish sets: who may reach it.
FIXED = ("host", "port", "api_key", "admin_api_key")
GRAPH_SIZES = ("cuda_graph_bs_decode", "cuda_graph_bs")  # newest first
CALL_TIMEOUT = 60.0  # seconds, for calls that generate nothing
POLL_INTERVAL = 0.2  # seconds
SPARE_TOKENS = 8  # of the context, which the server reserves for itself


class Server(ServerProcess):
    """A server started by us."""

    def __init__(
        self, arguments: dict[str, Any], python: str | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        """`variables`: of its environment, besides ours."""
        self.port = arguments["port"]
        module = ["burnish.rollout.engines.sglang.serve", *command_line(arguments)]
        url = f"http://{LOOPBACK}:{self.port}"
        super().__init__("SGLang", module, url, environment() | dict(variables or {}), python=python)

    def is_listening(self) -> bool:
        """Whether the port is ours: another user may have taken it, and must not get the key."""
        return listens(self.port, os.geteuid())


async def wait_for_server(http: HttpClient, server: Server | None, timeout: float) -> dict[str, Any]:
    """The server's info once it is healthy; `server` is None for one that we did not start."""
    end = time.monotonic() + timeout
    while True:
        if server is not None:
            server.check()
        try:
            if server is not None and not server.is_listening():
                raise EngineDied(f"it does not listen at port {server.port}")
            await http.get("/health", CALL_TIMEOUT)
            return await server_info(http)
        except (EngineDied, Refused) as error:
            if time.monotonic() > end:
                log = "" if server is None else f". Last lines of its log:\n{server.log_tail()}"
                problem = f"no SGLang server answered at {http.url} within {timeout:g} s"
                raise EngineDied(f"{problem} ({error}){log}") from error
        await asyncio.sleep(POLL_INTERVAL)


async def server_info(http: HttpClient) -> dict[str, Any]:
    try:
        return await http.get("/get_server_info", CALL_TIMEOUT)
    except Refused as refused:
        if refused.status != 404:
            raise
        return await http.get("/server_info", CALL_TIMEOUT)  # its later name


def check_server(extra: Mapping[str, Any], device: torch.device, section: str) -> None:
    """Check that a running server is configured, or that SGLang is installed and knows these arguments."""
    key = f"{section}.engine_kwargs.sglang"
    arguments = {name: value for name, value in extra.items() if name not in OWN}
    if "base_url" in extra:
        check_address(extra["base_url"], f"{key}.base_url")
        for name, value in arguments.items():
            problem = f"has no effect on a running server ({key}.base_url)"
            raise UserError(problem, key=f"{key}.{name}", value=value)
    elif "python" not in extra and importlib.util.find_spec("sglang") is None:
        problem = "SGLang is not installed, and no running server is configured"
        hint = f"{install_extra('sglang')}, {key}.python=/path/to/venv/bin/python, or {key}.base_url=http://host:port"
        raise UserError(problem, key=f"{section}.name", value="sglang", hint=hint)
    else:
        check_arguments(arguments, key, python_of(extra))
    weight_sync_method(extra, device, section)


def launch_arguments(options: EngineOptions) -> dict[str, Any]:
    """The server's arguments from our options; entries of engine_kwargs.sglang win."""
    extra = {name: value for name, value in options.extra.items() if name not in OWN}
    source, on_cpu = options.model, options.device.type == "cpu"
    overrides = flat_overrides(source.override_config)
    return {
        "model_path": source.checked_path(),
        "tokenizer_path": source.tokenizer_path,
        "trust_remote_code": source.trust_remote_code,
        "json_model_override_args": overrides or None,
        "load_format": "dummy",  # the first weight sync loads the weights
        "dtype": str(options.dtype).removeprefix("torch."),
        "device": options.device.type,
        "base_gpu_id": None if on_cpu else 0 if options.devices else options.device.index or 0,
        "tp_size": options.tensor_parallel,
        "dp_size": options.data_parallel,
        "ep_size": options.expert_parallel,
        "pp_size": options.pipeline_parallel,
        "mem_fraction_static": options.memory_share,
        "max_running_requests": options.max_num_seqs,
        "context_length": context_length(options),
        "chunked_prefill_size": options.max_num_batched_tokens if options.chunked_prefill else -1,
        "max_prefill_tokens": options.max_num_batched_tokens,
        "disable_cuda_graph": options.eager,
        graph_sizes_argument(options): None if options.eager else options.capture_sizes,
        "enable_memory_saver": options.sleeps and not on_cpu,
        "enable_deterministic_inference": bool(options.invariant),
        "log_level": "warning",
        **extra,
        "host": LOOPBACK,
        "port": free_port(),
    }


def check_arguments(arguments: dict[str, Any], key: str, python: str | None = None) -> None:
    """Refuse names that the SGLang of the server's environment does not know."""
    known = describe("sglang", python, f"{key}.python").arguments
    for name, value in arguments.items():
        if name in FIXED:
            raise UserError("Burnish sets this argument itself", key=f"{key}.{name}")
        if name not in known:
            similar = nearest(name, [*known, *OWN])
            problem = "the installed SGLang has no such argument." + (f" Did you mean {similar!r}?" if similar else "")
            hint = f"{key}.{similar}={value}" if similar else None
            raise UserError(problem, key=f"{key}.{name}", value=value, hint=hint)


def graph_sizes_argument(options: EngineOptions) -> str:
    """The name of the batch sizes with a CUDA graph, which newer versions of SGLang have renamed."""
    if options.eager or options.capture_sizes is None:
        return GRAPH_SIZES[0]
    key = f"{options.section}.engine_kwargs.sglang.python"
    known = describe("sglang", python_of(options.extra), key).arguments
    return next((name for name in GRAPH_SIZES if name in known), GRAPH_SIZES[0])


def context_length(options: EngineOptions) -> int:
    """A little more than max_model_len, if the model allows it."""
    limit = getattr(load_config(options.model).get_text_config(), "max_position_embeddings", options.max_model_len)
    return max(options.max_model_len, min(options.max_model_len + SPARE_TOKENS, limit))


def command_line(arguments: dict[str, Any]) -> list[str]:
    """`--name value` for each; true is a bare flag, false and null are left out, mappings are JSON."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if isinstance(value, dict):
            words.append(json.dumps(value))
        elif isinstance(value, list | tuple):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return words


def free_port() -> int:
    with bind(LOOPBACK) as probe:
        return probe.getsockname()[1]


def environment() -> dict[str, str]:
    """Our environment, without a variable that makes the server report log-probs before the temperature."""
    return {name: value for name, value in os.environ.items() if name != "SGLANG_RETURN_ORIGINAL_LOGPROB"}
