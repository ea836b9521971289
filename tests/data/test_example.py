"""Examples: targets of pairs, conversations and tokenized rows."""

from __future__ import annotations

import pytest

from burnish.data.encode import PromptEncoder, TemplateFailure
from burnish.data.example import Example, chat_example, conversation, nested_value, pair_example, tokenized_example
from burnish.data.prompt import Prompt
from burnish.demo.tiny import make_tokenizer
from burnish.errors import UserError

HEADER = "{% if add_generation_prompt %}[assistant]{% endif %}"
CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}" + HEADER
# Drops assistant text before the last message.
FORGETFUL = (
    "{% for m in messages %}[{{ m.role }}]{% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %};{% endfor %}"
    + HEADER
)
TURNS = [
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cd"},
    {"role": "user", "content": "ef"},
    {"role": "assistant", "content": "gh"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("abcdefghijklmnopqrstuvwxyz[];")


def target_text(tokenizer, example: Example) -> str:
    return tokenizer.decode([token for token, mark in zip(example.ids, example.loss_mask, strict=True) if mark])


def test_a_pair_trains_on_the_answer_and_its_end(tokenizer):
    encoder = PromptEncoder(tokenizer, {"chat_template": CHAT})
    example = pair_example(encoder, Prompt([{"role": "user", "content": "ab"}]), "cd")
    assert tokenizer.decode(example.ids[: example.response_start]) == "[user]ab;[assistant]"
    assert target_text(tokenizer, example) == "cd" + tokenizer.eos_token


def test_a_conversation_trains_on_every_answer_and_no_header(tokenizer):
    example = chat_example(PromptEncoder(tokenizer, {"chat_template": CHAT}), TURNS, tolerant=False)
    assert tokenizer.decode(example.ids) == "[user]ab;[assistant]cd;[user]ef;[assistant]gh;"
    assert target_text(tokenizer, example) == "cd;gh;"


def test_a_conversation_may_begin_with_the_assistant_and_end_with_the_user(tokenizer):
    turns = [TURNS[1], TURNS[2]]
    example = chat_example(PromptEncoder(tokenizer, {"chat_template": CHAT}), turns, tolerant=False)
    assert tokenizer.decode(example.ids) == "[assistant]cd;[user]ef;"
    assert target_text(tokenizer, example) == "cd;"


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer):
    with pytest.raises(TemplateFailure, match="differently"):
        chat_example(PromptEncoder(tokenizer, {"chat_template": FORGETFUL}), TURNS, tolerant=True)


def test_segments_that_tokenize_differently_are_refused_unless_tolerated():
    class Merging:
        """Merges `]c` into one token, across the border of an answer."""

        eos_token_id = None
        chat_template = CHAT

        def __call__(self, text, add_special_tokens):
            return {"input_ids": [ord(c) for c in text.replace("]c", "\x01")]}

        def apply_chat_template(self, messages, tokenize, add_generation_prompt, **kwargs):
            end = "[assistant]" if add_generation_prompt else ""
            return "".join(f"[{m['role']}]{m['content']};" for m in messages) + end

    encoder = PromptEncoder(Merging(), {})
    with pytest.raises(TemplateFailure, match="tokenize differently"):
        chat_example(encoder, TURNS, tolerant=False)
    example = chat_example(encoder, TURNS, tolerant=True)
    assert "".join(chr(t) for t, mark in zip(example.ids, example.loss_mask, strict=True) if mark) == "cd;gh;"


def test_padded_rows_of_a_custom_dataset():
    row = {"input_ids": [0, 0, 5, 6, 7, 8], "attention_mask": [0, 0, 1, 1, 1, 1], "loss_mask": [0, 0, 0, 1, 1, 0]}
    assert tokenized_example(row, "row 0") == Example([5, 6, 7, 8], [False, False, True, True])
    assert tokenized_example({"question": "x"}, "row 0") is None
    with pytest.raises(UserError, match="without loss_mask"):
        tokenized_example({"input_ids": [1]}, "row 0")
    with pytest.raises(UserError, match="differ in length"):
        tokenized_example({"input_ids": [1, 2], "loss_mask": [1]}, "row 0")


def test_the_first_token_is_never_trained_on():
    assert Example([1, 2], [True, True]).response_start == 1
    assert Example([1, 2], [False, False]).response_start == 2


def test_truncation_keeps_tokens_and_marks_together():
    example = Example([1, 2, 3, 4], [False, False, True, True])
    assert example.truncated(lambda tokens: tokens[-3:]) == Example([2, 3, 4], [False, True, True])


def test_following_keys_into_a_column():
    assert nested_value({"a": {"b": "x"}}, ["a", "b"], "question", "row 0") == "x"
    with pytest.raises(UserError, match=r"no .c.*keys a"):
        nested_value({"a": 1}, ["c"], "question", "row 0")


def test_a_conversation_without_an_answer_is_refused():
    with pytest.raises(UserError, match="no assistant message"):
        conversation({"messages": TURNS[:1]}, "messages", "row 0")
