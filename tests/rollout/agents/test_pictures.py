"""Images of tools and environments: they become part of the conversation, as tokens that are not trained on."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace

import cloudpickle
import pytest
from PIL import Image

from burnish.demo.tiny_vision import make_vision_model
from burnish.errors import UserError
from burnish.loop.collect import EpisodeRunner
from burnish.loop.journal import FileJournal
from burnish.media import InvalidMedia, Video
from burnish.models.load import ModelSource, load_tokenizer
from burnish.models.vision.encoder import load_vision_encoder
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.agent_loops import load_agent_loops
from burnish.rollout.agents.environment_agent import EnvironmentAgent
from burnish.rollout.agents.openrlhf_agent import OpenRLHFAgent
from burnish.rollout.agents.tool_agent import ToolAgent
from burnish.rollout.chat.drift import strict
from burnish.rollout.chat.history import AppendHistory, FaithfulHistory
from burnish.rollout.chat.parsers.hermes import HermesParser
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.engine import Sampling
from burnish.rollout.environments.environment import EnvironmentFactory, StepResult
from burnish.rollout.episode import Prompt
from burnish.rollout.tools.functions import FunctionTool
from burnish.rollout.tools.isolated import isolated_tools
from burnish.rollout.tools.tool import ToolLimits
from burnish.rollout.tools.toolbox import Toolbox

from .conftest import Script

END = "<|im_end|>"
PAD = "<|image_pad|>"
MESSAGES = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "look"}]}]


def picture(shade: int, size: tuple[int, int] = (56, 56)) -> Image.Image:
    return Image.new("RGB", size, (shade, 255 - shade, shade // 2))


def zoom(shade: int):
    """Zoom in.

    Args:
        shade: the shade
    """
    return {"text": f"zoomed {PAD}", "image": picture(shade, (84, 56))}


class Zoomer:
    """The same as a function that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, shade: int):
        """Zoom in.

        Args:
            shade: the shade
        """
        self.calls += 1
        return zoom(shade)


