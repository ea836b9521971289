"""Other ways to call a reward function: by position (prime), with a whole batch (batch), as OpenRLHF does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import UserError
from burnish.reward.call import ARGUMENTS, Caller, parameters_of, read_result
from burnish.reward.protocol import read_answer
from burnish.reward.sample import INVALID, Outcome

PLURALS = {name: f"{name}s" for name in ARGUMENTS}


class PositionalCaller(Caller):
    """The four arguments by position, or the first ones if the function takes fewer; reward_kwargs by name."""

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        return self.function(*(arguments[name] for name in self.names), **self.kwargs)

    def _accepted(self) -> list[str]:
        if not callable(self.function):
            return super()._accepted()
        parameters = parameters_of(self.function)
        if parameters is None:
            return list(ARGUMENTS)
        kinds = [p.kind for p in parameters.values()]
        by_name = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            self._refuse_unknown_kwargs(by_name)
        positional = [
            name
            for name, p in parameters.items()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and name not in self.kwargs
        ]
        taken = len(ARGUMENTS) if any(kind.name == "VAR_POSITIONAL" for kind in kinds) else len(positional)
        missing = [name for name in positional[len(ARGUMENTS) :] if parameters[name].default is parameters[name].empty]
        if missing:
            raise UserError(
                f"{self.label} takes {len(positional)} arguments by position, but there are {len(ARGUMENTS)}",
                key=self.key,
                allowed=f"{', '.join(ARGUMENTS)} (by position) and whatever reward_kwargs adds",
                hint=f"custom_reward_function.reward_kwargs.{missing[0]}=... if it is a setting of the function",
            )
        return list(ARGUMENTS)[:taken]


class BatchCaller(Caller):
    """One call for many samples: data_sources, solution_strs, ground_truths, extra_infos; one result for each."""

    offers = tuple(PLURALS.values())

    def read(self, result: Any, count: int) -> Outcome:
        if hasattr(result, "tolist"):  # an array or tensor of scores
            result = result.tolist()
        if not isinstance(result, Sequence) or isinstance(result, str | bytes):
            text = f"returned {type(result).__name__} instead of a list of {count} scores in {self.label}"
            return Outcome(kind=INVALID, text=text)
        if len(result) != count:
            return Outcome(kind=INVALID, text=f"returned {len(result)} scores for {count} responses in {self.label}")
        return Outcome(extras={"outcomes": [list(read_result(one, self.label)) for one in result]})


class QueryCaller(Caller):
    """OpenRLHF's reward_func(queries, prompts, labels, ...): lists of one entry each."""

    offers = ("queries", "prompts", "labels")

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        texts = {
            "queries": [arguments["query"]],
            "prompts": [arguments["prompt"]],
            "labels": [arguments["ground_truth"]],
        }
        return self.function(**({name: texts[name] for name in self.names} | self.kwargs))

    def read(self, result: Any, count: int) -> Outcome:
        return read_answer(result, self.label)
