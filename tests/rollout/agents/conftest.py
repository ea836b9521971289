"""A tokenizer with a ChatML template that knows tools, and a sampler that says what a test wants."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from burnish.rollout.engine import Completion

CHATML = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls %}"
    "<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def chat_tokenizer():
    """One token per byte, and the markers of ChatML."""
    vocab = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    fast.chat_template = CHATML
    return fast


class Script:
    """A Sampler that answers with these texts in turn and remembers what it was given."""

    def __init__(self, tokenizer, texts, budget=10_000, num_prompt=0, forks=()):
        self.forks, self.forked = forks, {}
        self.tokenizer, self.texts, self.total, self.num_prompt = tokenizer, list(texts), budget, num_prompt
        self.inputs, self.samplings = [], []

    def budget(self, input):
        return self.total - (len(input) - self.num_prompt)

    async def generate(self, input, **sampling):
        self.inputs.append(input)
        self.samplings.append(sampling)
        text = self.texts.pop(0)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        finish = "stop" if text.endswith("<|im_end|>") else "length"
        return Completion(list(ids), [-0.5] * len(ids), [3] * len(ids), finish)

    watches = False

    async def observe(self, act, *, name="", repeatable=True, key=None):
        return await act()

    def waited(self):
        return 0.0

    def fork(self, number, input, max_tokens=None):
        forked = Script(self.tokenizer, self.forks[number], max_tokens or self.total, len(input))
        self.forked[number] = forked
        return forked