def zoom_tools():
    return [FunctionTool(zoom)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    make_vision_model(folder, "qwen2_5_vl")
    source = ModelSource(path=str(folder))
    return load_vision_encoder(source, load_tokenizer(str(folder), key=source.key))


def context_of(encoder, toolbox, *, history=AppendHistory, sees=True):
    tokenizer = encoder.tokenizer
    template = ChatTemplate(tokenizer, [tokenizer.eos_token_id], toolbox.schemas(), {}, encoder if sees else None)
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    return AgentContext(tokenizer, template, HermesParser(), toolbox, decode, history=history, drift=strict())


def call(**arguments):
    return f"<tool_call>{json.dumps({'name': 'zoom', 'arguments': arguments})}</tool_call>{END}"


def prompt_of(encoder, context, images=None):
    images = [picture(10)] if images is None else images
    text = context.template.render(MESSAGES)
    row = {"raw_prompt": MESSAGES}
    return Prompt(encoder.encode(text, images), Sampling(4000), 7, "row", 0, row)


def converse(encoder, texts, *, tools=None, journal=None, **options):
    toolbox = Toolbox(zoom_tools() if tools is None else tools)
    context = context_of(encoder, toolbox, **options)
    prompt = prompt_of(encoder, context)
    sampler = Script(encoder.tokenizer, texts, num_prompt=len(prompt.input))
    try:
        return asyncio.run(ToolAgent(context).run(prompt, sampler)), sampler, prompt
    finally:
        toolbox.close()


@pytest.mark.parametrize("history", [AppendHistory, FaithfulHistory])
def test_a_picture_is_part_of_the_trajectory(encoder, history):
    texts = [call(shade=100), call(shade=200), f"two{END}"]
    (trajectory,), sampler, prompt = converse(encoder, texts, history=history)
    pad = encoder.tokenizer.convert_tokens_to_ids(PAD)
    everything = (*trajectory.prompt.ids, *trajectory.ids)
    assert [media.num_tokens for media in trajectory.all_media] == [4, 6, 6]
    for media in trajectory.all_media:
        span = everything[media.offset : media.offset + media.num_tokens]
        assert set(span) == {pad} and everything[media.offset - 1] != pad
    assert everything.count(pad) == 16  # the text that reads like a placeholder is none
    assert encoder.tokenizer.decode(trajectory.ids).count("zoomed < |image_pad|>") == 2
    mask = [False] * len(trajectory.prompt) + trajectory.mask
    assert not any(mask[position] for position, token in enumerate(everything) if token == pad)
    assert trajectory.all_media[1].digest != trajectory.all_media[2].digest
    for given in sampler.inputs:  # what every turn was sampled after: the tokens and the pictures so far
        assert everything[: len(given)] == given.ids
        assert given.media == trajectory.all_media[: len(given.media)]
    assert [len(given.media) for given in sampler.inputs] == [1, 2, 3]
    assert trajectory.info["tokenization_drift"] == 0.0
    assert trajectory.prompt.media == prompt.input.media


def test_a_history_that_is_rendered_again_shows_its_pictures_again(encoder):
    """A template that removes the thinking of earlier turns."""
    template = encoder.tokenizer.chat_template
    shown = "{{ message['content'] }}"
    forgets = template.replace(shown, "{{ message['content'].split('</think>')[-1] }}")
    assert forgets != template
    try:
        encoder.tokenizer.chat_template = forgets
        rows, _, _ = converse(encoder, ["<think>hm</think>" + call(shade=100), f"so{END}"], history=FaithfulHistory)
    finally:
        encoder.tokenizer.chat_template = template
    assert len(rows) == 2
    assert [media.num_tokens for media in rows[1].prompt.media] == [4, 6]
    assert "hm" not in encoder.tokenizer.decode(rows[1].prompt.ids)


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        (picture(1), [4]),
        ([picture(1), "and", picture(2)], [4, 4]),
        ({"images": [picture(1)], "text": "one"}, [4]),
        ({"video": Video([picture(1), picture(2)])}, [4]),
        ({"answer": 3}, []),
    ],
)
def test_what_a_function_may_return(encoder, value, tokens):
    def show() -> object:
        """Show."""
        return value

    text = f'<tool_call>{{"name": "show", "arguments": {{}}}}</tool_call>{END}'
    (trajectory,), _, _ = converse(encoder, [text, f"ok{END}"], tools=[FunctionTool(show)])
    assert [media.num_tokens for media in trajectory.media] == tokens


def test_a_picture_that_cannot_be_read_is_an_error_to_the_model(encoder):
    def broken() -> object:
        """Break."""
        return {"image": "/etc/passwd"}

    text = f'<tool_call>{{"name": "broken", "arguments": {{}}}}</tool_call>{END}'
    (trajectory,), _, _ = converse(encoder, [text, f"ok{END}"], tools=[FunctionTool(broken)])
    assert trajectory.info["tools"]["failed"] == 1 and trajectory.media == ()
    assert "Error: a tool's answer" in encoder.tokenizer.decode(trajectory.ids)


def test_a_model_of_text_refuses_by_name(encoder):
    toolbox = Toolbox(zoom_tools())
    context = context_of(encoder, toolbox, sees=False)
    prompt = Prompt(context.template.input("look", []), Sampling(4000), 7, "row", 0, {})
    with pytest.raises(UserError, match="this model takes text only"):
        asyncio.run(ToolAgent(context).run(prompt, Script(encoder.tokenizer, [call(shade=1), END])))


def test_an_isolated_tool(encoder):
    (here,), _, _ = converse(encoder, [call(shade=100), f"ok{END}"])
    this = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(this)  # the process need not be able to import the tests
    try:
        tools = isolated_tools(zoom_tools, ToolLimits(isolate=True))
    finally:
        cloudpickle.unregister_pickle_by_value(this)
    (there,), _, _ = converse(encoder, [call(shade=100), f"ok{END}"], tools=tools)
    assert there.ids == here.ids and there.media == here.media


