"""Formats of tool calls: what a real template writes is read back; content, parallel calls, types, hostile texts."""

from __future__ import annotations

import json
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.rollout.chat.tool_calls import MAX_CALLS, MAX_NESTING, TOOL_PARSERS, ParsedTurn, ToolCall

from .templates import ALL, TOOLS, format_of, parser_of
from .turns import call, rendered_calls

# Templates that show calls in a format that a parser reads, one of each text.
TEMPLATES = (
    *("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"),
    *("qwen3_5_think", "qwen3_6", "qwen3_8", "nemotron_3_nano", "nemotron_3_ultra"),
    *("gptoss", "llama3_1", "llama3_2", "glm4moe", "deepseekv3", "gemma4", "gemma4_v2", "gemma4_v5", "diffusion_gemma"),
    *("lfm2_v2", "lfm2_2_5", "mistral_v3", "mistral_v11", "kimi_k2"),
)
FORMATS = sorted({str(TOOL_PARSERS[name].value): name for name in TOOL_PARSERS.names()}.values())
ONE_CALL = ("llama3_json", "gpt-oss")  # models of these formats make one call per turn
# Characters that a format uses for its own tags, and that templates do not escape.
TAGS = {"qwen3_coder": "<>", "glm": "<>", "gemma4": "<>|", "lfm2": "'\"\\", "gpt-oss": "<|>", "deepseek_v3": "`"}

text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(2**60), 2**60),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "text": text,
        "flag": st.booleans(),
        "items": st.lists(values, max_size=3),
        "data": st.dictionaries(text, values, max_size=3),
    },
)


def parse(name, text):
    return TOOL_PARSERS[name].load()(TOOLS).parse(text)


def without(characters, value):
    """The value without some characters in any of its texts."""
    if isinstance(value, str):
        return "".join(character for character in value if character not in characters)
    if isinstance(value, list):
        return [without(characters, entry) for entry in value]
    if isinstance(value, dict):
        return {without(characters, key): without(characters, entry) for key, entry in value.items()}
    return value


def writable(name, value):
    """Arguments that a template writes so that they can be read back."""
    value = without(TAGS.get(format_of(name), ""), value)
    if format_of(name) in ("lfm2", "gemma4"):  # nested values have notations of Jinja, and numbers those of Python
        value.pop("data", None)
        value["items"] = [entry for entry in value.get("items", []) if isinstance(entry, str | int)]
        value["ratio"] = round(value.get("ratio", 0.5), 3) if abs(value.get("ratio", 0.5)) < 1e6 else 1.5
    return value


def test_every_template_with_calls_is_tested():
    shown = {name for name in ALL if not name.endswith("_training") and rendered_calls(name, [call(name, a=1)])}
    assert {name for name in shown if not name.startswith(("gemma4_v", "nemotron", "lfm2_2_5", "qwen3_5"))} <= set(
        TEMPLATES
    )
    assert {format_of(name) for name in TEMPLATES} == {
        *(
            "hermes",
            "qwen3_coder",
            "gpt-oss",
            "llama3_json",
            "glm",
            "deepseek_v3",
            "gemma4",
            "lfm2",
            "mistral",
            "kimi_k2",
        )
    }


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=25, deadline=None)
@given(arguments=arguments)
def test_what_a_template_writes_is_read_back(name, arguments):
    expected = call(name, **writable(name, arguments))
    turn = rendered_calls(name, [expected])
    assert turn is not None
    (found,) = parser_of(name).parse(turn[0]).calls
    assert (found.name, found.problem) == ("lookup", None)
    assert found.arguments == expected.arguments
    assert found.id in ("", expected.id)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if format_of(name) not in ONE_CALL])
def test_parallel_calls(name):
    expected = [call(name, number, a=number, text=f"t{number}") for number in range(3)]
    parsed = parser_of(name).parse(rendered_calls(name, expected)[0])
    assert [found.arguments for found in parsed.calls] == [{"a": n, "text": f"t{n}"} for n in range(3)]
    assert "lookup" not in parsed.content


CALLS = {
    "hermes": '<tool_call>\n{"name": "lookup", "arguments": {"a": 1}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=lookup>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>lookup\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.lookup:0<|tool_call_argument_begin|>"
    '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>lookup\n```json\n"
    '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>lookup<｜tool▁sep｜>"
    '{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "gemma4": "<|tool_call>call:lookup{a:1}<tool_call|>",
    "mistral": '[TOOL_CALLS] [{"name": "lookup", "arguments": {"a": 1}}]',
    "pythonic": "[lookup(a=1)]",
    "llama4_pythonic": "<|python_start|>[lookup(a=1)]<|python_end|>",
    "lfm2": "<|tool_call_start|>[lookup(a=1)]<|tool_call_end|>",
    "gpt-oss": '<|channel|>commentary to=functions.lookup <|constrain|>json<|message|>{"a": 1}',
    "llama3_json": '{"name": "lookup", "parameters": {"a": 1}}',
}
SURROUNDED = (
    "hermes",
    "qwen3_coder",
    "glm",
    "kimi",
    "deepseek_v3",
    "deepseek_v31",
    "gemma4",
    "llama4_pythonic",
    "lfm2",
)


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name):
    (found,) = parse(name, CALLS[name]).calls
    assert (found.name, found.arguments, found.problem) == ("lookup", {"a": 1}, None)
    assert found.id == ("functions.lookup:0" if name == "kimi" else "")


