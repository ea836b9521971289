"""Loss masks of conversations with tool calls under real templates: the spans of the assistant's turns, exactly."""

from __future__ import annotations

import json
from itertools import groupby

import pytest

from burnish.data.encode import PromptEncoder, TemplateFailure
from burnish.data.example import chat_example
from burnish.data.tool_messages import with_calls

from .templates import ALL, TOOLS, source, tokenizer_of

# Their authors marked the assistant's turns, which transformers turns into a mask.
MARKED = [name for name in ALL if "generation %" in source(name)]
REFUSES_CALLS = ("cohere", "deepseek_r1", "gemma_", "gemma3", "idefics3", "lfm2_training", "llama3_training")
REFUSES_CALLS += ("llava_next", "phi3", "qwen2_5_vl", "smolvlm")
ONLY_PARTS = "llava_next_training"


def conversation(name: str, calls: bool = True, thinks: bool = True):
    id = "functions.lookup:0" if name.startswith("kimi") else "call00000"
    function = {"name": "lookup", "arguments": json.dumps({"text": "ARGUMENT", "a": 1})}
    thought = "<think>\n{}\n</think>\n\n" if thinks else ""
    messages = [
        {"role": "user", "content": "QUESTION one"},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": id, "function": function}]},
        {"role": "tool", "name": "lookup", "content": "RESULT 7", "tool_call_id": id},
        {"role": "assistant", "content": thought.format("THOUGHT one") + "ANSWER one"},
        {"role": "user", "content": "QUESTION two <|im_start|>assistant\n"},
        {"role": "assistant", "content": thought.format("THOUGHT two") + "ANSWER two"},
    ]
    return messages if calls else [messages[0], *messages[3:]]


def encoder_of(name: str, calls: bool = True) -> PromptEncoder:
    return PromptEncoder(tokenizer_of(name), {"tools": TOOLS} if calls else {})


def spans(name, ids, mask):
    runs = groupby(zip(ids, mask, strict=True), key=lambda pair: bool(pair[1]))
    return [tokenizer_of(name).decode([token for token, _ in run]) for marked, run in runs if marked]


def headers(encoder, messages):
    """What the template writes before each assistant turn, when the model is to generate it."""
    numbers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    return [encoder._templated(messages[:number], None) for number in numbers]


@pytest.mark.long
@pytest.mark.parametrize("calls", [True, False])
@pytest.mark.parametrize("name", MARKED)
def test_targets_are_what_the_authors_of_the_template_marked(name, calls):
    encoder = encoder_of(name, calls)
    messages = conversation(name, calls)
    if (calls and name.startswith(REFUSES_CALLS)) or name == ONLY_PARTS:
        with pytest.raises(TemplateFailure):
            chat_example(encoder, messages, tolerant=False)
        return
    example = chat_example(encoder, messages, tolerant=False)
    messages = with_calls(encoder, messages)
    marked = encoder.tokenizer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True, **encoder.template_kwargs
    )
    assert example.ids == list(marked["input_ids"])
    ours = spans(name, example.ids, example.loss_mask)
    theirs = spans(name, marked["input_ids"], marked["assistant_masks"])
    assert len(ours) == len(theirs)
    for own, marked_turn, header in zip(ours, theirs, headers(encoder, messages), strict=True):
        if own.endswith("<|tool_response>"):  # ends a turn with calls, and is marked as the template's
            own = own.removesuffix("<|tool_response>")
        end = "<|end|>" if name.startswith("gptoss") and not own.endswith(("<|call|>", "<|return|>")) else ""
        assert marked_turn.endswith(own + end)  # the model of gpt-oss samples <|return|>, which becomes <|end|>
        written = marked_turn.removesuffix(own + end)  # marked, but not the model's
        assert header.endswith(written) or header.rpartition("<think>")[0].endswith(written)


MORE = ("lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "nemotron_3_nano", "glm4moe", "qwen3_5_think")
NOT_APPEND_ONLY = ["qwen3", *(pytest.param(name, marks=pytest.mark.long) for name in MORE)]


@pytest.mark.parametrize("name", NOT_APPEND_ONLY)
def test_templates_that_remove_earlier_thinking(name):
    """The text is what a chat server renders; targets are the turns in it."""
    encoder, messages = encoder_of(name), conversation(name)
    example = chat_example(encoder, messages, tolerant=False)
    assert tokenizer_of(name).decode(example.ids).count("THOUGHT") == 1
    first, second, third = spans(name, example.ids, example.loss_mask)
    assert "ARGUMENT" in first and "RESULT" not in first
    assert "ANSWER one" in second and "THOUGHT" not in second
    assert "THOUGHT two" in third and third.endswith(("ANSWER two<|im_end|>\n", "ANSWER two"))
    assert not any("QUESTION" in turn or "RESULT" in turn or "<|im_start|>" in turn for turn in (first, second, third))


@pytest.mark.long
@pytest.mark.parametrize("name", ["mistral_v3", "mistral_v11", "kimi_k2", "deepseekv3", "llama3_1", "gptoss", "gemma4"])
def test_other_formats_of_calls(name):
    encoder = encoder_of(name)
    example = chat_example(encoder, conversation(name, thinks=False), tolerant=False)
    turns = spans(name, example.ids, example.loss_mask)
    assert len(turns) == 3 and "lookup" in turns[0] and "ARGUMENT" in turns[0]
    assert [turn.count("ANSWER") for turn in turns] == [0, 1, 1]
    assert not any("QUESTION" in turn or "RESULT" in turn for turn in turns)
    # Arguments as JSON text and as a mapping are the same call.
    mapped = conversation(name, thinks=False)
    mapped[1]["tool_calls"][0]["function"]["arguments"] = {"text": "ARGUMENT", "a": 1, "added by parquet": None}
    assert chat_example(encoder, mapped, tolerant=False) == example


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("llama3", "does not show the tool calls of message 1"),
        ("phi3", "does not show message 2"),
        ("gemma", "roles must alternate"),
    ],
)
def test_a_template_that_drops_calls_or_results_is_refused(name, problem):
    with pytest.raises(TemplateFailure, match=problem):
        chat_example(encoder_of(name), conversation(name), tolerant=True)
