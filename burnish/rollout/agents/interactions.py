"""Interactions: simulated users that reply to the model, in verl's protocol."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.errors import UserError
from burnish.rollout.agents.failure import EpisodeFailed, failed
from burnish.rollout.agents.user_files import accepted, load_class, read_entries
from burnish.rollout.chat.template import Message
from burnish.rollout.episode import Sampler
from burnish.rollout.tools.execution import call_async
from burnish.rollout.tools.tool import ConversationInfo

logger = logging.getLogger("burnish.rollout")

EXAMPLE = "interaction: [{name: gsm8k, class_name: my_users.Gsm8kInteraction, config: {}}]"
TIMEOUT = 300.0  # seconds per call, if an interaction's config has no `timeout`
LEGACY_NAME = "gsm8k"  # of rows whose interaction_kwargs have no name, in verl 0.4


@dataclass(frozen=True)
class Reply:
    """What a simulated user answered to a turn."""

    done: bool
    text: str
    score: float
    metrics: dict[str, float]


class Interaction:
    """One entry of the file: an instance of the user's class, shared by all conversations."""

    def __init__(self, name: str, user: Any, timeout: float = TIMEOUT) -> None:
        self.name = name
        self.user = user
        self.timeout = timeout
        self.scores_at_end = _is_defined(user, "calculate_score")
        self.scored: set[Any] = set()  # conversations whose generate_response called calculate_score itself
        if self.scores_at_end:
            self._watch_scores()

    def _watch_scores(self) -> None:
        """In verl's documentation generate_response returns calculate_score as the turn's score: count it once."""
        calculate = self.user.calculate_score

        @functools.wraps(calculate)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.scored.add(args[0] if args else kwargs.get("instance_id"))
            return calculate(*args, **kwargs)

        self.user.calculate_score = watched


class Interactions:
    """The interactions of a run by name."""

    def __init__(self, interactions: Sequence[Interaction]) -> None:
        self.by_name = {interaction.name: interaction for interaction in interactions}

    def session(self, conversation: ConversationInfo) -> InteractionSession | None:
        """That of a row, by extra_info.interaction_kwargs; None for a row without."""
        kwargs = interaction_kwargs(conversation.row)
        if not kwargs:
            return None
        name = kwargs.get("name") or (LEGACY_NAME if len(self.by_name) > 1 else next(iter(self.by_name)))
        if name not in self.by_name:
            raise UserError(
                f"conversation {conversation.id} names an unknown interaction",
                key="extra_info.interaction_kwargs.name",
                value=name,
                allowed=list(self.by_name),
            )
        return InteractionSession(self.by_name[name], conversation.id, {**kwargs, "name": name})


def interaction_kwargs(row: Mapping[str, Any]) -> dict[str, Any]:
    """extra_info.interaction_kwargs without the nulls that files of many rows fill in."""
    kwargs = (row.get("extra_info") or {}).get("interaction_kwargs") or {}
    return {name: value for name, value in kwargs.items() if value is not None}


