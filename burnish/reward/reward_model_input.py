"""What a reward model is fed: the policy's own tokens, or the conversation written anew in the model's own template."""

from __future__ import annotations

from typing import Any, Protocol

from burnish.batch import Batch
from burnish.errors import UserError

KEY = "reward_model.model.input_tokenizer"


class RewardInput(Protocol):
    """From rows with prompts and responses to the tokens that are scored."""

    def ids(self, batch: Batch) -> list[list[int]]:
        """The tokens of each row."""
        ...

    def response_length(self, batch: Batch, row: int) -> int:
        """How many of a row's tokens are the response's."""
        ...


class PolicyTokens:
    """Prompt and response as the policy read and wrote them."""

    def ids(self, batch: Batch) -> list[list[int]]:
        pairs = zip(batch["prompt_ids"].lists(), batch["responses"].lists(), strict=True)
        return [[*prompt, *response] for prompt, response in pairs]

    def response_length(self, batch: Batch, row: int) -> int:
        return int(batch["responses"].lengths[row])


class OwnTemplate:
    """The response as text behind the prompt's messages, in the reward model's own template and tokens.

    `decoder` is a tokenizer that knows the policy's tokens, `encoder` the reward model's own.
    """

    def __init__(self, decoder: Any, encoder: Any) -> None:
        if not getattr(encoder, "chat_template", None):
            raise UserError(
                "the reward model's tokenizer has no chat template to write the conversation in",
                key="reward_model.model.path",
                hint=f"{KEY}=null to feed the policy's tokens, if the two models share a tokenizer",
            )
        self.decoder = decoder
        self.encoder = encoder

    def ids(self, batch: Batch) -> list[list[int]]:
        texts = [self.text(batch, row, ids) for row, ids in enumerate(batch["responses"].lists())]
        return [list(ids) for ids in self.encoder(texts, add_special_tokens=False)["input_ids"]]

    def response_length(self, batch: Batch, row: int) -> int:
        answer = self.answer(batch["responses"][row].tolist())
        return len(self.encoder(answer, add_special_tokens=False)["input_ids"])

    def text(self, batch: Batch, row: int, response: list[int]) -> str:
        """The whole conversation, without the header of an answer to come."""
        messages = batch["raw_prompt"][row]
        if messages is None:
            raise UserError(
                "the dataset gives prompts as tokens, without messages that could be written in another template",
                key=KEY,
                hint=f"{KEY}=null to feed the policy's tokens",
            )
        chat = [*messages, {"role": "assistant", "content": self.answer(response)}]
        try:
            return self.encoder.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
        except Exception as error:  # a template is a program of the model's author: it may raise anything
            raise UserError(
                f"the reward model's chat template failed on {batch['uid'][row]}: {type(error).__name__}: {error}",
                key="reward_model.model.path",
            ) from error

    def answer(self, response: list[int]) -> str:
        """The response as text, less the policy's mark of the end."""
        return self.decoder.decode(response, skip_special_tokens=False).replace(self.decoder.eos_token or "\0", "")


def decoder_for(policy: Any, named: Any) -> tuple[Any, str | None]:
    """The tokenizer that decodes responses, and a notice where it is not the one that was named.

    Responses are the policy's tokens, so a tokenizer that numbers its tokens otherwise would make other text of them.
    """
    if named.get_vocab() == policy.get_vocab():
        return named, None
    return policy, (
        f"{KEY} has another vocabulary than the policy: responses are decoded by the policy's own tokenizer, "
        "and written in the reward model's template and tokens."
    )
