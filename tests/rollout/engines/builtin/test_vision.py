"""The built-in engine with images and videos: against transformers' own generate, in every family and both decoders."""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch
from PIL import Image

from burnish.demo.tiny_vision import TINY_FAMILIES, make_vision_model
from burnish.errors import UserError
from burnish.media import Video
from burnish.models.fused.fp8 import dequantize
from burnish.models.load import ModelSource, load_causal_lm, load_tokenizer
from burnish.models.model_input import ModelInput
from burnish.models.parts import backbone
from burnish.models.vision.encoder import load_vision_encoder
from burnish.models.wide import is_wide
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.rollout.engines.builtin.sequence import SequenceState
from burnish.rollout.engines.hf import HfEngine

PATIENCE = 120.0
GREEDY = Sampling(6, do_sample=False, ignore_eos=True)
FAMILIES = tuple(TINY_FAMILIES)
MODES = {"invariant": {"invariant": True}, "plain": {"invariant": False}, "loop": {"device_loop": True}}


def picture(seed: int, width: int = 56, height: int = 56) -> Image.Image:
    values = random.Random(seed).randbytes(3 * 4 * 4)
    return Image.frombytes("RGB", (4, 4), values).resize((width, height), Image.Resampling.BICUBIC)


class Seeing:
    """A tiny model with its encoder and weights."""

    def __init__(self, folder, family: str) -> None:
        self.model = make_vision_model(folder, family, seed=3)
        with torch.no_grad():  # as after training: a random model hardly looks at anything
            for parameter in self.model.parameters():
                parameter.mul_(2.0) if parameter.dim() > 1 else None
        self.model.save_pretrained(folder)
        self.family = family
        self.source = ModelSource(path=str(folder))
        self.tokenizer = load_tokenizer(str(folder), key=self.source.key)
        self.encoder = load_vision_encoder(self.source, self.tokenizer)
        self.weights = dict(load_causal_lm(self.source, None, torch.float32).named_parameters())

    def input(self, text: str, images=(), videos=(), offset: int = 0) -> ModelInput:
        for kind in ("image", "video"):
            text = text.replace(f"<{kind}>", self.written(kind))
        return self.encoder.encode(text, images, videos, offset=offset)

    def written(self, kind: str) -> str:
        tiny = TINY_FAMILIES[self.family]
        return tiny.image if kind == "image" else tiny.video

    def prompts(self) -> list[ModelInput]:
        """One image, several of different sizes, none, the same again; a video where the family has them."""
        one, two = picture(1), picture(2, 84, 56)
        inputs = [
            self.input("what <image> is it?", [one]),
            self.input("<image> and <image>, or <image>", [one, two, picture(3, 28, 84)]),
            self.input("no picture at all, but a longer text"),
            self.input("what <image> is it?", [picture(4)]),
        ]
        if "video" in self.encoder.kinds:
            frames = [picture(seed) for seed in range(4)]
            inputs.append(self.input("see <video> and <image>", [one], [Video(frames, [0.0, 0.25, 0.5, 0.75])]))
            inputs.append(self.input("a video alone: <video>?", [], [Video(frames[:2], [0.0, 0.5])]))
        return inputs

    def options(self, **fields) -> EngineOptions:
        defaults = {"max_model_len": 512, "max_num_seqs": 8, "own_thread": False, "memory_share": 0.01}
        return EngineOptions(
            model=self.source,
            dtype=torch.float32,
            device=torch.device("cpu"),
            eos_ids=(self.tokenizer.eos_token_id,),
            **{**defaults, **fields},
        )


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    made: dict[str, Seeing] = {}

    def make(family: str) -> Seeing:
        if family not in made:
            made[family] = Seeing(tmp_path_factory.mktemp(family), family)
        return made[family]

    return make


@pytest.fixture
def engine_of():
    engines = []

    def make(tiny: Seeing, mode: str = "plain", **fields) -> BuiltinEngine:
        engine = BuiltinEngine(tiny.options(**MODES[mode], **fields))
        engines.append(engine)
        engine.load_weights(tiny.weights.items(), 1)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def expected(seeing):
    """What transformers' generate answers."""
    known = {}

    def ask(family: str):
        if family not in known:
            tiny = seeing(family)
            engine = HfEngine(tiny.options())
            engine.load_weights(tiny.weights.items(), 1)
            try:
                known[family] = answers(engine, tiny.prompts())
            finally:
                engine.close()
        return known[family]

    return ask


def answers(engine, inputs, sampling=GREEDY, session=None):
    requests = [Request(input, sampling, number, session=session) for number, input in enumerate(inputs)]
    return [future.result(PATIENCE) for future in engine.generate(requests)]


