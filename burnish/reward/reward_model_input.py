"""Input of a reward model: the policy's tokens, or the conversation rendered with the reward model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from burnish.batch import Batch
from burnish.errors import UserError

KEY = "reward_model.model.input_tokenizer"


class RewardInput(Protocol):
    """Converts prompts and responses to the token ids to score."""

    def ids(self, batch: Batch) -> list[list[int]]:
        """The token ids of each row."""
        ...

    def response_length(self, batch: Batch, row: int) -> int:
        """Number of response tokens in a row."""
        ...

    def media(self, batch: Batch) -> Sequence[Sequence[Any]]:
        """The images of each row, with their places in `ids`."""
        ...


class PolicyTokens:
    """The policy's tokens of prompt and response."""

    def ids(self, batch: Batch) -> list[list[int]]:
        pairs = zip(batch["prompt_ids"].lists(), batch["responses"].lists(), strict=True)
        return [[*prompt, *response] for prompt, response in pairs]

    def response_length(self, batch: Batch, row: int) -> int:
        return int(batch["responses"].lengths[row])

    def media(self, batch: Batch) -> Sequence[Sequence[Any]]:
        return batch["media"]


class RewardModelTemplate:
    """Decodes the response and renders the conversation with the reward model's chat template and tokenizer.

    `decoder` is a tokenizer with the policy's vocabulary, `encoder` the reward model's tokenizer.
    """

    def __init__(self, decoder: Any, encoder: Any) -> None:
        if not getattr(encoder, "chat_template", None):
            raise UserError(
                "the reward model's tokenizer has no chat template",
                key="reward_model.model.path",
                hint=f"{KEY}=null to use the policy's tokens, if both models share a tokenizer",
            )
        self.decoder = decoder
        self.encoder = encoder

    def ids(self, batch: Batch) -> list[list[int]]:
        texts = [self.text(batch, row, ids) for row, ids in enumerate(batch["responses"].lists())]
        return [list(ids) for ids in self.encoder(texts, add_special_tokens=False)["input_ids"]]

    def response_length(self, batch: Batch, row: int) -> int:
        answer = self.answer(batch["responses"][row].tolist())
        return len(self.encoder(answer, add_special_tokens=False)["input_ids"])

    def media(self, batch: Batch) -> Sequence[Sequence[Any]]:
        raise UserError(
            "prompts with images cannot be rendered with the reward model's own template",
            key=KEY,
            hint=f"{KEY}=null to use the policy's tokens",
        )

    def text(self, batch: Batch, row: int, response: list[int]) -> str:
        """The rendered conversation, without a generation prompt."""
        messages = batch["raw_prompt"][row]
        if messages is None:
            raise UserError(
                "the dataset provides prompts as tokens, without messages to render with the reward model's template",
                key=KEY,
                hint=f"{KEY}=null to use the policy's tokens",
            )
        chat = [*messages, {"role": "assistant", "content": self.answer(response)}]
        try:
            return self.encoder.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
        except Exception as error:  # templates are code and may raise anything
            raise UserError(
                f"the reward model's chat template failed on {batch['uid'][row]}: {type(error).__name__}: {error}",
                key="reward_model.model.path",
            ) from error

    def answer(self, response: list[int]) -> str:
        """The response as text, without the policy's EOS."""
        return self.decoder.decode(response, skip_special_tokens=False).replace(self.decoder.eos_token or "\0", "")


def decoder_for(policy: Any, configured: Any) -> tuple[Any, str | None]:
    """The tokenizer that decodes responses, and a notice if it is not the configured one.

    Responses are tokens of the policy, so a tokenizer with another vocabulary would decode them to other text.
    """
    if configured.get_vocab() == policy.get_vocab():
        return configured, None
    return policy, (
        f"{KEY} has a vocabulary other than the policy's: responses are decoded with the policy's tokenizer "
        "and rendered with the reward model's template and tokenizer."
    )
