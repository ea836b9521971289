"""Histories: what the next turn of a conversation is sampled after, and the rows that are trained on.

`append` adds tokens to the ones that were sampled. `faithful` renders the conversation anew for every turn, as a chat
server would: where the template has changed an earlier turn, for instance removed its thinking, a new row starts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.registry import Registry
from burnish.rollout.chat.forms import Message
from burnish.rollout.chat.pictures import pictures_of
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.chat.tool_calls import ParsedTurn
from burnish.rollout.conversation import Observer, TrajectoryBuilder
from burnish.rollout.engine import Completion, FinishReason
from burnish.rollout.trajectory import Trajectory

KEY = "actor_rollout_ref.rollout.multi_turn.history"
HISTORIES = Registry("history", key=KEY)

Budget = Callable[[ModelInput], int]  # tokens that the conversation may still have after an input


@HISTORIES.register("append")
class AppendHistory:
    """One row: what was sampled is never rendered again."""

    notice = "later turns see earlier ones as they were sampled (faithful: as the template renders them)"

    def __init__(self, template: ChatTemplate, prompt: ModelInput, messages: Sequence[Message] | None) -> None:
        self.template = template
        self.messages = None if messages is None else list(messages)  # None: the data has tokens only
        self.rows = [TrajectoryBuilder(prompt)]
        self.parsed = ParsedTurn("")  # the newest turn
        self.ended: int | None = None  # the EOS token that the model sampled at its end
        self.pictures = originals(prompt)  # the images and the videos so far

    def copy(self) -> Self:
        """The same conversation, to continue otherwise."""
        other = copy.copy(self)
        other.messages = None if self.messages is None else list(self.messages)
        other.rows = [row.copy() for row in self.rows]
        return other

    @property
    def input(self) -> ModelInput:
        """What the next turn is sampled after."""
        return self.rows[-1].input

    @property
    def num_sampled_turns(self) -> int:
        return sum(row.num_sampled_turns for row in self.rows)

    def add_turn(self, completion: Completion, text: str, parsed: ParsedTurn) -> None:
        """A turn of the policy: its tokens, its text without the token that ended it, and what the text says."""
        opened = self.template.opened_thinking
        if opened and not self.template.decode(self.input.ids[-len(opened) :]).endswith(opened):
            opened = ""  # some templates open it after a user's message only
        calls = [call.message() for call in parsed.calls]
        self.rows[-1].add_sampled(completion, calls)
        self.parsed, self.ended = parsed, end_token(completion, self.template.eos_ids)
        if self.messages is not None:
            self.messages.append({"role": "assistant", "content": f"{opened}{text}", "parsed": parsed})

    def add_messages(
        self, messages: Sequence[Message], role: Observer, budget: Budget, *, latency: float = 0.0
    ) -> bool:
        """Messages after the newest turn. False: they would leave no room for an answer, and were not added."""
        messages, calls = self.template.escape(messages), [call.message() for call in self.parsed.calls]
        added = self.template.continuation(messages, calls, ended=self.ended, offset=len(self.input))
        if budget(self.input.extend(added.ids, added.media)) <= 0:
            return False
        self.rows[-1].add_observation(added.ids, role, latency=latency, media=added.media)
        self.pictures = self._with(messages)
        if self.messages is not None:
            self.messages += messages
        return True

    def _with(self, messages: Sequence[Message]) -> tuple[list[Any], list[Any]]:
        """The pictures so far, and those of messages."""
        images, videos = pictures_of(messages)
        return [*self.pictures[0], *images], [*self.pictures[1], *videos]

    def add_reward(self, reward: float) -> None:
        """A reward for the newest turn that was sampled."""
        next(row for row in reversed(self.rows) if row.num_sampled_turns).add_reward(reward)

    def trajectories(
        self, finish_reason: FinishReason, info: dict[str, Any] | None = None, **fields: Any
    ) -> list[Trajectory]:
        """The rows, in order. `info` and further fields are those of the last; the others ended with a full turn."""
        rows = [row for row in self.rows if row.num_sampled_turns] or self.rows
        return [*(row.build("stop") for row in rows[:-1]), rows[-1].build(finish_reason, info, **fields)]


@HISTORIES.register("faithful")
class FaithfulHistory(AppendHistory):
    """A row for each stretch of turns that the template leaves as they were sampled."""

    notice = "a turn whose context the template changes starts a new row of training data (append: one row)"

    def __init__(self, template: ChatTemplate, prompt: ModelInput, messages: Sequence[Message] | None) -> None:
        super().__init__(template, prompt, messages)
        if messages is None:
            raise UserError(
                "needs prompts that are messages; these are tokens", key=KEY, value="faithful", hint=f"{KEY}=append"
            )

    def add_messages(
        self, messages: Sequence[Message], role: Observer, budget: Budget, *, latency: float = 0.0
    ) -> bool:
        assert self.messages is not None
        messages = self.template.escape(messages)
        text = self.template.conversation([*self.messages, *messages])
        added = self._extension(text, messages)
        context = self.template.input_with(text, *self._with(messages)) if added is None else None
        extended = context if added is None else self.input.extend(added.ids, added.media)
        assert extended is not None
        if budget(extended) <= 0:
            return False
        if added is None:
            self.rows.append(TrajectoryBuilder(extended))
        else:
            self.rows[-1].add_observation(added.ids, role, latency=latency, media=added.media)
        self.messages += messages
        self.pictures = self._with(messages)
        return True

    def _extension(self, text: str, messages: Sequence[Message]) -> ModelInput | None:
        """Tokens that continue the newest row to this text; None where the text begins otherwise.

        The text is compared, not its tokens: the model may have sampled other tokens for it than the tokenizer has.
        """
        row, text = self.template.decode(self.input.ids), self.template.expanded(text, *self.pictures)
        if not text.startswith(row):
            return None
        return self.template.input(text[len(row) :], messages, after=self.ended, offset=len(self.input))


def originals(input: ModelInput) -> tuple[list[Any], list[Any]]:
    """The images and the videos of an input as they were before they were processed."""
    sources = [media for media in input.media if media.source is not None]
    images = [media.source for media in sources if media.kind == "image"]
    return images, [media.source for media in sources if media.kind == "video"]


def end_token(completion: Completion, eos_ids: Any) -> int | None:
    """The EOS or stop token that ended a turn."""
    last = completion.ids[-1] if completion.ids else None
    return last if completion.finish_reason == "stop" and last in eos_ids else None