class InteractionSession:
    """An interaction in one conversation: start once, reply to turns, score once, finalize always."""

    def __init__(self, interaction: Interaction, id: str, kwargs: Mapping[str, Any]) -> None:
        self.interaction = interaction
        self.id = id
        self.kwargs = kwargs
        self.turn_scores: list[float] = []
        self.metrics: dict[str, float] = {}
        self._started = False
        self._skipped: list[list[Message]] = []  # turns answered from the journal, which the user has not seen

    async def start(self) -> None:
        self._started = True
        self.id = await self._call("start_interaction", self.id, **self.kwargs) or self.id

    async def reply(self, messages: Sequence[Message], sampler: Sampler) -> Reply:
        """The answer to the conversation so far; its score belongs to the model's newest turn."""
        copies, acted = [dict(message) for message in messages], False

        async def act() -> dict[str, Any]:
            nonlocal acted
            acted = True
            for earlier in self._skipped:  # bring the user to where the killed run was
                await self._call("generate_response", self.id, earlier, **self.kwargs)
            self._skipped.clear()
            return vars(self._reply_of(await self._call("generate_response", self.id, copies, **self.kwargs)))

        reply = Reply(**await sampler.observe(act, name=self._what("generate_response")))
        if not acted:
            self._skipped.append(copies)
        self.turn_scores.append(reply.score)
        for name, value in reply.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value
        return reply

    async def finish(self) -> float:
        """The score of the whole conversation, where generate_response does not compute it for every turn."""
        if not self.interaction.scores_at_end or self.id in self.interaction.scored:
            return 0.0
        return _number(await self._call("calculate_score", self.id, **self.kwargs), self._what("calculate_score"))

    async def close(self) -> None:
        """Finalize; a failure is logged, because the conversation is complete without it."""
        if not self._started:
            return
        self._started = False
        self.interaction.scored.discard(self.id)
        if not hasattr(self.interaction.user, "finalize_interaction"):
            return
        try:
            await self._call("finalize_interaction", self.id, **self.kwargs)
        except EpisodeFailed as failure:
            logger.warning("%s", failure)

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(self.interaction.user, method)
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError:  # verl's base class has calculate_score(self) and finalize_interaction(self)
            kwargs = accepted(function, kwargs)
            args = args if _takes(function, len(args)) else ()
        try:
            async with asyncio.timeout(self.interaction.timeout):
                return await call_async(function, *args, **kwargs)
        except TimeoutError:
            raise EpisodeFailed(f"{self._what(method)} took longer than {self.interaction.timeout:g} s") from None
        except Exception as error:  # an interaction is the user's program and may raise anything
            raise failed(self._what(method), error) from error

    def _reply_of(self, value: Any) -> Reply:
        what = self._what("generate_response")
        if not isinstance(value, tuple | list) or len(value) not in (3, 4):
            raise EpisodeFailed(f"{what} must return (terminate, text, score, extra), not {type(value).__name__}")
        done, text, score, extra = [*value, {}][:4]
        numbers = extra.items() if isinstance(extra, Mapping) else ()
        metrics = {str(name): float(number) for name, number in numbers if isinstance(number, int | float)}
        return Reply(bool(done), "" if text is None else str(text), _number(score, what), metrics)

    def _what(self, method: str) -> str:
        return f"interaction {self.interaction.name!r}: {method}"


def load_interactions(path: str, key: str) -> Interactions:
    """The interactions of a YAML file: `interaction: [{name?, class_name, config?}]`."""
    interactions: dict[str, Interaction] = {}
    for number, entry in enumerate(read_entries(path, "interaction", key=key, example=EXAMPLE)):
        where = f"{path}: interaction {number}"
        if "class_name" not in entry:
            raise UserError(f"{where} has no class_name", key=key, allowed=EXAMPLE)
        cls = load_class(entry["class_name"], key=key, where=where)
        name = str(entry.get("name") or default_name(cls.__name__))
        if name in interactions:
            raise UserError(f"{where}: the name is used twice; names must differ", key=key, value=name)
        config = {**(entry.get("config") or {}), "name": name}
        try:
            timeout = float(config.get("timeout") or TIMEOUT)
            interactions[name] = Interaction(name, cls(config=config), timeout)
        except UserError:
            raise
        except Exception as error:
            problem = f"{where}: {entry['class_name']} cannot be created: {type(error).__name__}: {error}"
            raise UserError(problem, key=key) from error
    return Interactions(list(interactions.values()))


def default_name(class_name: str) -> str:
    """Gsm8kInteraction -> gsm8k."""
    return class_name.lower().removesuffix("interaction") or class_name.lower()


def _is_defined(user: Any, method: str) -> bool:
    """Whether the class has the method, other than from verl's base class."""
    if not hasattr(user, method):
        return False
    base = getattr(importlib.import_module("verl.interactions.base").BaseInteraction, method, None)
    return getattr(type(user), method, None) is not base


def _takes(function: Any, count: int) -> bool:
    """Whether the function takes that many positional arguments."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in positional for kind in kinds) >= count


def _number(value: Any, what: str) -> float:
    try:
        number = float(value.item() if hasattr(value, "item") else value or 0.0)
    except (TypeError, ValueError) as error:
        raise EpisodeFailed(f"{what} returned {value!r} instead of a number as score") from error
    if not math.isfinite(number):
        raise EpisodeFailed(f"{what} returned the score {number}")
    return number
