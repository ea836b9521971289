"""Other calling conventions: positional (prime), one call per batch (batch), TRL's and OpenRLHF's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.errors import UserError
from burnish.reward.call import (
    ARGUMENTS,
    OTHER_STYLES,
    Caller,
    Inputs,
    parameters_of,
    parse_result,
    signature_text,
)
from burnish.reward.protocol import parse_response
from burnish.reward.sample import INVALID, Outcome, SampleRow

PLURALS = {name: f"{name}s" for name in ARGUMENTS}


class PositionalCaller(Caller):
    """Passes the four arguments by position, or as many as the function accepts; reward_kwargs by name."""

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        return self.function(*(arguments[name] for name in self.names), **self.kwargs)

    def _accepted_arguments(self) -> list[str]:
        if not callable(self.function):
            return super()._accepted_arguments()
        parameters = parameters_of(self.function)
        if parameters is None:
            return list(ARGUMENTS)
        kinds = [p.kind for p in parameters.values()]
        by_name = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            self._check_kwargs(by_name)
        positional = [
            name
            for name, p in parameters.items()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and name not in self.kwargs
        ]
        num_accepted = len(ARGUMENTS) if any(kind.name == "VAR_POSITIONAL" for kind in kinds) else len(positional)
        missing = [name for name in positional[len(ARGUMENTS) :] if parameters[name].default is parameters[name].empty]
        if missing:
            signature = f"{self.label}{signature_text(self.function)}"
            raise UserError(
                f"{signature} requires {len(positional)} positional arguments, but there are {len(ARGUMENTS)}",
                key=self.key,
                allowed=f"{', '.join(ARGUMENTS)} (by position) and the names in reward_kwargs; {OTHER_STYLES}",
                hint=f"custom_reward_function.reward_kwargs.{missing[0]}=... to pass a value",
            )
        return list(ARGUMENTS)[:num_accepted]


class BatchCaller(Caller):
    """One call per batch, with data_sources, solution_strs, ground_truths and extra_infos; one result per sample."""

    available = tuple(PLURALS.values())

    def parse(self, result: Any, num_samples: int) -> Outcome:
        outcomes = parse_list(result, num_samples, self.label)
        if isinstance(outcomes, Outcome):
            return outcomes
        return Outcome(extras={"outcomes": [list(outcome) for outcome in outcomes]})


def parse_list(result: Any, num_samples: int, label: str, *, none_is_zero: bool = False) -> list[Outcome] | Outcome:
    """One outcome per entry of a list; a single one, for all of them, if the result is no such list."""
    if hasattr(result, "tolist"):  # an array or tensor of scores
        result = result.tolist()
    if not isinstance(result, Sequence) or isinstance(result, str | bytes):
        text = f"returned {type(result).__name__} instead of a list of {num_samples} scores in {label}"
        return Outcome(kind=INVALID, text=text)
    if len(result) != num_samples:
        return Outcome(kind=INVALID, text=f"returned {len(result)} scores for {num_samples} responses in {label}")
    return [parse_result(0.0 if entry is None and none_is_zero else entry, label) for entry in result]


class ColumnsCaller(Caller):
    """TRL's f(prompts, completions, **columns): lists with one entry per response, here of one; returns such a list.

    Completions are strings, or lists of one assistant message where the prompts are messages. Columns are those of the
    data, and ground_truth. An entry None, for a response to which the function does not apply, counts as 0.
    """

    available = ("prompts", "completions", "completion_ids", "ground_truth", "data_source", "extra_info")

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        lists = self._lists(arguments)
        names = lists if self.takes_all else [name for name in self.names if name in lists]
        return self.function(**({name: lists[name] for name in names} | self.kwargs))

    def parse(self, result: Any, num_samples: int) -> Outcome:
        outcomes = parse_list(result, num_samples, self.label, none_is_zero=True)
        return outcomes if isinstance(outcomes, Outcome) else outcomes[0]

    def _accepted_arguments(self) -> list[str]:
        parameters = parameters_of(self.function) or {}
        by_name = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if not self.takes_all:
            self._check_kwargs(set(by_name))
        positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
        if positional:
            raise self._wrong_signature(f"requires {', '.join(map(repr, positional))} by position", hint=None)
        names = [name for name in by_name if name not in self.kwargs]
        required = (name for name in names if parameters[name].default is parameters[name].empty)
        self.inputs = Inputs(row=True, columns=tuple(name for name in required if name not in self.available))
        return names

    def _lists(self, arguments: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Lists of one entry for one sample; a batch has them already, under plural names."""
        single = {name: [arguments[name]] for name in (*ARGUMENTS, "row") if name in arguments}
        return trl_lists(single or {name: arguments[f"{name}s"] for name in (*ARGUMENTS, "row")})


class ColumnsBatchCaller(ColumnsCaller):
    """TRL's function with all responses of a batch in one call."""

    def parse(self, result: Any, num_samples: int) -> Outcome:
        outcomes = parse_list(result, num_samples, self.label, none_is_zero=True)
        if isinstance(outcomes, Outcome):
            return outcomes
        return Outcome(extras={"outcomes": [list(outcome) for outcome in outcomes]})


def trl_lists(samples: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """TRL's arguments from lists of verl's arguments and of rows (SampleRow)."""
    rows: list[SampleRow] = samples["row"]
    names = dict.fromkeys(name for row in rows for name in row.columns)
    lists = {name: [row.columns.get(name) for row in rows] for name in names}
    lists["prompts"] = [row.prompt for row in rows]
    lists["completions"] = [
        text if isinstance(row.prompt, str) else [{"role": "assistant", "content": text}]
        for text, row in zip(samples["solution_str"], rows, strict=True)
    ]
    lists["completion_ids"] = [row.completion_ids for row in rows]
    for name in ("ground_truth", "data_source", "extra_info"):
        lists.setdefault(name, samples[name])
    return lists


class QueryCaller(Caller):
    """OpenRLHF's reward_func(queries, prompts, labels, ...), called with lists of one entry."""

    available = ("queries", "prompts", "labels")
    inputs = Inputs(texts=True)

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        texts = {
            "queries": [arguments["query"]],
            "prompts": [arguments["prompt"]],
            "labels": [arguments["ground_truth"]],
        }
        return self.function(**({name: texts[name] for name in self.names} | self.kwargs))

    def parse(self, result: Any, num_samples: int) -> Outcome:
        return parse_response(result, self.label)


# A parameter that only functions of another convention have -> how to call those, for each reward manager's caller.
_LISTS = {"completions": ColumnsCaller, "queries": QueryCaller}
STYLES: dict[type[Caller], dict[str, type[Caller]]] = {
    Caller: _LISTS,
    PositionalCaller: _LISTS,
    QueryCaller: {"completions": ColumnsCaller},
    BatchCaller: {"completions": ColumnsBatchCaller},
}


def caller_for(default: type[Caller], function: Callable[..., Any], kwargs: Mapping[str, Any]) -> type[Caller]:
    """`default`, unless a parameter shows that the function was written for TRL or OpenRLHF."""
    parameters = (parameters_of(function) if callable(function) else None) or {}
    styles = STYLES.get(default, {})
    return next((style for name, style in styles.items() if name in parameters and name not in kwargs), default)
