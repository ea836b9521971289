"""The server's command line, its start and its end."""

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from burnish.errors import UserError
from burnish.models.stream import WeightStream
from burnish.rollout.engine import EngineDied
from burnish.rollout.engines.sglang.engine import SglangEngine
from burnish.rollout.engines.sglang.server import check_server, command_line, launch_arguments
from burnish.rollout.engines.supervised import Supervised

from ....sglang_server import free_port
from .kit import CPU, KWARGS, PATIENCE, SECTION, asks, options_for

OURS = {"weight_sync": "disk", "start_timeout": 5}  # entries that the server never sees


def test_the_command_line_follows_our_keys(standin, tiny_folder):
    options = options_for(
        tiny_folder,
        max_num_seqs=7,
        max_num_batched_tokens=64,
        memory_share=0.4,
        tensor_parallel=2,
        data_parallel=3,
        invariant=True,
        eager=False,
        capture_sizes=[1, 2],
        extra={
            "attention_backend": "triton",
            "mem_fraction_static": 0.7,
            "weight_sync": "disk",
            "disable_radix_cache": True,
        },
    )
    words = command_line(launch_arguments(options))
    line = " ".join(words)
    for part in (
        f"--model-path {tiny_folder} ",
        "--load-format dummy",
        "--dtype float32",
        "--tp-size 2 --dp-size 3 --ep-size 1 --pp-size 1",
        "--mem-fraction-static 0.7",  # engine_kwargs have the last word
        "--max-running-requests 7",
        "--context-length 308",
        "--chunked-prefill-size 64 --max-prefill-tokens 64",
        "--cuda-graph-bs 1 2",
        "--enable-deterministic-inference",
        "--attention-backend triton",
        "--disable-radix-cache",
    ):
        assert part in f"{line} "
    assert not {"--disable-cuda-graph", "--enable-memory-saver", "--weight-sync", "--tokenizer-path"} & set(words)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"eager": True, "capture_sizes": [1]}, "--disable-cuda-graph"),
        ({"chunked_prefill": False}, "--chunked-prefill-size -1"),
        ({"max_model_len": 1020}, "--context-length 1024"),  # the model has no more
        ({"device": torch.device("cuda", 1)}, "--device cuda --base-gpu-id 1"),
        # Those of the ranks that share it are all that it sees.
        (
            {"device": torch.device("cuda", 1), "devices": ("1", "2"), "tensor_parallel": 2},
            "--base-gpu-id 0 --tp-size 2",
        ),
        ({"device": torch.device("cuda", 0)}, "--enable-memory-saver"),
    ],
)
def test_other_words_of_the_command_line(settings, part, standin, tiny_folder):
    options = dataclasses.replace(options_for(tiny_folder), **settings)
    assert f" {part} " in f" {' '.join(command_line(launch_arguments(options)))} "


def test_mappings_and_switches_on_the_command_line():
    words = command_line({"a_b": {"x": 1}, "c": True, "d": False, "e": None, "f": [1, 2], "g": 0})
    assert words == ["--a-b", '{"x": 1}', "--c", "--f", "1", "2", "--g", "0"]


def test_an_argument_that_sglang_does_not_know(standin):
    with pytest.raises(UserError, match="Did you mean 'attention_backend'") as caught:
        check_server({"atention_backend": "fa3"}, CPU, SECTION)
    assert caught.value.key == f"{KWARGS}.atention_backend"


def test_sglang_is_not_installed():
    with pytest.raises(UserError, match=r'pip install -e "\.\[sglang\]"') as caught:
        check_server({}, CPU, SECTION)
    assert caught.value.key == f"{SECTION}.name"


def test_a_server_that_runs_takes_no_arguments():
    with pytest.raises(UserError, match="no effect on a running server"):
        check_server({"base_url": "http://127.0.0.1:1", "tp_size": 2}, CPU, SECTION)


def test_a_server_that_does_not_start(standin, monkeypatch, tiny_folder):
    before = threading.active_count()
    monkeypatch.setattr("burnish.rollout.engines.sglang.server.check_arguments", lambda asked, key, python: None)
    with pytest.raises(EngineDied, match=r"(?s)exited with status 2.*unrecognized arguments: --kv-cache-dtype"):
        SglangEngine(options_for(tiny_folder, extra={"kv_cache_dtype": "auto"}))
    assert threading.active_count() == before


def test_a_server_that_is_not_there(tiny_folder):
    extra = {"base_url": f"http://127.0.0.1:{free_port()}", "start_timeout": 0.3}
    with pytest.raises(EngineDied, match="no SGLang server answered"):
        SglangEngine(options_for(tiny_folder, extra=extra))


@contextlib.contextmanager
def says(**info):
    """A server that is up and describes itself so, and can do nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            known = {"/health": {}, "/server_info": info}
            self.send_response(200 if self.path in known else 404)
            self.end_headers()
            self.wfile.write(json.dumps(known.get(self.path)).encode())

        def log_message(self, *words):
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield {"base_url": f"http://127.0.0.1:{server.server_port}"}
        server.shutdown()


def test_what_is_promised_is_what_the_server_can(tiny_folder):
    with says(enable_deterministic_inference=False, context_length=None) as extra:
        engine = SglangEngine(options_for(tiny_folder, extra=extra))
        assert (engine.capabilities.addressed, engine.capabilities.invariant) == ("none", False)
        assert not engine.capabilities.sleep
        engine.sleep(1)  # nothing to give back
        engine.wake()
        engine.close()
    with says(context_length=200) as extra, pytest.raises(UserError, match="the server's context length") as caught:
        SglangEngine(options_for(tiny_folder, extra=extra))
    assert caught.value.key == f"{SECTION}.max_model_len"


@pytest.mark.long
def test_our_own_server(standin, their_model, tiny_folder):
    """Started, filled over disk, killed, started again: every prompt answered as if nothing had happened."""
    made = []

    def make():
        made.append(SglangEngine(options_for(tiny_folder, invariant=True, extra={"start_timeout": 60})))
        return made[-1]

    engine = Supervised(make)
    try:
        engine.load_weights(WeightStream(their_model(tiny_folder).named_parameters), version=4)
        assert engine.capabilities.addressed == "request" and engine.capabilities.invariant
        calm = [future.result(PATIENCE) for future in engine.generate(asks(8, 150))]
        futures = engine.generate(asks(8, 150))
        time.sleep(0.1)
        os.killpg(made[0]._server.process.pid, signal.SIGKILL)
        stirred = [future.result(PATIENCE) for future in futures]
        assert [one.ids for one in stirred] == [one.ids for one in calm]
        assert [one.versions for one in stirred] == [one.versions for one in calm]
        assert engine.stats()["restarts"] == 1 and len(made) == 2
        assert made[0].closed and not made[0]._server.folder.exists()
        log, process = made[1]._server.folder, made[1]._server.process
        assert (log / "server.log").is_file()
    finally:
        engine.close()
    assert process.poll() is not None and not log.exists()
