"""What the pages of the viewer show, as plain values: one function per request. The server and the export call them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from burnish.errors import UserError
from burnish.log.tokens import SAMPLED
from burnish.profiling.plan import FOLDER as PROFILES
from burnish.profiling.summary import covered
from burnish.view import samples as sampling
from burnish.view.config_table import config_table
from burnish.view.health import check, checks
from burnish.view.metrics import elapsed_times, thinned
from burnish.view.pictures import media_of
from burnish.view.runs import RunReader, shown, unique_names
from burnish.view.token_file import TokenFile, changed_from

MAX_NAMES = 200  # metrics in one request
MAX_TEXT = 20_000  # characters of a text in one answer; more on request
MAX_TOKENS = 4096  # in one answer
MAX_TIMELINE = 400  # newest steps
MAX_BARS = 4000  # conversations of a step
MAX_ROWS_IN_PROGRESS = 50
MAX_SEGMENTS = 200  # of one conversation
MAX_DEPTH = 6  # of values inside records
MAX_RUNS = 500
MAX_STEP = 10**12
MIN_SEARCH = 10.0  # seconds between searches for new runs

Plan = Callable[[RunReader], dict[str, Any] | None]  # doctor's memory plan of a run


class NotFound(Exception):
    """There is no such run, step or row."""


class ViewApi:
    """Answers for a fixed list of runs."""

    def __init__(
        self,
        runs: Sequence[RunReader],
        plan: Plan = lambda run: None,
        find: Callable[[], Sequence[RunReader]] | None = None,
    ) -> None:
        self.run_list = list(runs)
        self.plan = plan
        self._find = find  # the runs that are there now
        self._search_at = time.monotonic() + MIN_SEARCH
        self._searching = threading.Lock()
        self.requests: dict[str, Callable[[Mapping[str, str]], Any]] = {
            "runs": self.runs,
            "metrics": self.metrics,
            "health": self.health,
            "checks": self.checks,
            "steps": self.steps,
            "step": self.step,
            "progress": self.progress,
            "sample": self.sample,
            "picture": self.picture,
            "text": self.text,
            "tokens": self.tokens,
            "difference": self.difference,
            "search": self.search,
            "timeline": self.timeline,
            "processes": self.processes,
            "bars": self.bars,
            "profiles": self.profiles,
            "profile": self.profile,
            "config": self.config,
            "memory": self.memory,
            "files": self.files,
        }

    def answer(self, name: str, query: Mapping[str, str]) -> Any:
        """The answer of a request as JSON values; NotFound for what does not exist."""
        if name not in self.requests:
            raise NotFound(name)
        return finite(self.requests[name](query))

    def runs(self, query: Mapping[str, str]) -> Any:
        self._add_new()
        rows = []
        for number, (run, name) in enumerate(zip(self.run_list, self.names(), strict=True)):
            summary = run.summary()
            row = {**asdict(summary), "path": shown(run.path), "id": number, "name": name}
            row["validation"] = None if summary.validation is None else summary.validation._asdict()
            rows.append(row)
        return {"runs": rows}

    def names(self) -> list[str]:
        """A name for every run, each different."""
        return unique_names(self.run_list)

    def _add_new(self) -> None:
        """Runs that were started since; what was found keeps its number. Searching takes little of the time."""
        if self._find is None or not self._searching.acquire(blocking=False):
            return
        try:
            started = time.monotonic()
            if started < self._search_at:
                return
            known = {run.path for run in self.run_list}
            self.run_list += [run for run in self._find() if run.path not in known][: MAX_RUNS - len(known)]
            self._search_at = time.monotonic() + max(MIN_SEARCH, 50 * (time.monotonic() - started))
        except UserError:  # the folder is gone
            self._find = None
        finally:
            self._searching.release()

    def metrics(self, query: Mapping[str, str]) -> Any:
        """Without `names`, the names; else the curves of these, with at most about MAX_POINTS points each.

        Of the steps `from` to `to`: a part of a long curve has more of its points.
        """
        run = self._run(query)
        metrics, timeline = run.metrics(), run.timeline()
        if "names" not in query:
            return {"names": sorted(metrics.names), "last_step": metrics.last_step}
        times = elapsed_times(metrics.steps, timeline)
        low, high = _integer(query, "from", 0), _integer(query, "to", MAX_STEP)
        curves = {}
        for name in query["names"].split(",")[:MAX_NAMES]:
            points = thinned([point for point in metrics.curve(name) if low <= point[0] <= high])
            curves[name] = [[step, times.get(step), value] for step, value in points]
        return {"curves": curves, "last_step": metrics.last_step}

    def health(self, query: Mapping[str, str]) -> Any:
        run, lang = self._run(query), query.get("lang", "en")
        alarms = check(run.metrics().steps, run.state())
        shown = [
            {
                **asdict(alarm),
                "steps": alarm.steps[-50:],
                "num_steps": len(alarm.steps),
                **{part: alarm.text(part, lang) for part in ("title", "meaning", "remedy")},
            }
            for alarm in alarms
        ]
        return {"alarms": shown, "notes": run.notes()[-200:]}

    def checks(self, query: Mapping[str, str]) -> Any:
        made, lang = checks(self._run(query).metrics().steps), query.get("lang", "en")
        return {"checks": [{**asdict(one), "title": one.title(lang)} for one in made]}

    def steps(self, query: Mapping[str, str]) -> Any:
        run = self._run(query)
        return {"steps": run.steps(), "token_steps": run.token_steps()}

    def step(self, query: Mapping[str, str]) -> Any:
        """All trajectories of a step in short."""
        run, step = self._run(query), _integer(query, "step")
        file = run.step_file(step)
        if file is None:
            raise NotFound(f"step {step}")
        tokens = self._tokens(run, step, len(file.samples))
        rows = [dict(vars(sample)) for sample in file.samples]
        if tokens is not None:
            columns = {"length": tokens.lengths.tolist(), "prompt_length": tokens.prompt_lengths.tolist()}
            columns |= {name: tokens.row_means(name) for name in ("advantages", "entropys")}
            for row, values in enumerate(rows):
                values |= {name: column[row] for name, column in columns.items() if column is not None}
        return {"samples": rows, "has_tokens": tokens is not None}

    def progress(self, query: Mapping[str, str]) -> Any:
        """The conversations of the step that the run is in; those that changed last come first."""
        step = self._run(query).in_progress()
        if step is None:
            return {"name": None}
        known = sorted(step.conversations.values(), key=lambda one: -one.place)
        rows = [
            {"id": one.id, "turns": len(one.turns), "tokens": one.tokens, "calls": len(one.acts), "failed": one.failed}
            | {"is_waiting": one.is_waiting, "last": one.last}
            for one in known[:MAX_ROWS_IN_PROGRESS]
        ]
        sums = {name: sum(len(getattr(one, name)) for one in known) for name in ("turns", "acts")}
        return {
            "name": step.path.stem[:100],
            "conversations": len(known),
            "turns": sums["turns"],
            "calls": sums["acts"],
            "tokens": sum(one.tokens for one in known),
            "waiting": sum(one.is_waiting for one in known),
            "rows": rows,
        }

    def sample(self, query: Mapping[str, str]) -> Any:
        """One trajectory; long texts are cut, `text` has the rest."""
        record = self._record(query)
        turns = [turn for turn in sampling.listed(record.get("turns")) if isinstance(turn, Mapping)]
        names = ("input", "output", "gts", "score", "uid", "sample", "finish_reason", "data_source", "problem")
        return {
            **{name: cut(record.get(name)) for name in names},
            "extras": {name[:200]: cut(value) for name, value in list(sampling.extras(record).items())[:100]},
            "turns": [
                {
                    name: cut(turn.get(name))
                    for name in ("role", "text", "reward", "finish_reason", "tool_calls", "latency")
                }
                for turn in turns[:500]
            ],
            "num_turns": len(turns),
            "media": media_of(record),
        }

    def picture(self, query: Mapping[str, str]) -> Any:
        """A picture that trajectories show, by the name of its file."""
        found = self._run(query).picture(query.get("name", ""))
        if found is None:
            raise NotFound("no such picture")
        return found

    def text(self, query: Mapping[str, str]) -> Any:
        """Part of a long text: `field` is input, output, gts, or turn/N."""
        record, field, start = self._record(query), query.get("field", ""), max(0, _integer(query, "start", 0))
        if field.startswith("turn/"):
            turns, number = sampling.listed(record.get("turns")), field.removeprefix("turn/")
            turn = turns[int(number)] if number.isdecimal() and int(number) < len(turns) else None
            text = sampling.text_of(turn.get("text")) if isinstance(turn, Mapping) else ""
        else:
            text = sampling.text_of(record.get(field)) if field in ("input", "output", "gts", "problem") else ""
        return {"text": text[start : start + MAX_TEXT], "length": len(text)}

    def tokens(self, query: Mapping[str, str]) -> Any:
        """Tokens `start` to `start + count` of a trajectory's response, or of its prompt with part=prompt."""
        run, step, row = self._run(query), _integer(query, "step"), _integer(query, "row")
        tokens = self._tokens(run, step)
        if tokens is None or not 0 <= row < len(tokens):
            raise NotFound(f"tokens of step {step}, row {row}")
        start = max(0, _integer(query, "start", 0))
        end = start + min(MAX_TOKENS, max(1, _integer(query, "count", MAX_TOKENS)))
        if query.get("part") == "prompt":
            ids = tokens.prompt(row, start, end)
            return {
                "start": start,
                "length": int(tokens.prompt_lengths[row]),
                "ids": ids,
                "texts": run.texts.texts(ids),
            }
        columns = tokens.row(row, start, end)
        ids, flags = columns.pop("ids").tolist(), columns.pop("flags")
        answer = {"start": start, "length": int(tokens.lengths[row]), "ids": ids, "flags": flags.tolist()}
        answer |= {"texts": run.texts.texts(ids), "version": tokens.version}
        if "top_ids" in columns:
            answer["alternatives"] = _alternatives(run, columns.pop("top_ids"), columns.pop("top_log_probs"))
        answer["columns"] = {name: _rounded(column) for name, column in columns.items()}
        if {"old_log_probs", "rollout_log_probs"} <= columns.keys():
            gap = np.clip(columns["old_log_probs"] - columns["rollout_log_probs"], -20, 20)
            given = ~np.asarray(flags & SAMPLED, dtype=bool)  # the engine has no probability of these
            answer["columns"]["ratio"] = _rounded(np.where(given, np.nan, np.exp(gap)))
        return answer

    def difference(self, query: Mapping[str, str]) -> Any:
        """Where encoding the response's text again would give other tokens than those that were sampled and trained."""
        run, step, row = self._run(query), _integer(query, "step"), _integer(query, "row")
        tokens = self._tokens(run, step)
        if tokens is None or not 0 <= row < len(tokens):
            raise NotFound(f"tokens of step {step}, row {row}")
        ids = tokens.row(row, 0, 20_000)["ids"].tolist()
        again = run.texts.retokenized(ids)
        if again is None:
            return {"is_known": False}
        same = changed_from(ids, again)
        return {"is_known": True, "num_sampled": len(ids), "num_encoded": len(again), "changed": same[:2000]}

    def search(self, query: Mapping[str, str]) -> Any:
        run, text = self._run(query), query.get("text", "")[:1000]
        if not text:
            return {"matches": [], "next_step": None}
        before = _integer(query, "before", -1)
        result = run.search(text, None if before < 0 else before)
        return {"matches": [asdict(match) for match in result.matches[:500]], "next_step": result.next_step}

    def timeline(self, query: Mapping[str, str]) -> Any:
        """When the phases of the newest steps ran; without a timeline file, their seconds from the metrics."""
        run = self._run(query)
        timeline, metrics = run.timeline(), run.metrics()
        steps = sorted(set(timeline) | set(metrics.steps))[-MAX_TIMELINE:]
        lines = []
        for step in steps:
            values = metrics.steps.get(step, {})
            seconds = {name[9:]: value for name, value in values.items() if name.startswith("timing_s/")}
            lines.append({"step": step, "spans": timeline.get(step, {}).get("spans", []), "seconds": seconds})
        return {"steps": lines}

    def processes(self, query: Mapping[str, str]) -> Any:
        """When each worker process was busy in a step, with the share of the step in which it was not."""
        line = self._run(query).timeline().get(_integer(query, "step"), {"spans": [], "processes": {}})
        bounds = next(((start, start + length) for name, start, length in line["spans"] if name == "step"), None)
        rows = []
        for name, spans in line["processes"].items():
            inside = (
                [(max(start, bounds[0]), min(start + length, bounds[1])) for _, start, length in spans]
                if bounds
                else []
            )
            busy = covered(span for span in inside if span[1] > span[0])
            idle = 1 - busy / (bounds[1] - bounds[0]) if bounds and bounds[1] > bounds[0] else None
            rows.append({"name": name, "spans": spans, "idle": idle})
        return {"processes": rows}

    def bars(self, query: Mapping[str, str]) -> Any:
        """The trajectories of a step over time: start, end, seconds of waiting for tools, tokens, and segments.

        A segment is a kind (0 queued, 1 generating, 2 waiting for a tool or environment), its start and its seconds.
        """
        run, step = self._run(query), _integer(query, "step")
        tokens, file = self._tokens(run, step), run.step_file(step)
        times = None if tokens is None else tokens.times()
        if tokens is None or times is None:
            return {"bars": []}
        waits = [sample.tool_seconds for sample in file.samples] if file is not None else []
        waits = waits if len(waits) == len(times) else [0.0] * len(times)
        lengths = tokens.lengths.tolist()
        segments = tokens.segments() or [[] for _ in times]
        rows = zip(times, waits, lengths, segments, strict=True)
        return {"bars": [[*span, wait, length, part[:MAX_SEGMENTS]] for span, wait, length, part in rows][:MAX_BARS]}

    def profiles(self, query: Mapping[str, str]) -> Any:
        """Recordings of profilers, which /profile/{run}/{name} serves."""
        run = self._run(query)
        return {
            "folder": shown(run.path / PROFILES),
            "profiles": [
                {"name": one.name, "bytes": one.bytes, "time": one.time, "is_trace": one.is_trace}
                for one in run.profiles()
            ],
        }

    def profile(self, query: Mapping[str, str]) -> Any:
        """The summary of one trace: phases, idle share, what took longest."""
        name = query.get("name", "")
        summary = self._run(query).profile_summary(name)
        if summary is None:
            raise NotFound(f"trace {name[:200]}")
        phases = [[phase[:200], seconds] for phase, seconds in list(summary.phases.items())[:50]]
        top = [{**asdict(entry), "name": entry.name[:500]} for entry in summary.top]
        return {**asdict(summary), "phases": phases, "top": top}

    def profile_path(self, run: str, name: str) -> Path:
        """The file of a recording."""
        profiles = self._run({"run": run}).profiles()
        path = next((profile.path for profile in profiles if profile.name == name), None)
        if path is None:
            raise NotFound(f"profile {name[:200]}")
        return path

    def config(self, query: Mapping[str, str]) -> Any:
        """The settings of one run, or of several side by side (`runs`: numbers joined by commas)."""
        numbers = query.get("runs", query.get("run", "0")).split(",")[:8]
        runs, names = [self._run({"run": number}) for number in numbers], self.names()
        table = config_table(runs, query.get("lang", "en"))
        return {**table, "runs": [names[self.run_list.index(run)] for run in runs]}

    def memory(self, query: Mapping[str, str]) -> Any:
        run = self._run(query)
        metrics = run.metrics()
        names = [name for name in sorted(metrics.names) if "memory" in name or "rss" in name]
        peaks = {name: max(value for _, value in metrics.curve(name)) for name in names}
        try:
            plan = self.plan(run)
        except (UserError, OSError):
            plan = None
        return {"plan": plan, "peaks": peaks}

    def files(self, query: Mapping[str, str]) -> Any:
        run = self._run(query)
        checkpoints = [{**asdict(checkpoint), "path": shown(checkpoint.path)} for checkpoint in run.checkpoints()]
        return {
            "path": shown(run.path),
            "checkpoints": checkpoints,
            "has_model": run.has_model(),
            "command": run.command(),
            "environment": run.environment(),
        }

    def _run(self, query: Mapping[str, str]) -> RunReader:
        number = _integer(query, "run", 0)
        if not 0 <= number < len(self.run_list):
            raise NotFound(f"run {number}")
        return self.run_list[number]

    def _record(self, query: Mapping[str, str]) -> dict[str, Any]:
        run, step, row = self._run(query), _integer(query, "step"), _integer(query, "row")
        file = run.step_file(step)
        if file is None or not 0 <= row < len(file.samples):
            raise NotFound(f"step {step}, row {row}")
        return file.record(row)

    def _tokens(self, run: RunReader, step: int, num_rows: int | None = None) -> TokenFile | None:
        """The tokens of a step; None where they do not belong to its trajectories (another run's file)."""
        tokens = run.token_file(step)
        return None if tokens is None or num_rows not in (None, len(tokens)) else tokens


