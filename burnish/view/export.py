"""`burnish view --export`: the pages and a part of the runs in one HTML file that needs no server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.log.jsonl import write_atomically
from burnish.view.api import NotFound, ViewApi, finite
from burnish.view.server import static_files

# In the order of their imports: each uses only names of those before it.
MODULES = (
    *("dom.js", "state.js", "words.js", "chart.js", "curves.js", "health.js", "tokens.js", "samples.js"),
    *("profiles.js", "timeline.js", "config.js", "app.js"),
)
TOKENS_PER_PAGE = 512  # as tokens.js asks for them
MAX_ROWS = 64  # trajectories of a step
MAX_PROFILES = 8  # traces whose summaries are part of the page
MAX_PAGES = 8  # pages of tokens of a trajectory
MAX_PICTURES = 16 * 2**20  # characters of all pictures
MISSING = "This is not part of the exported page. Open the run with `burnish view`."
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|class)", re.MULTILINE)


def export_page(api: ViewApi, path: Path, *, num_steps: int = 3) -> int:
    """Write the page; returns its size in bytes."""
    files = {name: content.decode() for name, content in static_files().items()}
    script, style = bundle(files), files["style.css"]
    # In JSON inside a script element, only "<" can end the element.
    data = json.dumps(collect(api, num_steps), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    page = files["index.html"].replace('<link rel="icon" href="/static/icon.svg">\n', "")
    page = page.replace('<link rel="stylesheet" href="/static/style.css">', head)
    page = page.replace('<script type="module" src="/static/app.js"></script>\n', "")
    scripts = (
        f'<script type="application/json" id="embedded">{data}</script>\n<script type="module">{script}</script>\n'
    )
    page = page.replace("</body>", f"{scripts}</body>")
    write_atomically(path, page)
    return len(page.encode(errors="replace"))


def bundle(files: Mapping[str, str]) -> str:
    """All modules as one script. Their top-level names differ (tests/view checks that)."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", files[name])) for name in MODULES)


def collect(api: ViewApi, num_steps: int) -> dict[str, Any]:
    """The answers that the pages will ask for, as the keys of static/state.js."""
    answers: dict[str, Any] = {}
    curves: dict[str, Any] = {}

    def ask(name: str, /, **query: Any) -> Any:
        words = {word: str(value) for word, value in query.items()}
        try:
            answer = api.answer(name, words)
        except (NotFound, OSError, UserError):  # a trace that is damaged, for example
            return None
        answers[f"{name}?{'&'.join(f'{word}={words[word]}' for word in sorted(words))}"] = answer
        return answer

    ask("runs")
    everything = ",".join(str(number) for number in range(len(api.run_list)))
    for number, run in enumerate(api.run_list):
        names = sorted(run.metrics().names)
        ask("metrics", run=number)
        curves[str(number)] = api.metrics({"run": str(number), "names": ",".join(names)})["curves"] if names else {}
        for lang in ("en", "zh"):
            ask("health", run=number, lang=lang)
            ask("checks", run=number, lang=lang)
            ask("config", runs=number, lang=lang)
            ask("config", runs=everything, lang=lang)
        for name in ("memory", "files", "timeline", "profiles"):
            ask(name, run=number)
        for profile in [one for one in run.profiles() if one.is_trace][:MAX_PROFILES]:
            ask("profile", run=number, name=profile.name)
        _collect_steps(run.steps(), number, num_steps, ask, answers)
        _collect_pictures(number, ask, answers)
    return {"answers": answers, "curves": finite(curves), "missing": MISSING}


def _collect_steps(steps: list[int], run: int, count: int, ask: Any, answers: dict[str, Any]) -> None:
    """The first, the last and steps between them."""
    last = len(steps) - 1
    chosen = (
        sorted({steps[round(last * place / max(1, count - 1))] for place in range(count)}) if steps and count else []
    )
    answers[f"steps?run={run}"] = {"steps": chosen, "token_steps": chosen}
    for step in chosen:
        answer = ask("step", run=run, step=step)
        ask("bars", run=run, step=step)
        ask("processes", run=run, step=step)
        answer["samples"] = answer["samples"][:MAX_ROWS]
        for sample in answer["samples"]:
            ask("sample", run=run, step=step, row=sample["row"])
            ask("difference", run=run, step=step, row=sample["row"])
            ask("tokens", run=run, step=step, row=sample["row"], part="prompt", start=0, count=4096)
            for page in range(min(MAX_PAGES, -(-sample.get("length", 0) // TOKENS_PER_PAGE))):
                start = page * TOKENS_PER_PAGE
                ask("tokens", run=run, step=step, row=sample["row"], start=start, count=TOKENS_PER_PAGE)


def _collect_pictures(run: int, ask: Any, answers: dict[str, Any]) -> None:
    """The pictures of the chosen trajectories, until all together are too large."""
    records = [answer for key, answer in answers.items() if key.startswith("sample?") and f"run={run}&" in key]
    names = [name for record in records for item in record["media"] for name in item["files"]]
    held = sum(len(answer["png"]) for key, answer in answers.items() if key.startswith("picture?"))
    for name in dict.fromkeys(names):
        if held > MAX_PICTURES:
            return
        found = ask("picture", run=run, name=name)
        held += 0 if found is None else len(found["png"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
