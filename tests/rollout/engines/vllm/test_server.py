"""What a vLLM server is told, and how its answers are read. The real one answers in tests/vllm."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from burnish.config.rollout import RolloutConfig
from burnish.errors import UserError
from burnish.loop.build_engine import engine_mode
from burnish.models.load import ModelSource
from burnish.rollout.engine import ENGINES, EngineDied, EngineOptions, Sampling, engine_row
from burnish.rollout.engines.devices import device_entries
from burnish.rollout.engines.http import HttpClient, Refused
from burnish.rollout.engines.vllm.remote import events, step_output
from burnish.rollout.engines.vllm.server import VllmServer, command_line, environment, server_refusals

CPU = torch.device("cpu")


def test_the_mode_chooses_the_way():
    assert engine_row("vllm", "async").load() is VllmServer
    assert engine_row("vllm", "sync") is ENGINES["vllm"]
    assert engine_row("builtin", "async") is ENGINES["builtin"]


def test_arguments_become_words():
    told = {"enforce_eager": True, "enable_prefix_caching": False, "port": 3, "limits": {"a": 1}, "sizes": [1, 2]}
    assert command_line(told) == [
        *("--enforce-eager", "--no-enable-prefix-caching", "--port", "3"),
        *("--limits", '{"a": 1}', "--sizes", "1", "2"),
    ]


@pytest.mark.parametrize(
    ("visible", "device", "parallel", "expected"),
    [(None, "cuda:1", 1, "1"), ("4,5,6", "cuda:1", 2, "5,6"), (None, "cuda", 1, None), ("7", "cpu", 1, "7")],
)
def test_a_server_sees_the_engine_s_gpus_only(monkeypatch, visible, device, parallel, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    options = EngineOptions(ModelSource("m"), torch.float32, torch.device(device), (2,), 64, tensor_parallel=parallel)
    assert environment(options).get("CUDA_VISIBLE_DEVICES") == expected
    assert environment(options)["VLLM_SERVER_DEV_MODE"] == "1"


def test_a_server_sees_the_gpus_of_all_ranks_that_share_it(monkeypatch):
    """Each rank may see its own GPU only (Ray): the entries come from the ranks."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert device_entries(torch.device("cuda:0")) == ("3",) and device_entries(CPU) == ()
    shared = {"tensor_parallel": 2, "devices": ("3", "5")}
    options = EngineOptions(ModelSource("m"), torch.float32, torch.device("cuda:0"), (2,), 64, **shared)
    assert environment(options)["CUDA_VISIBLE_DEVICES"] == "3,5"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    several = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2}
    options = EngineOptions(ModelSource("m"), torch.float32, torch.device("cuda:0"), (2,), 64, **several)
    assert environment(options)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


def test_several_devices_of_a_run_and_data_parallel_engines_need_a_server():
    rollout = RolloutConfig(name="vllm", mode="sync")
    assert engine_mode(rollout) == "sync" and engine_mode(rollout, shared=True) == "async"
    assert engine_mode(replace(rollout, data_parallel_size=2)) == "async"


def test_the_other_ranks_take_part_in_gathering_weights_only():
    member = engine_row("vllm", "async", follows=True).load()(None)
    stream = iter([("a", torch.zeros(1)), ("b", torch.zeros(1))])
    member.load_weights(stream, 1)
    assert next(stream, None) is None
    for call in (member.pause, member.resume, member.sleep, member.wake, member.close):
        call()
    assert member.stats() == {} and not member.step()
    with pytest.raises(RuntimeError, match="first of the ranks"):
        member.generate([])


def test_settings_for_a_running_server_are_refused():
    VllmServer.check({"base_url": "http://host:1", "start_timeout": 3}, CPU, "rollout")
    with pytest.raises(UserError, match=r"rollout\.engine_kwargs\.vllm\.block_size.*no effect on a running server"):
        VllmServer.check({"base_url": "http://host:1", "block_size": 3}, CPU, "rollout")
    with pytest.raises(UserError, match="not a server address"):
        VllmServer.check({"base_url": "host"}, CPU, "rollout")


def test_words_of_several_tokens_cannot_be_banned_there():
    word = Sampling(9, bad_words=((1,),))
    assert list(server_refusals(word, "rollout")) == []
    assert [one.key for one in server_refusals(replace(word, bad_words=((1, 2),)), "rollout")] == ["rollout.bad_words"]


def test_an_event_is_read():
    place = {
        "token_id": 4,
        "logprob": -2.0,
        "top_logprobs": [{"token_id": 4, "logprob": -2.0}, {"token_id": 1, "logprob": -1}],
    }
    output = step_output("n", {"token_ids": [4], "logprobs": {"content": [place]}}, ended=True)
    assert (output.tokens, output.log_probs, output.top, output.finished) == ([4], [-2.0], [[(1, -1), (4, -2.0)]], True)


async def streamed(pieces, ends=True):
    """What is read of a server that sends these pieces, in HTTP's chunks."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n" if ends else b"")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        http = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        return [event async for event in events(http, "/generate", {})]


def test_events_may_come_in_any_pieces():
    pieces = [b'data: {"a"', b': 1}\n\ndata: {"a": 2}\n', b"\ndata: [DONE]\n\n"]
    assert asyncio.run(streamed(pieces)) == [{"a": 1}, {"a": 2}]


def test_a_stream_that_breaks_off_is_a_death():
    with pytest.raises(EngineDied):
        asyncio.run(streamed([b'data: {"a": 1}\n\n'], ends=False))


def test_an_error_in_the_stream_is_a_refusal():
    with pytest.raises(Refused, match="too long"):
        asyncio.run(streamed([b'data: {"error": {"message": "too long", "code": 400}}\n\n']))
