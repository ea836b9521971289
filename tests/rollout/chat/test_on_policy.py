"""Conversations on the built-in engine: the trainer finds the probabilities with which every turn was sampled."""

from __future__ import annotations

import json
import string
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from burnish.batch import Batch, Ragged
from burnish.loop.collect import run_episodes
from burnish.loop.event_loop import run_coroutine
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.agents.tool_agent import ToolAgent
from burnish.rollout.chat.history import HISTORIES
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.chat.tool_calls import ParsedTurn, ToolCall
from burnish.rollout.engine import Sampling
from burnish.rollout.episode import Prompt
from burnish.rollout.tools.functions import FunctionTool
from burnish.rollout.tools.toolbox import Toolbox
from burnish.rollout.trajectory import response_columns
from burnish.training.backends.single import SingleBackend
from burnish.training.inference import compute_policy_columns
from burnish.training.packing import MicroBatchSize

CPU = torch.device("cpu")
TEMPERATURE = 0.7
MESSAGES = [{"role": "user", "content": "what is it"}]
# Like the templates of the families, with the markers that 53 tokens leave room for. Earlier turns lose their text up
# to the last dot, as others lose their thinking.
SHORTENED = "{{ m.content.split('.')[-1] if m.role == 'assistant' and not loop.last else m.content }}"
CHATML = (
    f"{{% for m in messages %}}<start>{{{{ m.role }}}}\n{SHORTENED}<end>\n{{% endfor %}}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)
HEADERS = (
    f"{{% for m in messages %}}<start>{{{{ m.role }}}}<header>\n\n{SHORTENED}<end>{{% endfor %}}"
    "{% if add_generation_prompt %}<start>assistant<header>\n\n{% endif %}"
)
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}<inst> {{ m.content }}</inst>"
    f"{{% elif m.role == 'tool' %}}{{{{ raise_exception('no tools') }}}}{{% else %}} {SHORTENED}<end>{{% endif %}}"
    "{% endfor %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    f"{{% endif %}}<start>{{{{ m.role }}}}\n{SHORTENED}<end>\n{{% endfor %}}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)
TEMPLATES = {"qwen2": CHATML, "qwen3": CHATML, "llama": HEADERS, "mistral": INST, "gemma2": ALTERNATING}
SPECIAL = ["<pad>", "<start>", "<end>", "<header>", "<inst>", "</inst>"]  # EOS is token 2
LETTERS = f"{string.ascii_lowercase}0123456789 \n.<>_/"


@cache
def tokenizer_for(template: str) -> PreTrainedTokenizerFast:
    """A token per letter."""
    alphabet = [symbol for symbol, _ in pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(LETTERS)]
    tokens = [*SPECIAL, *sorted(set("".join(alphabet)))]
    assert len(tokens) <= 53
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.chat_template = template
    return fast


class EveryTurnCalls:
    """A random model writes no calls: every turn is one."""

    stop_tokens = ()

    def parse(self, text):
        return ParsedTurn(text, [ToolCall("look", {})])


def look():
    """Look."""
    return "4 and 2"


def conversations(engine, folder, history, *, session=True):
    model_type = json.loads((Path(folder) / "config.json").read_text())["model_type"]
    tokenizer = tokenizer_for(TEMPLATES.get(model_type, ALTERNATING))
    template = ChatTemplate(tokenizer, [tokenizer.eos_token_id])
    stops = tuple(tokenizer.convert_tokens_to_ids(list("abcdefghijklm")))  # so that turns are short
    context = AgentContext(
        tokenizer,
        template,
        EveryTurnCalls(),
        Toolbox([FunctionTool(look)]),
        template.decode,
        TurnLimits(max_assistant_turns=4),
        history=HISTORIES[history].load(),
        stop_token_ids=stops,
    )
    agent = ToolAgent(context)
    agent.uses_session = session
    prompt = ModelInput(tuple(template.encode(template.render(MESSAGES))))
    sampling = Sampling(300, temperature=TEMPERATURE)
    prompts = [Prompt(prompt, sampling, seed, "row", seed, {"raw_prompt": MESSAGES}) for seed in range(4)]
    return [row for rows in run_coroutine(run_episodes(engine, agent, prompts)) for row in rows]


def trainers_log_probs(folder, rows):
    """Of every token of the responses, in one pass over whole rows."""
    model = load_causal_lm(ModelSource(folder), PACKED, torch.float32)
    batch = Batch(
        prompt_ids=Ragged.of([list(row.prompt.ids) for row in rows], torch.int64),
        **{name: column for name, column in response_columns(rows).items() if name in ("responses", "response_mask")},
    )
    columns = compute_policy_columns(
        SingleBackend(model, CPU, torch.float32), batch, TEMPERATURE, MicroBatchSize(rows=3)
    )
    return columns["log_probs"].rows()


@pytest.mark.parametrize("history", HISTORIES.names())
def test_ratios_are_one(family_folder, make_engine, history):
    engine = make_engine(family_folder, max_model_len=512, invariant=True)
    rows = conversations(engine, family_folder, history)
    num_turns = [sum(turn.role == "assistant" for turn in row.turns) for row in rows]
    assert sum(num_turns) >= 12 and (max(num_turns) >= 3 or history == "faithful")
    for row, log_probs in zip(rows, trainers_log_probs(family_folder, rows), strict=True):
        mask = torch.tensor(row.mask)
        ratios = (log_probs[mask] - torch.tensor(row.log_probs)[mask]).exp()
        assert (ratios - 1).abs().max() < 1e-4


def test_a_session_changes_no_bit(family_folder, make_engine):
    """Turns that continue from kept KV, and turns that are prefilled anew."""
    kept, anew = (
        conversations(
            make_engine(family_folder, max_model_len=512, invariant=True), family_folder, "append", session=session
        )
        for session in (True, False)
    )
    assert [(row.ids, row.log_probs, row.mask) for row in kept] == [(row.ids, row.log_probs, row.mask) for row in anew]