@pytest.mark.parametrize("name", SURROUNDED)
def test_content_around_calls(name):
    assert parse(name, f" before {CALLS[name]} after ") == ParsedTurn(
        "before  after", [ToolCall("lookup", {"a": 1}, id="functions.lookup:0" if name == "kimi" else "")]
    )


@pytest.mark.parametrize("name", TOOL_PARSERS.names())
def test_a_text_without_calls(name):
    assert parse(name, " The answer is {4} [5] `6`. ") == ParsedTurn("The answer is {4} [5] `6`.")


def test_content_before_mistral_calls():
    parsed = parse("mistral", 'first [TOOL_CALLS]lookup[ARGS]{"a": 1}[TOOL_CALLS]lookup{"a": 2}')
    assert parsed == ParsedTurn("first", [ToolCall("lookup", {"a": 1}), ToolCall("lookup", {"a": 2})])
    (found,) = parse("mistral", "[TOOL_CALLS]lookup[CALL_ID]abc123XYZ[ARGS]{}").calls
    assert found.id == "abc123XYZ"
    (found,) = parse("mistral", '[TOOL_CALLS] [{"name": "lookup", "arguments": {}, "id": "too short"}]').calls
    assert found.id == ""  # templates refuse it


def test_channels_of_gpt_oss():
    """A call that is only thought about is none."""
    inner = '<|channel|>commentary to=functions.lookup<|message|>{"a": 2}<|call|>'
    text = (
        f"<|channel|>analysis<|message|>I could write to=functions.lookup<|end|><|start|>assistant{inner[:-8]}<|end|>"
    )
    parsed = parse("gpt-oss", text + "<|start|>assistant<|channel|>final<|message|>Done.")
    assert parsed.thinking == "I could write to=functions.lookup"
    assert parsed.content == "Done." and [found.arguments for found in parsed.calls] == [{"a": 2}]
    header = '<|channel|>analysis to=functions.lookup<|message|>{"a": 1}'
    assert parse("gpt-oss", header).calls == []
    other = parse("gpt-oss", ' to=functions.lookup<|channel|>commentary json<|message|>{"a": 3}')
    assert other.calls == [ToolCall("lookup", {"a": 3})]


def test_llama_calls():
    two = '<|python_tag|>{"name": "lookup", "parameters": {"a": 1}}; {"name": "lookup", "parameters": {"a": 2}}'
    assert [found.arguments for found in parse("llama3_json", two).calls] == [{"a": 1}, {"a": 2}]
    answer = '{"name": "Ada", "born": 1815}'  # JSON that is an answer
    assert parse("llama3_json", answer) == ParsedTurn(answer)


def test_thinking_of_gemma():
    parsed = parse("gemma4", f"<|channel>thought\n<|tool_call>call:no{{}}<tool_call|>\n<channel|>{CALLS['gemma4']}")
    assert parsed.thinking.startswith("<|tool_call>") and parsed.calls == [ToolCall("lookup", {"a": 1})]


@pytest.mark.parametrize("text", ["```tool_code\nlookup(a=1)\n```", "[ lookup ( a = 1 , ) ]"])
def test_spellings_of_pythonic_calls(text):
    assert parse("pythonic", text).calls == [ToolCall("lookup", {"a": 1})]


def test_python_literals():
    text = r"""[m.f(a='it\'s', b="\x41\u00e9\n", c=[1, -2.5, (True,)], d={'k': None}, e=1e3), g()]"""
    first, second = parse("pythonic", text).calls
    assert first == ToolCall("m.f", {"a": "it's", "b": "Aé\n", "c": [1, -2.5, [True]], "d": {"k": None}, "e": 1000.0})
    assert second == ToolCall("g")


