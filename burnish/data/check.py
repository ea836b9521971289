"""Check a data file: examine every row and count each kind of problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.data.encode import PromptEncoder
from burnish.data.files import Rows, fingerprint_of, folder_of, value_kind
from burnish.data.measure import PromptLength, measure
from burnish.data.pictures import SPLIT, MediaColumns, has_pictures, place_pictures, refuse_audio, texts
from burnish.data.prompt import ROLES, Prompt, read_prompt, text_of
from burnish.errors import UserError
from burnish.media import Video

SHOWN_ROWS = 5


@dataclass
class Finding:
    """One kind of problem, and the rows that have it."""

    problem: str
    count: int = 0
    rows: list[int] = field(default_factory=list)

    def text(self) -> str:
        shown = ", ".join(map(str, self.rows)) + (", ..." if self.count > len(self.rows) else "")
        return f"{self.problem}: {self.count} rows ({shown})" if self.count else self.problem


@dataclass
class Report:
    """A summary of a file and its problems. Errors would stop a run, warnings would not."""

    name: str
    num_rows: int
    columns: dict[str, str]
    sources: Counter = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    images: list[tuple[int, int]] = field(default_factory=list)  # width and height of each
    frames: list[int] = field(default_factory=list)  # of each video
    errors: dict[str, Finding] = field(default_factory=dict)
    warnings: dict[str, Finding] = field(default_factory=dict)

    def add(self, findings: dict[str, Finding], problem: str, row: int | None = None) -> None:
        finding = findings.setdefault(problem, Finding(problem))
        if row is not None:
            finding.count += 1
            finding.rows += [row] if len(finding.rows) < SHOWN_ROWS else []

    def lines(self) -> Iterator[str]:
        yield f"{self.name}: {self.num_rows} rows"
        yield "columns: " + ", ".join(f"{name} ({kind})" for name, kind in self.columns.items())
        if self.sources:
            yield "data sources: " + ", ".join(f"{name} ({count})" for name, count in self.sources.most_common())
        if self.lengths:
            yield f"prompt tokens: {length_summary(self.lengths)}"
        if self.images:
            yield f"images: {len(self.images)}; pixels: {size_summary(self.images)}"
        if self.frames:
            yield f"videos: {len(self.frames)}; frames that are read: {length_summary(self.frames)}"
        yield from (f"error: {finding.text()}" for finding in self.errors.values())
        yield from (f"warning: {finding.text()}" for finding in self.warnings.values())
        yield f"{len(self.errors)} kinds of errors, {len(self.warnings)} kinds of warnings"


def length_summary(lengths: list[int]) -> str:
    ordered = sorted(lengths)
    last = len(ordered) - 1
    quantiles = [f"{name} {ordered[min(int(share * len(ordered)), last)]}" for name, share in QUANTILES.items()]
    return ", ".join([*quantiles, f"mean {sum(ordered) / len(ordered):.1f}"])


def size_summary(sizes: list[tuple[int, int]]) -> str:
    """By the number of pixels."""
    ordered = sorted(sizes, key=lambda size: size[0] * size[1])
    shown = {"smallest": ordered[0], "median": ordered[len(ordered) // 2], "largest": ordered[-1]}
    return ", ".join(f"{name} {width}x{height}" for name, (width, height) in shown.items())


QUANTILES = {"shortest": 0.0, "median": 0.5, "95%": 0.95, "99%": 0.99, "longest": 1.0}


def check_rows(
    rows: Rows,
    *,
    prompt_key: str = "prompt",
    reward_fn_key: str = "data_source",
    max_prompt_length: int | None = None,
    encoder: PromptEncoder | None = None,
    image_key: str = "images",
    video_key: str = "videos",
) -> Report:
    """Check every row, and decode its pictures; with an encoder, also the length of every prompt."""
    report = Report(rows.name, len(rows), rows.kinds)
    expected = any(name in rows.kinds for name in (image_key, video_key))
    columns = MediaColumns(image_key, video_key, expected=expected)
    for column in (prompt_key, reward_fn_key):
        if column not in rows.kinds:
            report.add(report.errors, f"no column {column!r}")
    if "reward_model" not in rows.kinds:
        report.add(report.warnings, "no column 'reward_model': rewards get no ground truth")
    seen: Counter = Counter()
    prompts: dict[int, Prompt] = {}
    for number in range(len(rows)):
        row = rows.row(number)
        if prompt_key in rows.kinds:
            prompt = _check_prompt(report, row, number, prompt_key)
            if prompt is not None and prompt.messages is not None:
                prompt = _check_pictures(report, prompt, row, number, columns, folder_of(rows, number))
            if prompt is not None:
                _check_duplicates(report, seen, prompt, number)
            if prompt is not None and encoder is not None:
                prompts[number] = prompt
        if reward_fn_key in rows.kinds:
            _check_source(report, row.get(reward_fn_key), number, reward_fn_key)
        _check_objects(report, row, number)
    if encoder is not None:
        _check_lengths(report, prompts, encoder, max_prompt_length)
    return report


def _check_prompt(report: Report, row: Mapping[str, Any], number: int, prompt_key: str) -> Prompt | None:
    try:
        prompt = read_prompt(row, prompt_key, where="")
    except UserError as error:
        report.add(report.errors, error.problem.removeprefix(": "), number)
        return None
    messages = prompt.messages or []
    for role in {message["role"] for message in messages} - set(ROLES):
        report.add(report.errors, f"unknown role {role!r} (known: {', '.join(ROLES)})", number)
    if not any(text_of(message.get("content")).strip() for message in messages) and not has_pictures(
        row, MediaColumns(), messages
    ):
        report.add(report.errors, "the prompt is empty", number)
        return None
    if messages[-1]["role"] == "assistant":
        report.add(report.warnings, "the prompt ends with an assistant turn", number)
    return prompt


def _check_pictures(
    report: Report, prompt: Prompt, row: Mapping[str, Any], number: int, columns: MediaColumns, folder: str
) -> Prompt | None:
    """The prompt with its pictures, of which each is decoded once; None if any is bad."""
    messages = prompt.messages or []
    try:
        refuse_audio(row, messages, "the row")
        placed, media = place_pictures(messages, row, columns, "", folder)
    except UserError as error:
        report.add(report.errors, error.problem.removeprefix(": "), number)
        return None
    if not columns.expected and not media and any(map(SPLIT.search, texts(messages))):
        problem = f"<image> or <video> in the prompt, but no column {columns.image_key!r} or {columns.video_key!r}"
        report.add(report.warnings, problem, number)
    good = True
    for item in media:
        try:
            picture = item.read()
        except UserError as error:
            report.add(report.errors, error.problem.replace(f"{item.kind} {item.number}: ", f"{item.kind}: "), number)
            good = False
            continue
        if isinstance(picture, Video):
            report.frames.append(len(picture.frames))
        else:
            report.images.append(picture.size)
    return replace(prompt, messages=placed, media=media) if good else None


def _check_duplicates(report: Report, seen: Counter, prompt: Prompt, number: int) -> None:
    pictures = [item.value for item in prompt.media]
    content = fingerprint_of([{"messages": prompt.messages, "pictures": pictures}])
    if seen[content]:
        report.add(report.warnings, "duplicate prompt", number)
    seen[content] += 1


def _check_source(report: Report, source: object, number: int, key: str) -> None:
    if not isinstance(source, str) or not source:
        report.add(report.errors, f"{key!r} must be a name, not {value_kind(source)}", number)
        return
    report.sources[source] += 1


def _check_objects(report: Report, row: Mapping[str, Any], number: int) -> None:
    for name in ("reward_model", "extra_info"):
        value = row.get(name)
        if value is not None and not isinstance(value, Mapping):
            report.add(report.errors, f"{name!r} must be an object, not {value_kind(value)}", number)
            return
    if "reward_model" in report.columns:
        truth = (row.get("reward_model") or {}).get("ground_truth")
        if truth is None or truth == "":
            report.add(report.errors, "reward_model.ground_truth is missing", number)


def _check_lengths(report: Report, prompts: dict[int, Prompt], encoder: PromptEncoder, limit: int | None) -> None:
    if encoder.vision is None and any(prompt.media for prompt in prompts.values()):
        report.add(
            report.warnings, "the prompts with images or videos are not measured: the tokenizer is of a text model"
        )
        prompts = {number: prompt for number, prompt in prompts.items() if not prompt.media}
    lengths: list[PromptLength] = measure(prompts.values(), encoder, workers=1)
    for number, result in zip(prompts, lengths, strict=True):
        if result.media_error is not None:
            report.add(report.errors, result.media_error.problem, number)
            continue
        if result.failure:
            report.add(report.errors, f"the chat template failed: {result.failure}", number)
            continue
        report.lengths.append(result.length)
        if limit is not None and result.length > limit:
            report.add(report.errors, f"the prompt has more than {limit} tokens", number)
