"""Laws of conversations, under every chat template of the trl wheel: the tokens given are the tokens trained on."""

from __future__ import annotations

import pytest

from burnish.errors import UserError
from burnish.rollout.chat.drift import ignore_strippable, strict
from burnish.rollout.chat.history import FaithfulHistory
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.chat.template_check import check_template, rewritten

from .templates import ALL, TOOLS, WHEEL, template_of
from .turns import THOUGHT, call, converse_with_tool, converse_with_user, sampled_answer, sampled_calls

RESULTS = ['4 "quoted" \\ é\n<b>', "zweites Ergebnis"]
# Shows nobody's second message.
DROPS = (
    "{% for m in messages[:2] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_the_wheel_has_its_templates():
    assert len(WHEEL) == 72  # of trl 1.16


def check_rows(rows, sampler):
    """A turn was given a row's prompt and the row up to that turn; sampled tokens are trained once, and no others."""
    sampled = [token for row in rows for token, mask in zip(row.ids, row.mask, strict=True) if mask]
    assert sampled == [token for completion in sampler.completions for token in completion.ids]
    given = [
        (*row.prompt.ids, *row.ids[: turn.start]) for row in rows for turn in row.turns if turn.role == "assistant"
    ]
    assert given == [input.ids for input in sampler.inputs]
    assert all(row.mask[-1] for row in rows)


# Templates that render a conversation with tools otherwise than it was sampled. deepseek: a second round of results
# lacks its markup. diffusion_gemma: a turn after results has a header that the generation prompt has not. gptoss: the
# analysis before a call is removed once there is an answer. muse_glimmer: no parser knows its channels.
DRIFTS = ("deepseek", "diffusion_gemma", "gptoss", "muse_glimmer")
ONLY_SPACE = ("nemotron",)  # a line break after a call


@pytest.mark.parametrize("name", ALL)
def test_with_a_tool(name):
    rounds = [sampled_calls(name, [call(name, number, a=number)]) for number in range(2)]
    check = ignore_strippable() if name.startswith(ONLY_SPACE) else strict()
    rows, sampler = converse_with_tool(name, [*rounds, sampled_answer(name)], RESULTS, drift=check)
    assert len(rows) == 1 and len(sampler.inputs) == 3
    check_rows(rows, sampler)
    (row,) = rows
    observed = [template_of(name).decode(row.ids[turn.start : turn.end]) for turn in row.turns if turn.role == "tool"]
    assert len(observed) == 2 and "zweites Ergebnis" in observed[1]
    assert '4 "quoted" \\ é' in observed[0] or '4 \\"quoted\\" \\\\ é\\n<b>' in observed[0]
    assert row.info["tokenization_drift"] == name.startswith(DRIFTS)


@pytest.mark.parametrize("name", ALL)
def test_with_a_user(name):
    conversation, sampler = converse_with_user(name, [sampled_answer(name)] * 3, ["more", "and more"])
    (row,) = conversation.trajectories("stop")
    check_rows([row], sampler)
    observed = [template_of(name).decode(row.ids[turn.start : turn.end]) for turn in row.turns if turn.role == "user"]
    assert "more" in observed[0] and "and more" in observed[1]


@pytest.mark.parametrize("name", ALL)
def test_faithful_history(name):
    """Every turn is sampled after what a chat server would render, and trained in that context."""
    template = template_of(name)
    turn = sampled_answer(name)
    conversation, sampler = converse_with_user(name, [turn] * 3, ["more", "and more"], FaithfulHistory)
    rows = conversation.trajectories("stop")
    check_rows(rows, sampler)
    for number, input in enumerate(sampler.inputs):
        assert template.decode(input.ids) == template.conversation(conversation.messages[: 1 + 2 * number])
    changed = rewritten(template, [{"role": "user", "content": "more"}], thinks=THOUGHT in turn[0])
    assert len(rows) == (1 if changed is None else 3) or name.startswith("muse_glimmer")


def test_the_first_difference_is_reported_once(caplog):
    """Nemotron's templates drop the line break after a call."""
    name, check = "nemotron_3_nano", strict()
    rounds = [sampled_calls(name, [call(name, a=1)])]
    for _ in range(2):
        ((row,), _) = converse_with_tool(name, [*rounds, sampled_answer(name)], ["4"], drift=check)
        assert row.info["tokenization_drift"] == 1.0
    (record,) = caplog.records
    assert "sampled 'tool_call>\\n<|im_end|', rendered 'tool_call><|im_end|>'" in record.getMessage()
    assert check.num_drifted == 2


@pytest.mark.parametrize("name", ALL)
def test_notices(name):
    """What a run with tools and users reports about a template at its start."""
    notices = " ".join(check_template(template_of(name), "key", replies=True))
    as_user = ("cohere", "gemma_", "gemma3", "llava", "phi3")
    assert ("given as user messages" in notices) == (name == "gemma" or name.startswith(as_user))
    hidden = (*as_user, "deepseek", "idefics3", "qwen2_5_vl", "smolvlm", "llama3_training")
    assert ("does not show the tools" in notices) == (name in ("gemma", "llama3") or name.startswith(hidden))
    removes = ("deepseek", "diffusion_gemma", "gemma4", "glm4moe", "gptoss", "lfm2_2_5", "nemotron")
    keeps = ("deepseek_r1_distill_training",)
    qwen = ("qwen3", "qwen3_5_think", "qwen3_6")
    assert ("thinking of earlier turns is removed" in notices) == (
        (name.startswith(removes) and name not in keeps) or name in qwen
    )


def test_a_template_that_drops_results_is_refused():
    template = template_of("qwen2_5")
    dropping = ChatTemplate(template.tokenizer, template.eos_ids, TOOLS, {"chat_template": DROPS})
    with pytest.raises(UserError, match="the template drops a message"):
        check_template(dropping, "key", replies=False)