class Gallery:
    """Shows a picture at the start and after every step."""

    def reset(self, seed, row):
        return {"image": picture(50), "text": "first"}

    def step(self, action):
        done = "stop" in action
        return StepResult([{"role": "user", "content": [{"type": "image", "image": picture(60)}]}], 0.5, done)


def test_an_environment_that_shows_pictures(encoder):
    context = context_of(encoder, Toolbox([]))
    prompt = prompt_of(encoder, context)
    agent = EnvironmentAgent(context, EnvironmentFactory("gallery", Gallery))
    texts = [f"go{END}", f"stop{END}"]
    sampler = Script(encoder.tokenizer, [], forks=[texts])
    trajectory = asyncio.run(agent.run(prompt, sampler))
    assert trajectory.problem is None
    assert len(trajectory.prompt.media) == 2 and trajectory.prompt.media[0] == prompt.input.media[0]
    (shown,) = trajectory.media
    everything = (*trajectory.prompt.ids, *trajectory.ids)
    assert set(everything[shown.offset : shown.offset + shown.num_tokens]) == {
        encoder.tokenizer.convert_tokens_to_ids(PAD)
    }
    assert trajectory.score == 0.0 and [turn.reward for turn in trajectory.turns] == [0.5, None, 0.5]


class ScriptedEngine:
    """An engine whose answers depend on the number of pictures alone."""

    def __init__(self, tokenizer, texts):
        from burnish.rollout.engine import Capabilities

        self.tokenizer, self.texts = tokenizer, texts
        self.capabilities = Capabilities("token", invariant=True)

    def generate(self, requests):
        from concurrent.futures import Future

        from burnish.rollout.engine import Completion

        futures = []
        for request in requests:
            ids = self.tokenizer(self.texts[len(request.input.media) - 1], add_special_tokens=False)["input_ids"]
            future = Future()
            future.set_result(Completion(list(ids), [-0.5] * len(ids), [1] * len(ids), "stop"))
            futures.append(future)
        return futures

    def step(self):
        return False

    def end_session(self, session):
        pass


def test_a_killed_run_sees_the_recorded_picture(encoder, tmp_path):
    """The tool is not called again, and the trajectory is the same to the last pixel."""
    path, zoomer = tmp_path / "1.jsonl", Zoomer()
    engine = ScriptedEngine(encoder.tokenizer, [call(shade=100), f"so{END}"])

    def run():
        tool = FunctionTool(zoomer, zoom_tools()[0].schema)
        context = context_of(encoder, Toolbox([tool]))
        journal = FileJournal(path)
        runner = EpisodeRunner(engine, ToolAgent(context), journal=journal)
        try:
            return asyncio.run(runner.run(prompt_of(encoder, context)))[0]
        finally:
            journal.close()

    first = run()
    (stored,) = (tmp_path / "1.pictures").iterdir()
    assert stored.suffix == ".png" and zoomer.calls == 1
    again = run()
    assert zoomer.calls == 1
    assert again.ids == first.ids and again.media == first.media and len(again.media) == 1
    same = again.media[0].tensors["pixel_values"] == first.media[0].tensors["pixel_values"]
    assert bool(same.all())


