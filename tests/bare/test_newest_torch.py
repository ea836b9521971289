"""The newest torch that pip finds, if it is newer than the pinned one: a training and a core set of tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings

import pytest

from ..laws.source import ROOT
from .conftest import Sandbox

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]

# What depends on torch most: autograd and optimizers, attention, compiled code, checkpoints, ranks, one run.
CORE = (
    "tests/training/test_update.py tests/training/test_optim.py tests/training/test_checkpoint.py "
    "tests/training/test_sharding.py tests/models/test_attention.py tests/models/test_logprobs.py "
    "tests/models/test_recompute.py tests/models/cpu tests/models/fused tests/rollout/engines/builtin/test_engine.py "
    "tests/loop/test_step.py"
)
PYTORCH = "--extra-index-url https://download.pytorch.org/whl/cpu"
# Where only the default build can be had, it is tried on request: on Linux it brings gigabytes of CUDA libraries.
WITH_CUDA = "BURNISH_TEST_TORCH_WITH_CUDA"


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"[\d.]+", text)[0].split("."))


def newest_torch() -> tuple[str, bool]:
    """As pip would install it, and whether it requires CUDA libraries. A CPU build counts as newer than the default
    build of the same version."""
    command = (
        f"{sys.executable} -m pip install --quiet --dry-run --no-deps --ignore-installed --report - {PYTORCH} torch"
    )
    done = subprocess.run(command.split(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (chosen,) = json.loads(done.stdout[done.stdout.index("{") :])["install"]
    required = [name for name in chosen["metadata"].get("requires_dist", ()) if name.startswith(("cuda-", "nvidia-"))]
    return chosen["metadata"]["version"], bool(required) and sys.platform == "linux"


def test_the_newest_torch_trains_and_passes_the_core_tests(clone: Sandbox):
    pinned = re.search(r"torch==([\d.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"))[1]
    newest, with_cuda = newest_torch()
    assert version(newest) >= version(pinned)
    if version(newest) == version(pinned):
        warnings.warn(f"not tried: there is no newer torch than {pinned}", stacklevel=1)
        return
    if with_cuda and not os.environ.get(WITH_CUDA):
        warnings.warn(f"not tried: of torch {newest}, pip finds only the build with CUDA; {WITH_CUDA}=1", stacklevel=1)
        return
    subprocess.run([sys.executable, "-m", "venv", str(clone.folder / ".venv")], check=True)
    clone.check(f"python -m pip install -qq {PYTORCH} torch=={newest}")
    clone.check('python -m pip install -qq "pytest>=8" "pytest-timeout>=2.3" "hypothesis>=6.100" -e ".[peft]"')
    assert newest in clone.check("python -c 'import torch; print(torch.__version__)'")
    last = json.loads(clone.check("burnish demo --json").splitlines()[-1])
    assert last["after"] > last["before"] + 0.3
    clone.check(f"python -m pytest -m 'not long' {CORE}")
