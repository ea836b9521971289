"""Turns as a model would sample them under a template, and conversations of such turns."""

from __future__ import annotations

import asyncio
import json

from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.agents.tool_agent import ToolAgent
from burnish.rollout.chat.forms import Form
from burnish.rollout.chat.history import AppendHistory
from burnish.rollout.chat.template import QUESTION
from burnish.rollout.chat.tool_calls import ToolCall
from burnish.rollout.engine import Completion, Sampling
from burnish.rollout.episode import Prompt
from burnish.rollout.tools.functions import FunctionTool
from burnish.rollout.tools.toolbox import Toolbox

from .templates import TOOLS, format_of, parser_of, template_of, tokenizer_of

# For templates that do not show calls: the formats of models that write them as text.
SPELLINGS = {
    "hermes": '<tool_call>{{"name": "{name}", "arguments": {json}}}</tool_call>',
    "llama3_json": '{{"name": "{name}", "parameters": {json}}}',
    "lfm2": "<|tool_call_start|>[{name}({pairs})]<|tool_call_end|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}
THOUGHT = "a thought"


def rendered_turn(name, message):
    """A turn as the template spells it, after its generation prompt, and the token that ends it. None: it cannot."""
    template = template_of(name)
    start, opened = template.generation_prompt, template.opened_thinking
    for thinking in ({"reasoning_content": THOUGHT, "thinking": THOUGHT}, {}):
        for form in (Form("dict"), Form("json"), Form("text", parts=True)):
            given = form.messages([QUESTION, {**message, **thinking}])
            if message.get("tool_calls"):
                arguments = [call["function"]["arguments"] for call in message["tool_calls"]]
                given[1]["tool_calls"] = form._calls(message["tool_calls"], arguments)
            text, problem = template._attempt(given, reply=False)
            start = start if text.startswith(start) else start.removesuffix(opened)
            if problem is not None or not text.startswith(start) or (thinking and THOUGHT not in text):
                continue
            rest = text[len(start) :].removeprefix("<think>" if start != template.generation_prompt else "")
            found = [(rest.find(end), token) for token, end in template.end_texts.items() if end in rest]
            position, token = min(found, default=(len(rest), template.eos_ids[-1]))
            return rest[:position], token
    return None


def rendered_calls(name, calls):
    """A turn with calls, and its end; None where the template does not show calls."""
    message = {"role": "assistant", "content": "", "tool_calls": [call.message() for call in calls]}
    turn = rendered_turn(name, message)
    return turn if turn is not None and len(parser_of(name).parse(turn[0]).calls) == len(calls) else None


def sampled_calls(name, calls):
    """The same, spelled by hand where the template does not show calls."""
    rendered = rendered_calls(name, calls)
    if rendered is not None:
        return rendered
    (call,) = calls
    pairs = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
    spelled = SPELLINGS[format_of(name)].format(name=call.name, json=json.dumps(call.arguments), pairs=pairs)
    return rendered_turn(name, {"role": "assistant", "content": spelled})


def sampled_answer(name, content="the answer"):
    return rendered_turn(name, {"role": "assistant", "content": content})


class Turns:
    """A Sampler that answers with these (text, end token) in turn and remembers what it was given."""

    def __init__(self, name, turns):
        self.template = template_of(name)
        self.turns = list(turns)
        self.inputs, self.completions = [], []

    def budget(self, input):
        return 100_000

    watches = False

    async def observe(self, act, *, name="", repeatable=True, key=None):
        return await act()

    def waited(self):
        return 0.0

    async def generate(self, input, **sampling):
        self.inputs.append(input)
        text, end = self.turns.pop(0)
        ids = [*self.template.encode(text), end]
        stop_reason = end if end in sampling.get("stop_token_ids", ()) else None
        self.completions.append(Completion(ids, [-0.5] * len(ids), [1] * len(ids), "stop", stop_reason))
        return self.completions[-1]


def context_of(name, toolbox=None, **fields):
    template, tokenizer = template_of(name), tokenizer_of(name)
    eos = {tokenizer.eos_token_id}
    stops = tuple(token for token in template.eos_ids if token not in eos)
    decode = template.decode
    return AgentContext(
        tokenizer,
        template,
        parser_of(name),
        toolbox or Toolbox([]),
        decode,
        TurnLimits(),
        stop_token_ids=stops,
        **fields,
    )


def lookup_tool(results):
    """A tool that returns these texts in turn."""
    results = list(results)

    def lookup(**arguments):
        return results.pop(0)

    return FunctionTool(lookup, TOOLS[0])


def converse_with_tool(name, turns, results, **fields):
    """A conversation of ToolAgent; returns its rows and the sampler."""
    template = template_of(name)
    context = context_of(name, Toolbox([lookup_tool(results)]), **fields)
    prompt = ModelInput(tuple(template.encode(template.generation_prompt)))
    sampler = Turns(name, turns)
    row = {"raw_prompt": [QUESTION]}
    rows = asyncio.run(ToolAgent(context).run(Prompt(prompt, Sampling(100_000), 7, "row", 0, row), sampler))
    return rows, sampler


def converse_with_user(name, turns, replies, history=AppendHistory):
    """A conversation in which a user answers every turn but the last; returns the history and the sampler."""
    template, context = template_of(name), context_of(name)
    conversation = history(template, ModelInput(tuple(template.encode(template.generation_prompt))), [QUESTION])
    sampler = Turns(name, turns)
    for reply in (*replies, None):
        completion = asyncio.run(sampler.generate(conversation.input))
        conversation.add_turn(completion, *context.read_turn(completion, 0))
        if reply is not None:
            assert conversation.add_messages([{"role": "user", "content": reply}], "user", sampler.budget)
    return conversation, sampler


def call(name, number=0, **arguments):
    """A call with an id of the template's kind."""
    id = f"functions.lookup:{number}" if format_of(name) == "kimi_k2" else f"call{number:05d}"
    return ToolCall("lookup", arguments, id=id)
