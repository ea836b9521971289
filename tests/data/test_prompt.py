import pytest
import torch

from burnish.data.prompt import read_prompt, text_of, token_ids
from burnish.errors import UserError


def test_a_string_is_one_user_message():
    prompt = read_prompt({"prompt": "hello"}, "prompt", "here")
    assert prompt.messages == [{"role": "user", "content": "hello"}]
    assert prompt.plain_text == "hello"


def test_fields_that_parquet_fills_in_are_dropped():
    chat = [{"role": "user", "content": "a", "name": None}, {"role": "assistant", "content": None, "tool_calls": [1]}]
    messages = read_prompt({"chat": chat}, "chat", "here").messages
    assert messages == [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [1]}]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "must be a list of messages or a string, not NoneType"),
        (3, "not int"),
        ({"role": "user"}, "not dict"),
        ([], "has no messages"),
        ("  ", "is empty"),
        (["hello"], "message 0 of the prompt must be an object with 'role' and 'content'"),
        ([{"role": "user", "content": "a"}, {"role": "user"}], "message 1"),
        ([{"role": None, "content": "a"}], "message 0"),
    ],
)
def test_bad_prompts_name_the_row(value, problem):
    with pytest.raises(UserError, match=f"train, row 7: .*{problem}"):
        read_prompt({"prompt": value}, "prompt", "train, row 7")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt_ids": [5, 6]},
        {"raw_prompt_ids": torch.tensor([5, 6])},
        {"input_ids": torch.tensor([0, 0, 5, 6]), "attention_mask": torch.tensor([0, 0, 1, 1])},
    ],
)
def test_tokens_that_a_row_brings(row):
    assert token_ids(row) == [5, 6]
    assert read_prompt(row, "prompt", "here").ids == [5, 6]


def test_input_ids_alone_are_not_a_prompt():
    assert token_ids({"input_ids": [1, 2]}) is None


def test_contents_join_the_text_of_all_messages():
    chat = [
        {"role": "system", "content": "A"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image"}, {"type": "text", "text": "c"}]},
    ]
    assert read_prompt({"prompt": chat}, "prompt", "here").contents() == "Abc"
    assert text_of(None) == ""