AGENT_LOOP = """
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

class Looking(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        messages = list(kwargs["raw_prompt"])
        images = (await self.process_vision_info(messages))["images"]
        assert images == kwargs["multi_modal_data"]["image"]
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs = self.processor(text=[text], images=images, return_tensors="pt")
        prompt_ids = inputs.pop("input_ids").squeeze(0).tolist()
        first = await self.server_manager.generate(
            "a", prompt_ids=prompt_ids, sampling_params=sampling_params, image_data=images
        )
        shown = images[0].resize((84, 56))
        observed = await self.apply_chat_template(
            [{"role": "tool", "content": [{"type": "image", "image": shown}]}], images=[shown]
        )
        second = await self.server_manager.generate(
            "a", prompt_ids=prompt_ids + first.token_ids + observed, sampling_params=sampling_params,
            image_data=[*images, shown],
        )
        ids = [*first.token_ids, *observed, *second.token_ids]
        mask = [1] * len(first.token_ids) + [0] * len(observed) + [1] * len(second.token_ids)
        return AgentLoopOutput(prompt_ids=prompt_ids, response_ids=ids, response_mask=mask, num_turns=4,
                               multi_modal_data={"images": [*images, shown]})
"""

OPENRLHF = """
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

class Instance(AgentInstanceBase):
    async def reset(self, states, **kwargs):
        self.turns = 0
        return {"observation": states["observation"]}

    async def step(self, states, **kwargs):
        from PIL import Image
        self.turns += 1
        return {
            "rewards": 0.5,
            "done": self.turns == 2,
            "environment_feedback": "see <|vision_start|><|image_pad|><|vision_end|>",
            "environment_images": [Image.new("RGB", (84, 56))] if self.turns == 1 else None,
        }

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(Instance)
"""


def check_two_turns(trajectory, sampler):
    assert trajectory.problem is None
    assert [media.num_tokens for media in trajectory.all_media] == [4, 6]
    assert len(trajectory.prompt.media) == 1
    everything = (*trajectory.prompt.ids, *trajectory.ids)
    for given in sampler.inputs:
        assert everything[: len(given)] == given.ids
        assert given.media == trajectory.all_media[: len(given.media)]
    assert [len(given.media) for given in sampler.inputs] == [1, 2]


def test_an_agent_loop_of_verl(encoder, tmp_path):
    (tmp_path / "looking.py").write_text(AGENT_LOOP)
    (tmp_path / "agents.yaml").write_text(f"- {{name: looking, _target_: '{tmp_path}/looking.py:Looking'}}")
    rollout = {"prompt_length": 100, "response_length": 60, "multi_turn": {"format": "hermes"}}
    config = {"actor_rollout_ref": {"rollout": rollout}, "data": {"apply_chat_template_kwargs": {}}}
    context = replace(context_of(encoder, Toolbox([])), config=config)
    agent = load_agent_loops(str(tmp_path / "agents.yaml"), "key", context)["looking"]
    sampler = Script(encoder.tokenizer, [], forks=[[f"one{END}", f"two{END}"]])
    (trajectory,) = asyncio.run(agent.run(prompt_of(encoder, context), sampler))
    check_two_turns(trajectory, sampler.forked[0])


def test_an_agent_of_openrlhf(encoder, tmp_path):
    (tmp_path / "agent.py").write_text(OPENRLHF)
    context = context_of(encoder, Toolbox([]))
    agent = OpenRLHFAgent(context, str(tmp_path / "agent.py"), "key")
    sampler = Script(encoder.tokenizer, [], forks=[[f"one{END}", f"two{END}"]])
    (trajectory,) = asyncio.run(agent.run(prompt_of(encoder, context), sampler))
    check_two_turns(trajectory, sampler.forked[0])


def test_tokens_that_are_not_those_of_the_picture(encoder):
    ids = encoder.tokenizer(f"a{PAD}b", add_special_tokens=False)["input_ids"]
    with pytest.raises(InvalidMedia, match="are not the 4 that the model's processor makes"):
        encoder.attach(ids, [picture(1)])
    with pytest.raises(InvalidMedia, match="1 of the pictures have no place"):
        encoder.attach(ids[:1], [picture(1)])
    whole = encoder.encode(f"a{PAD}b{PAD}", [picture(1), picture(2, (84, 56))])
    assert encoder.attach(whole.ids, [picture(1), picture(2, (84, 56))]) == whole
