"""Read the responses to evaluate from rows of files, and check them before scoring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.data.files import Rows, folder_of
from burnish.data.invalid_media import at_row
from burnish.data.pictures import MediaColumns, place_pictures
from burnish.data.prompt import read_prompt
from burnish.errors import UserError, nearest
from burnish.media import InvalidMedia
from burnish.reward.sample import Sample, SampleRow

if TYPE_CHECKING:
    from burnish.config.jobs import EvalDataConfig


def check_columns(rows: Rows, cfg: EvalDataConfig, *, reads_prompts: bool) -> None:
    """Raise UserError if a configured column does not exist, with a suggestion."""
    columns = {
        "data.response_key": cfg.response_key,
        "data.data_source_key": cfg.data_source_key,
        "data.reward_model_key": cfg.reward_model_key,
        "data.prompt_key": cfg.prompt_key if reads_prompts else None,
    }
    for key, column in columns.items():
        if column is None or column in rows.kinds:
            continue
        suggestion = nearest(column, rows.kinds)
        raise UserError(
            f"{rows.name} has no such column." + (f" Did you mean {suggestion!r}?" if suggestion else ""),
            key=key,
            value=column,
            allowed=f"its columns {', '.join(sorted(rows.kinds))}",
            hint=f"{key}={suggestion or 'COLUMN'}",
        )


def samples_of(
    rows: Rows,
    number: int,
    cfg: EvalDataConfig,
    *,
    reads_prompts: bool,
    reads_rows: bool = False,
    reads_pictures: bool = False,
) -> list[Sample]:
    """One sample per response of a row."""
    row, where = rows.row(number), rows.where(number)
    extra = _object(row, "extra_info", where)
    if extra.get("index") is None:
        extra["index"] = number
    source = row.get(cfg.data_source_key)
    if source is None:
        raise UserError(
            f"{where} has no {cfg.data_source_key!r}", key="data.data_source_key", value=cfg.data_source_key
        )
    prompt = read_prompt(row, cfg.prompt_key, where).contents() if reads_prompts else ""
    sample_row = _sample_row(row, cfg, where) if reads_rows else None
    pictures = _pictures(row, cfg, where, folder_of(rows, number)) if reads_pictures else {}
    return [
        Sample(
            data_source=str(source),
            solution_str=response,
            ground_truth=_ground_truth(row, cfg),
            extra_info=extra,
            uid=f"{rows.fingerprint}-{number}",
            sample=sample,
            row=sample_row,
            prompt=prompt,
            query=prompt + response if reads_prompts else "",
            pictures=pictures,
        )
        for sample, response in enumerate(_responses(row, cfg, where))
    ]


def all_samples(
    rows: Rows, cfg: EvalDataConfig, *, reads_prompts: bool, reads_rows: bool = False, reads_pictures: bool = False
) -> Iterator[list[Sample]]:
    inputs = {"reads_prompts": reads_prompts, "reads_rows": reads_rows, "reads_pictures": reads_pictures}
    return (samples_of(rows, number, cfg, **inputs) for number in range(len(rows)))


def _pictures(row: Mapping[str, Any], cfg: EvalDataConfig, where: str, folder: str) -> dict[str, list[Any]]:
    """The images and videos of the prompt, in order."""
    prompt, columns = read_prompt(row, cfg.prompt_key, where), MediaColumns(cfg.image_key, cfg.video_key)
    _, media = place_pictures(prompt.messages or [], row, columns, where, folder)
    try:
        return {kind: [item.read() for item in media if item.kind == kind] for kind in ("image", "video")}
    except InvalidMedia as error:
        raise at_row(error, where) from error


def _sample_row(row: Mapping[str, Any], cfg: EvalDataConfig, where: str) -> SampleRow:
    """The row for functions that take columns by name. Files of responses have no tokens."""
    prompt = read_prompt(row, cfg.prompt_key, where)
    text = prompt.messages or [] if prompt.plain_text is None else prompt.plain_text
    columns = {name: value for name, value in row.items() if name not in (cfg.prompt_key, cfg.response_key)}
    return SampleRow(text, columns, [])


def check_rows(rows: Rows, cfg: EvalDataConfig) -> set[str]:
    """Check all rows before scoring; returns the data sources. UserError at the first invalid row."""
    return {sample.data_source for samples in all_samples(rows, cfg, reads_prompts=False) for sample in samples}


def _responses(row: Mapping[str, Any], cfg: EvalDataConfig, where: str) -> list[str]:
    """A list of strings; one string is one response."""
    value = row.get(cfg.response_key)
    responses = [value] if isinstance(value, str) else value
    if isinstance(responses, Sequence) and responses and all(isinstance(response, str) for response in responses):
        return list(responses)
    actual = "nothing" if value is None or value == [] else _kind(value)
    raise UserError(
        f"{where}: the responses must be a list of strings, or one string, not {actual}",
        key="data.response_key",
        value=cfg.response_key,
    )


def _kind(value: Any) -> str:
    if isinstance(value, Sequence):
        return "a list with " + ", ".join(
            sorted({type(entry).__name__ for entry in value if not isinstance(entry, str)})
        )
    return type(value).__name__


def _ground_truth(row: Mapping[str, Any], cfg: EvalDataConfig) -> Any:
    """The `ground_truth` of an object; anything else in that column is the ground truth itself."""
    if cfg.reward_model_key is None:
        return None
    value = row.get(cfg.reward_model_key)
    return value.get("ground_truth") if isinstance(value, Mapping) else value


def _object(row: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = row.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise UserError(f"{where}: {name!r} must be an object, not {type(value).__name__}", key="data.path")
    return dict(value or {})