def cut(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A value of a record with long texts and lists cut; a text that was cut is {"cut": text, "length": N}."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else {"cut": value[:MAX_TEXT], "length": len(value)}
    if isinstance(value, Mapping):
        if depth == 0:
            return "..."
        return {str(name)[:200]: cut(entry, depth - 1) for name, entry in list(value.items())[:100]}
    if isinstance(value, list | tuple):
        return "..." if depth == 0 else [cut(entry, depth - 1) for entry in value[:200]]
    return value


def finite(value: Any) -> Any:
    """JSON values: non-finite numbers become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def _alternatives(run: RunReader, ids: np.ndarray, log_probs: np.ndarray) -> list[list[list[Any]]]:
    rows = zip(ids.tolist(), log_probs.astype(float).round(4).tolist(), strict=True)
    return [
        [[run.texts.text(token), value] for token, value in zip(tokens, values, strict=True) if token >= 0]
        for tokens, values in rows
    ]


def _rounded(column: np.ndarray) -> list[Any]:
    if column.dtype.kind != "f":
        return column.tolist()
    return np.round(column.astype(np.float64), 5).tolist()


def _integer(query: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = query.get(name, "")
    if text.removeprefix("-").isdecimal() and len(text) < 16:
        return int(text)
    if default is None:
        raise NotFound(f"{name}={text[:50]}")
    return default
