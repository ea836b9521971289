"""Other calling conventions: positional (prime), one call per batch (batch), and OpenRLHF's reward_func."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import UserError
from burnish.reward.call import ARGUMENTS, Caller, parameters_of, parse_result
from burnish.reward.protocol import parse_response
from burnish.reward.sample import INVALID, Outcome

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
            raise UserError(
                f"{self.label} requires {len(positional)} positional arguments, but there are {len(ARGUMENTS)}",
                key=self.key,
                allowed=f"{', '.join(ARGUMENTS)} (by position) and the names in reward_kwargs",
                hint=f"custom_reward_function.reward_kwargs.{missing[0]}=... to pass a value",
            )
        return list(ARGUMENTS)[:num_accepted]


class BatchCaller(Caller):
    """One call per batch, with data_sources, solution_strs, ground_truths and extra_infos; one result per sample."""

    available = tuple(PLURALS.values())

    def parse(self, result: Any, num_samples: int) -> Outcome:
        if hasattr(result, "tolist"):  # an array or tensor of scores
            result = result.tolist()
        if not isinstance(result, Sequence) or isinstance(result, str | bytes):
            text = f"returned {type(result).__name__} instead of a list of {num_samples} scores in {self.label}"
            return Outcome(kind=INVALID, text=text)
        if len(result) != num_samples:
            return Outcome(
                kind=INVALID, text=f"returned {len(result)} scores for {num_samples} responses in {self.label}"
            )
        return Outcome(extras={"outcomes": [list(parse_result(entry, self.label)) for entry in result]})


class QueryCaller(Caller):
    """OpenRLHF's reward_func(queries, prompts, labels, ...), called with lists of one entry."""

    available = ("queries", "prompts", "labels")

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        texts = {
            "queries": [arguments["query"]],
            "prompts": [arguments["prompt"]],
            "labels": [arguments["ground_truth"]],
        }
        return self.function(**({name: texts[name] for name in self.names} | self.kwargs))

    def parse(self, result: Any, num_samples: int) -> Outcome:
        return parse_response(result, self.label)