def assert_same(ours, theirs, tolerance=2e-5):
    assert [completion.ids for completion in ours] == [completion.ids for completion in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_as_transformers(seeing, engine_of, expected, family, mode):
    tiny = seeing(family)
    engine = engine_of(tiny, mode)
    ours = answers(engine, tiny.prompts())
    assert_same(ours, expected(family))
    assert ours[0].ids != ours[3].ids or ours[0].log_probs != pytest.approx(ours[3].log_probs, abs=1e-4)
    rows = [input.extend(tuple(done.ids)) for input, done in zip(tiny.prompts(), ours, strict=True)]
    for row, input, done in zip(engine.score(rows), tiny.prompts(), ours, strict=True):
        assert row[len(input) :] == pytest.approx(done.log_probs, abs=2e-5)
    blocks = engine.scheduler.blocks
    assert blocks.num_used == (1 if mode == "loop" else 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_8_bits_are_those_of_the_language_model(seeing, engine_of, family):
    """And the tower computes with what was sent."""
    tiny = seeing(family)
    engine = engine_of(tiny, "loop", quantization="block")
    rounded, theirs = engine.runner.rounded, HfEngine(tiny.options())
    layers = {name: dequantize(layer.weight, layer.scales, layer.scale_rows) for name, layer in rounded.items()}
    assert layers and not any("vis" in name for name in layers)
    theirs.load_weights({**tiny.weights, **layers}.items(), 1)
    try:
        assert_same(answers(engine, tiny.prompts()), answers(theirs, tiny.prompts()))
    finally:
        theirs.close()


def long_prompt(tiny: Seeing, images, at: int = 245) -> ModelInput:
    """A prompt of two blocks, with a picture across their boundary."""
    return tiny.input(f"{'some words ' * 40}"[:at] + "<image> and then <image> what?", images)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_a_prompt_in_chunks_is_the_prompt_as_a_whole(seeing, engine_of, family, mode):
    """To the last bit in invariant mode."""
    tiny = seeing(family)
    images = [picture(7), picture(8)]
    inputs = [long_prompt(tiny, images, at) for at in range(251, 258)]
    small = {"extra": {"block_size": 16}} if mode == "loop" else {}
    whole = answers(engine_of(tiny, mode, **small), inputs)
    chunked = engine_of(tiny, mode, max_num_batched_tokens=64 if mode == "loop" else 256, **small)
    ours = answers(chunked, inputs)
    assert_same(ours, whole, tolerance=0 if mode == "invariant" else 1e-5)
    assert ours[0].log_probs != pytest.approx(ours[3].log_probs, abs=1e-5)
    assert chunked.stats()["prefill_tokens"] == sum(map(len, inputs))


@pytest.mark.parametrize("mode", MODES)
def test_equal_tokens_share_kv_only_with_equal_pictures(seeing, engine_of, mode):
    """Neither a prompt, nor a prefix, nor a session is shared with another picture."""
    tiny = seeing("qwen2_5_vl")
    engine = engine_of(tiny, mode, prefix_caching=True)
    cat, dog, cat_again = (long_prompt(tiny, [picture(seed), picture(9)], at=10) for seed in (1, 2, 1))
    assert cat.ids == dog.ids and cat.key == cat_again.key != dog.key
    requests = [Request(input, GREEDY, 1, session="a") for input in (cat, dog, cat_again)]
    sequences = [SequenceState(request, Future()) for request in requests]
    for sequence in sequences:
        sequence.offset = engine.runner.positions.offset(sequence.request.input)
    engine.scheduler.enqueue(sequences)
    while engine.scheduler.has_work:
        engine.step()
    assert engine.stats()["prefill_tokens"] == 2 * len(cat)  # the two cats share a prompt
    assert sequences[0].log_probs == sequences[2].log_probs
    assert sequences[0].log_probs != pytest.approx(sequences[1].log_probs, abs=1e-5)
    fresh = [answers(engine_of(tiny, mode), [input])[0] for input in (cat, dog)]
    for sequence, done in zip(sequences, fresh, strict=False):
        assert sequence.log_probs == pytest.approx(done.log_probs, abs=1e-5)
    again = answers(engine, [dog, cat])
    assert_same(again, fresh[::-1], tolerance=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_a_picture_in_the_second_turn(seeing, engine_of, family, mode):
    """A session that goes on with a picture answers as a prefill of everything would."""
    tiny = seeing(family)
    engine, fresh = engine_of(tiny, mode), engine_of(tiny, mode)
    first = tiny.input("<image> what " * 3, [picture(1), picture(2), picture(3)])
    (said,) = answers(engine, [first], session="a")
    so_far = first.extend(tuple(said.ids))
    answer = tiny.input("look: <image> and?", [picture(5)], offset=len(so_far))
    second = so_far.extend(answer.ids, answer.media)
    before = engine.stats()["prefill_tokens"]
    ours = answers(engine, [second], session="a")
    assert_same(ours, answers(fresh, [second]), tolerance=0 if mode == "invariant" else 2e-5)
    assert before == len(first)
    assert engine.stats()["prefill_tokens"] == (len(second) if mode == "invariant" else len(answer) + 1)
    third = second.extend(tuple(ours[0].ids))
    assert_same(answers(engine, [third], session="a"), answers(fresh, [third]), tolerance=2e-5)


@pytest.mark.parametrize("mode", ["invariant", "loop"])
def test_preempted_sequences_see_their_pictures_again(seeing, engine_of, mode):
    """Six sequences of which only one has room to end."""
    tiny = seeing("qwen2_5_vl")
    size = {"max_model_len": 80, "extra": {"block_size": 16}} if mode == "loop" else {"max_model_len": 290}
    words = "w" * (16 if mode == "loop" else 226)
    inputs = [tiny.input(f"<image>{words}<image>", [picture(seed), picture(9)]) for seed in range(6)]
    sampling = Sampling(size["max_model_len"] - len(inputs[0]), do_sample=False, ignore_eos=True)
    poor = engine_of(tiny, mode, memory_share=0.0, **size)
    ours = answers(poor, inputs, sampling)
    assert poor.stats()["preemptions"] > 0
    assert_same(ours, answers(engine_of(tiny, mode, **size), inputs, sampling), tolerance=1e-5)


def test_the_tower_sees_every_picture_once(seeing, engine_of):
    """For several samples, for a prompt in chunks, and for later prompts until the weights change."""
    tiny = seeing("qwen2_5_vl")
    engine = engine_of(tiny, "loop", max_num_batched_tokens=64, extra={"block_size": 16})
    shown = []
    tower = engine.runner.model.get_submodule("model.visual")
    tower.register_forward_hook(lambda module, given, output: shown.append(len(given[0])))
    one, two = picture(1), picture(2, 112, 112)
    input = tiny.input(f"{'words ' * 9} <image> <image> {'words ' * 15} <image>", [one, two, one])
    engine.generate([Request(input, GREEDY, seed) for seed in range(3)])[2].result(PATIENCE)
    assert sum(shown) == 16 + 64  # patches
    answers(engine, [tiny.input("<image>?", [two])])
    assert sum(shown) == 16 + 64
    engine.load_weights(tiny.weights.items(), 2)
    answers(engine, [tiny.input("<image>?", [one])])
    assert sum(shown) == 2 * 16 + 64


def test_weights_of_the_tower_are_loaded(seeing, engine_of):
    tiny = seeing("qwen3_vl")
    engine = engine_of(tiny, "plain")
    input = tiny.input("<image>?", [picture(1)])
    (before,) = answers(engine, [input])
    changed = {name: weight * 2 if ".visual." in name else weight for name, weight in tiny.weights.items()}
    engine.load_weights(changed.items(), 2)
    (after,) = answers(engine, [input])
    assert after.log_probs != pytest.approx(before.log_probs, abs=1e-4)
    assert answers(engine, [tiny.input("no picture")])[0].log_probs == pytest.approx(
        answers(engine_of(tiny, "plain"), [tiny.input("no picture")])[0].log_probs, abs=1e-6
    )
    engine.sleep(level=2)
    engine.load_weights(tiny.weights.items(), 3)
    engine.wake()
    assert_same(answers(engine, [input]), [before], tolerance=1e-6)


def test_a_sampled_placeholder_is_plain_text(seeing, engine_of):
    """A response with the token that stands for pictures: it is no picture."""
    tiny = seeing("qwen2_5_vl")
    pad = tiny.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    input = tiny.input("<image>?", [picture(1)]).extend((pad, pad, *tiny.input("so?").ids))
    (ours,) = answers(engine_of(tiny, "plain"), [input])
    assert len(ours.ids) == GREEDY.max_tokens


@pytest.mark.parametrize("kind", ["text", "image"])
def test_pictures_that_the_model_does_not_take(seeing, engine_of, tiny_folder, make_engine, kind):
    tiny = seeing("qwen2_5_vl")
    video = tiny.input("<video>", videos=[Video([picture(1), picture(2)])])
    engine = make_engine(tiny_folder) if kind == "text" else engine_of(seeing("gemma3"))
    with pytest.raises(UserError, match="has videos, which this model does not take") as refusal:
        answers(engine, [video])
    assert refusal.value.allowed == [kind]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_16_bit_weights_keep_a_float32_residual_stream(seeing, engine_of, family):
    """With images too: the log-probs are those of the trainer under autocast, and near those of float32."""
    tiny = seeing(family)
    exact = engine_of(tiny, "plain")
    engine = BuiltinEngine(replace(tiny.options(invariant=False), dtype=torch.bfloat16))
    try:
        engine.load_weights(tiny.weights.items(), 1)
        assert is_wide(engine.runner.model)
        widths = set()
        layer = backbone(engine.runner.model).get_submodule("layers.1")
        layer.register_forward_pre_hook(lambda module, given: widths.add(given[0].dtype))
        rows = [input.extend((5, 6, 7, 8)) for input in tiny.prompts()]
        for ours, theirs in zip(engine.score(rows), exact.score(rows), strict=True):
            assert ours[-4:] == pytest.approx(theirs[-4:], abs=0.1)
        assert widths == {torch.float32}
    finally:
        engine.close()
