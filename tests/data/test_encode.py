import pytest

from burnish.config import names
from burnish.data.encode import TRUNCATIONS, PromptEncoder, TemplateFailure
from burnish.data.prompt import Prompt
from burnish.errors import UserError

CHAT = Prompt([{"role": "user", "content": "hi"}])
STRING = Prompt([{"role": "user", "content": "hi"}], plain_text="hi")


def test_the_template_ends_with_the_header_of_the_answer(tokenizer):
    encoder = PromptEncoder(tokenizer, {})
    assert encoder.text(CHAT) == "<s>user\nhi</s><s>assistant\n"
    assert tokenizer.decode(encoder.ids(CHAT)) == encoder.text(CHAT)
    assert encoder.ids(CHAT)[0] == tokenizer.convert_tokens_to_ids("<s>")


def test_a_string_is_templated_too(tokenizer):
    encoder = PromptEncoder(tokenizer, {})
    assert encoder.ids(STRING) == encoder.ids(CHAT)


def test_template_kwargs_reach_the_template(tokenizer):
    assert PromptEncoder(tokenizer, {"tail": "!"}).text(CHAT) == "<s>user\nhi!</s><s>assistant\n"
    assert PromptEncoder(tokenizer, {"add_generation_prompt": False}).text(CHAT) == "<s>user\nhi</s>"


def test_template_kwargs_that_the_encoder_decides_are_refused(tokenizer):
    with pytest.raises(UserError, match="tokenize cannot be set here"):
        PromptEncoder(tokenizer, {"tokenize": True})


def test_without_a_template_strings_are_tokenized_as_they_are(bare_tokenizer):
    encoder = PromptEncoder(bare_tokenizer, {})
    assert encoder.text(STRING) == "hi"
    assert encoder.ids(STRING) == bare_tokenizer("hi")["input_ids"]


def test_without_a_template_messages_are_an_error_that_helps(bare_tokenizer):
    with pytest.raises(UserError, match=r"no chat template.*Type: data\.apply_chat_template_kwargs\.chat_template="):
        PromptEncoder(bare_tokenizer, {}).ids(CHAT)


def test_a_template_may_come_with_the_config(bare_tokenizer):
    encoder = PromptEncoder(bare_tokenizer, {"chat_template": "{% for m in messages %}[{{ m.content }}]{% endfor %}"})
    assert encoder.text(CHAT) == "[hi]"


def test_a_template_that_raises_is_a_failure_with_its_words(tokenizer):
    with pytest.raises(TemplateFailure, match="no narrators"):
        PromptEncoder(tokenizer, {}).ids(Prompt([{"role": "narrator", "content": "x"}]))


def test_tokens_that_are_given_are_kept(tokenizer):
    encoder = PromptEncoder(tokenizer, {})
    ids = tokenizer("given")["input_ids"]
    assert encoder.ids(Prompt(None, ids=ids)) == ids
    assert encoder.text(Prompt(None, ids=ids)) == "given"


def test_content_ids_have_no_template(tokenizer):
    chat = Prompt([{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}])
    assert tokenizer.decode(PromptEncoder(tokenizer, {}).content_ids(chat)) == "abc"


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [
        ("left", 4, [3, 4, 5, 6]),
        ("right", 4, [0, 1, 2, 3]),
        ("middle", 4, [0, 1, 5, 6]),
        ("middle", 5, [0, 1, 4, 5, 6]),
        ("middle", 1, [6]),
        ("left", 7, [0, 1, 2, 3, 4, 5, 6]),
        ("right", 9, [0, 1, 2, 3, 4, 5, 6]),
        ("middle", 7, [0, 1, 2, 3, 4, 5, 6]),
        ("error", 7, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_truncations(name, limit, expected):
    assert list(TRUNCATIONS[name].load()(range(7), limit, "row 1")) == expected


def test_truncation_error_says_row_length_limit_and_what_to_type():
    with pytest.raises(UserError) as caught:
        TRUNCATIONS["error"].load()(range(7), 6, "a.parquet, row 12")
    text = str(caught.value)
    for part in ("a.parquet, row 12", "7 tokens", "data.max_prompt_length=6", "data.filter_overlong_prompts=true"):
        assert part in text


def test_the_table_has_the_names_of_the_config():
    assert TRUNCATIONS.names() == list(names.TRUNCATIONS)