def test_values_have_the_types_of_the_schema():
    def value(name, text):
        call = f"<tool_call><function=lookup><parameter={name}>{text}</parameter></function></tool_call>"
        return parse("qwen3_coder", call).calls[0].arguments[name]

    assert value("text", "12") == "12" and value("a", "12") == 12 and value("ratio", "1.50") == 1.5
    assert value("flag", "True") is True and value("flag", "false") is False
    assert value("items", '["x"]') == ["x"] and value("data", '{"k": null}') == {"k": None}
    assert value("a", "twelve") == "twelve"  # whoever checks the arguments says what is wrong
    assert value("unknown", "12") == "12"
    assert value("text", "\n two\nlines \n") == " two\nlines "


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', "a key appears twice"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": Infinity}}</tool_call>', "Infinity is not valid JSON"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "1e999 is too large"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "half of a surrogate pair"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\x01"}}</tool_call>', "Invalid control character"),
        ("hermes", '<tool_call>{"name": "f"} {"name": "g"}</tool_call>', "unexpected text before </tool_call>"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', 'a call needs a "name"'),
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {"9" * 5000}}}</tool_call>', "not valid JSON"),
        ("qwen3_coder", "<tool_call>lookup</tool_call>", "expected <function=NAME>"),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>1</tool_call>", "expected <parameter=KEY>value"),
        ("glm", "<tool_call></tool_call>", "expected the tool's name"),
        ("glm", "<tool_call>f<arg_key>a</arg_key></tool_call>", "expected <arg_value>"),
        ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_end|>", "expected functions.NAME:INDEX"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁call▁end｜>", "expected the tool's name"),
        ("gemma4", "<|tool_call>f()<tool_call|>", "expected call:NAME"),
        ("gemma4", '<|tool_call>call:f{a:<|"|>x}<tool_call|>', "a string is not closed"),
        ("mistral", "[TOOL_CALLS] (f)", "expected a JSON list or NAME[ARGS]"),
        ("pythonic", "[f(a=__import__('os').system('id'))]", "expected a value at \"__import__('os').sys\""),
        ("pythonic", "[f(a=1)] and more", "unexpected text after the calls"),
        ("llama3_json", '{"name": "f", "parameters": {', "not valid JSON"),
        ("gpt-oss", "<|channel|>commentary to=functions.f<|message|>{", "not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_call(name, text, problem):
    (found,) = parse(name, text).calls
    assert found.problem is not None and problem in found.problem


LONG = 100_000
HOSTILE = {
    "unterminated": lambda call: call[: len(call) - len(call) // 3],
    "doubled": lambda call: call[: len(call) // 2] * 2 + call,
    "many": lambda call: call * (2 * MAX_CALLS),
    "many opened": lambda call: call[: len(call) // 2] * (LONG // len(call)),
    "many closed": lambda call: call[len(call) // 2 :] * (LONG // len(call)),
    "long": lambda call: call.replace("1", '"' + "x" * 10 * LONG + '"'),
    "escaped": lambda call: call.replace("1", '"' + '\\"' * LONG + '"'),
    "open quote": lambda call: call.replace("1", '"' + "\\\\" * LONG),
    "deep": lambda call: call.replace("1", "[" * LONG + "]" * LONG),
    "deep mapping": lambda call: call.replace("1", '{"a":' * LONG + "1" + "}" * LONG),
    "open brackets": lambda call: call.replace("1", "{" * LONG),
    "digits": lambda call: call.replace("1", "1" * LONG),
    "space": lambda call: call.replace("1", " " * LONG + "1" + " " * LONG),
    "tags": lambda call: (
        "".join(part for part in ("<tool_call>", "<function=", "<arg_key>", "<|channel>")) * (LONG // 40)
    ),
    "names": lambda call: call.replace("lookup", "x" * LONG),
    "control": lambda call: call.replace("1", "".join(map(chr, range(32)))) + "\x00\ud800\uffff",
    "nan": lambda call: call.replace("1", "NaN"),
}


@pytest.mark.parametrize("attack", HOSTILE)
@pytest.mark.parametrize("name", CALLS)
def test_hostile_texts(name, attack):
    """Nothing is raised, whatever the text, and time is linear: quadratic ones would take hours."""
    parsed = parse(name, HOSTILE[attack](CALLS[name]))
    assert len(parsed.calls) <= MAX_CALLS
    for found in parsed.calls:
        assert isinstance(found.arguments, dict)
        json.dumps(found.message(), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_mutated_calls(name, data):
    """Parts of calls in any order, with anything between them."""
    whole = CALLS[name] + "a\"'\\{}[](),:=<>|\n"
    cuts = st.tuples(st.integers(0, len(whole)), st.integers(0, 12)).map(lambda cut: whole[cut[0] : cut[0] + cut[1]])
    text = "".join(data.draw(st.lists(cuts | st.text(max_size=3), max_size=20)))
    for found in parse(name, CALLS[name][: data.draw(st.integers(0, 60))] + text).calls:
        assert found.problem is None or not found.arguments


def test_nesting_is_limited():
    def nested(depth):
        arguments = {"a": reduce(lambda inner, _: [inner], range(depth), 1)}
        return parse("hermes", f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>")

    assert nested(MAX_NESTING - 5).calls[0].problem is None
    assert "nested more than" in nested(MAX_NESTING + 5).calls[0].problem


def test_a_made_up_name_is_no_markup():
    assert ToolCall("<|im_end|>").message()["function"]["name"] == "unknown"
    assert ToolCall("a.b-c").message()["function"]["name"] == "a.b-c"
