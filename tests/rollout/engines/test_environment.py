"""Servers of vLLM and SGLang from another Python environment: a real one, with the stand-in for SGLang in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from burnish.errors import UserError
from burnish.rollout.engines.environment import describe, variables_for
from burnish.rollout.engines.sglang.engine import SglangEngine
from burnish.rollout.engines.sglang.server import check_server
from burnish.rollout.engines.vllm.engine import VllmEngine
from burnish.rollout.engines.vllm.server import VllmServer

from ...sglang_server import STANDINS
from .sglang.kit import KWARGS, PATIENCE, SECTION, asks, options_for

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def their_python(tmp_path_factory) -> str:
    """An environment with SGLang's stand-in and all our libraries, but without Burnish."""
    folder = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = Path(torch.__file__).parents[1]
    (packages / "more.pth").write_text(f"{STANDINS}\n{ours}\n")
    return str(folder / "bin" / "python")


def test_a_server_runs_from_another_environment(their_python, their_model, tiny_folder, monkeypatch):
    """The engine starts the server with that Python, and its tokens are those of our model."""
    monkeypatch.setenv("PYTHONPATH", "/nowhere/that/must/not/reach/the/server")
    engine = SglangEngine(options_for(tiny_folder, extra={"python": their_python, "start_timeout": 60}))
    try:
        words = Path(f"/proc/{engine._server.process.pid}/cmdline").read_bytes().split(b"\0")
        assert their_python.encode() in words
        engine.load_weights(their_model(tiny_folder).named_parameters(), version=1)
        (completion,) = [future.result(PATIENCE) for future in engine.generate(asks(1, 5, do_sample=False))]
        row = torch.tensor([list(asks(1)[0].ids)])
        theirs = their_model(tiny_folder).generate(
            row, do_sample=False, max_new_tokens=5, min_new_tokens=5, eos_token_id=None
        )
        assert completion.ids == theirs[0, row.shape[1] :].tolist()
    finally:
        engine.close()
    assert (Path(__file__).parents[3] / "burnish" / "rollout").is_dir()  # the link to it was removed, not its target


def test_arguments_are_those_of_that_environment(their_python):
    check_server({"python": their_python, "attention_backend": "triton"}, CPU, SECTION)
    with pytest.raises(UserError, match="Did you mean 'attention_backend'") as caught:
        check_server({"python": their_python, "atention_backend": "fa3"}, CPU, SECTION)
    assert caught.value.key == f"{KWARGS}.atention_backend"


@pytest.mark.parametrize("path", ["venv/bin/python", "/no/such/python", "/etc/passwd", "/tmp"])
def test_a_path_that_is_no_interpreter(path):
    with pytest.raises(UserError, match="not an executable Python interpreter") as caught:
        check_server({"python": path}, CPU, SECTION)
    assert caught.value.key == f"{KWARGS}.python"


def test_an_environment_without_the_library(their_python):
    key = f"{SECTION}.engine_kwargs.vllm.python"
    with pytest.raises(UserError, match=r"vllm cannot be imported there: .*No module named 'vllm'") as caught:
        VllmServer.check({"python": their_python}, CPU, SECTION)
    assert caught.value.key == key


def test_vllm_of_another_environment_is_a_server():
    with pytest.raises(UserError, match="only as a server") as caught:
        VllmEngine.check({"python": sys.executable}, CPU, SECTION)
    assert f"{SECTION}.mode=async" in str(caught.value)


def test_only_burnish_is_seen_of_our_environment(tmp_path):
    variables = variables_for("/v/bin/python", tmp_path, {"PYTHONPATH": "/ours", "PATH": "/bin", "VIRTUAL_ENV": "/o"})
    assert variables == {"PYTHONPATH": str(tmp_path / "packages"), "PATH": "/v/bin:/bin"}
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["burnish"]
    assert variables_for(None, tmp_path, {"PYTHONPATH": "/ours"})["PYTHONPATH"].endswith(":/ours")


def test_an_interpreter_that_answers_nonsense(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho hello >&2\n")
    script.chmod(0o755)
    with pytest.raises(UserError, match="sglang cannot be imported there: hello"):
        describe("sglang", str(script), "key")
