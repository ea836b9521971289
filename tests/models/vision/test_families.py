"""Every family: our packed forward pass beside transformers' own, gradients, and what features replace."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from transformers import Gemma3ForCausalLM, LlamaForCausalLM, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from burnish.errors import UserError
from burnish.models.attention import PACKED, PACKED_EAGER
from burnish.models.load import ModelSource, load_config
from burnish.models.model_input import Media, ModelInput
from burnish.models.parts import check_head
from burnish.models.vision.family import freeze_vision_tower, vision_family, vision_modules
from burnish.models.vision.features import MediaSlice
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows
from tests.vlm import VIDEO_FAMILIES, clip, expected_log_probs, picture, rows_of, token_types, transformers_model

CPU = torch.device("cpu")
TEXT_MODELS = {
    "qwen2_vl": Qwen2ForCausalLM,
    "qwen2_5_vl": Qwen2ForCausalLM,
    "qwen3_vl": Qwen3ForCausalLM,
    "smolvlm": LlamaForCausalLM,
    "idefics3": LlamaForCausalLM,
    "gemma3": Gemma3ForCausalLM,
}


def backend_of(vlm, attn=PACKED):
    return SingleBackend(vlm.load(attn), CPU, torch.float32)


def log_probs(backend, batch):
    return backend.log_probs(PackedRows.of(batch, CPU, backend.family), 1.0, False)[0]


@pytest.mark.parametrize("attn", [PACKED, PACKED_EAGER])
def test_packed_rows_are_those_of_transformers(vlm, attn):
    prompts = vlm.prompts()
    batch = rows_of(prompts)
    with torch.no_grad():
        found = log_probs(backend_of(vlm, attn), batch).split(batch["responses"].lengths.tolist())
    theirs = transformers_model(vlm)
    for prompt, response, ours in zip(prompts, batch["responses"].rows(), found, strict=True):
        torch.testing.assert_close(ours, expected_log_probs(theirs, vlm, prompt, response), rtol=0, atol=2e-5)


def test_a_pixel_changes_the_log_probs(vlm):
    backend = backend_of(vlm)
    image = picture(56, 56)
    changed = image.copy()
    changed.putpixel((30, 30), tuple(255 - value for value in image.getpixel((30, 30))))
    before, after = (vlm.prompt([one]) for one in (image, changed))
    assert before.ids == after.ids
    assert before.key != after.key
    with torch.no_grad():
        first, second = (log_probs(backend, rows_of([prompt])) for prompt in (before, after))
    assert float((first - second).abs().max()) > 1e-6


def text_model(vlm):
    """A model of the text alone, as transformers has it."""
    config = load_config(ModelSource(str(vlm.folder))).get_text_config()
    if vlm.name == "qwen3_vl":
        entries = config.to_dict()
        rope = {name: entries["rope_parameters"][name] for name in ("rope_type", "rope_theta")}
        config = Qwen3Config(**{**entries, "rope_parameters": rope, "model_type": "qwen3"})
    return TEXT_MODELS[vlm.name](config)


def test_rows_without_pictures_are_those_of_the_text_model(vlm):
    backend = backend_of(vlm)
    batch = rows_of([vlm.prompt(text="only words"), vlm.prompt([picture()])])
    model = backend.model
    text = text_model(vlm).eval()
    prefix = next(name for name, module in model.named_modules() if module is backend.family.language_model(model))
    weights = {
        name.replace(f"{prefix}.", "model."): tensor
        for name, tensor in model.state_dict().items()
        if name.startswith((prefix, "lm_head"))
    }
    text.load_state_dict(weights)
    ids = torch.cat([batch["prompt_ids"][0], batch["responses"][0]])
    with torch.no_grad():
        logits = text(input_ids=ids[None]).logits[0, -1 - len(batch["responses"][0]) : -1]
        ours = log_probs(backend, batch)[: len(batch["responses"][0])]
    expected = logits.log_softmax(-1).gather(1, batch["responses"][0][:, None])[:, 0]
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)


def gradients(backend, batches):
    backend.model.zero_grad(set_to_none=True)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(sum(len(batch["responses"].flat) for batch in batches), generator=generator)
    for batch, part in zip(batches, weights.split([len(batch["responses"].flat) for batch in batches]), strict=True):
        (log_probs(backend, batch) * part).sum().backward()
    return {name: p.grad for name, p in backend.model.named_parameters() if p.grad is not None}


def test_gradients_of_packed_rows_are_the_sum_of_single_rows(vlm):
    backend = backend_of(vlm)
    batch = rows_of(vlm.prompts())
    packed = gradients(backend, [batch])
    single = gradients(backend, batch.split(1))
    assert packed.keys() == single.keys()
    for prefix in vision_modules(backend.model):
        assert any(name.startswith(prefix) and float(grad.abs().max()) > 0 for name, grad in packed.items())
    for name, grad in single.items():
        torch.testing.assert_close(
            packed[name], grad, rtol=1e-5, atol=1e-6 * max(1.0, float(grad.abs().max())), msg=name
        )


def test_a_frozen_tower_gets_no_gradient(vlm):
    backend = backend_of(vlm)
    freeze_vision_tower(backend.model, "actor_rollout_ref.actor.freeze_vision_tower")
    found = gradients(backend, [rows_of(vlm.prompts())])
    assert found
    assert not any(name.startswith(tuple(vision_modules(backend.model))) for name in found)


def test_a_stand_in_runs_the_whole_tower_without_effect(vlm):
    backend = backend_of(vlm)
    with_pictures = gradients(backend, [rows_of(vlm.prompts())])
    backend.shards_tower = True
    batch = rows_of([vlm.prompt(text="only words")])
    without = gradients(backend, [batch])
    assert with_pictures.keys() == without.keys()
    for name, grad in without.items():
        if name.startswith(tuple(vision_modules(backend.model))):
            assert not grad.any(), name
    with torch.no_grad():
        expected = log_probs(backend_of(vlm), batch)
        assert torch.equal(log_probs(backend, batch), expected)


def test_a_sampled_placeholder_keeps_its_embedding(vlm):
    backend = backend_of(vlm)
    prompt = vlm.prompt([picture()])
    (token,) = {vlm.encoder.family.config.image_token_id}
    batch = rows_of([prompt])
    batch["responses"].flat[1] = token
    rows = PackedRows.of(batch, CPU, backend.family)
    embeds = backend.family.embed(backend.model, rows.ids, rows.media).embeds
    plain = backend.model.get_input_embeddings()(rows.ids)
    same = (embeds == plain).all(-1)
    assert bool(same[len(prompt.ids) + 1])
    replaced = sum(m.num_tokens if m.features is None else int(m.features.sum()) for m in prompt.media)
    assert int((~same).sum()) == replaced
    log_probs(backend, batch).sum()


def test_a_slice_that_starts_inside_a_picture(vlm):
    backend = backend_of(vlm)
    for prompt in vlm.prompts():
        ids = torch.tensor(prompt.ids)
        slices = [MediaSlice.whole(media, media.offset) for media in prompt.media]
        with torch.no_grad():
            whole = backend.family.embed(backend.model, ids, slices)
            for begin in range(0, len(ids), 3):
                parts = [part for one in slices if (part := one.within(begin, begin + 5)) is not None]
                part = backend.family.embed(backend.model, ids[begin : begin + 5], parts)
                torch.testing.assert_close(part.embeds, whole.embeds[begin : begin + 5], rtol=0, atol=1e-5)
                if "visual_pos_masks" in whole.arguments:
                    mask = whole.arguments["visual_pos_masks"][0]
                    skipped, shown = int(mask[:begin].sum()), int(mask[begin : begin + 5].sum())
                    for ours, theirs in zip(
                        part.arguments.get("deepstack_visual_embeds", ()),
                        whole.arguments["deepstack_visual_embeds"],
                        strict=bool(parts),
                    ):
                        torch.testing.assert_close(ours, theirs[skipped : skipped + shown], rtol=0, atol=1e-5)


def test_the_head_is_checked_and_recomputation_changes_nothing(vlm):
    backend = backend_of(vlm)
    check_head(backend.model, segments=[4])
    batch = rows_of(vlm.prompts())
    plain = gradients(backend, [batch])
    backend.model.train()
    backend.model.gradient_checkpointing_enable({"use_reentrant": False})
    for name, grad in gradients(backend, [batch]).items():
        torch.testing.assert_close(
            grad, plain[name], rtol=1e-5, atol=1e-6 * max(1.0, float(grad.abs().max())), msg=name
        )


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_are_those_of_transformers(vlm_of, name):
    vlm = vlm_of(name)
    model = transformers_model(vlm)
    positions = vlm.encoder.family.positions
    prompts = vlm.prompts()
    packed = positions.packed([len(prompt) for prompt in prompts], [prompt.media for prompt in prompts])
    for prompt, ours in zip(prompts, packed.split([len(prompt) for prompt in prompts], dim=1), strict=True):
        ids = torch.tensor([prompt.ids])
        arguments = vlm.encoder.family.model_arguments(prompt.media)
        grids = {key: value for key, value in arguments.items() if not key.startswith("pixel")}
        types = {"mm_token_type_ids": token_types(prompt, len(prompt))}
        expected, delta = model.model.get_rope_index(ids, **types, **grids)
        assert torch.equal(ours, expected[:, 0])
        assert positions.offset(prompt) == int(delta)
        assert torch.equal(positions.prefill(prompt, 3, len(prompt) - 1), ours[:, 3:-1])


def test_positions_of_text_can_be_pinned(vlm):
    """Views of one memory cannot."""
    packed = vlm.encoder.family.positions.packed([3, 2])
    assert packed.is_contiguous() and packed[..., :5].reshape(-1, 5)[0].tolist() == [0, 1, 2, 0, 1]


def test_text_continues_after_the_largest_position_of_a_long_video(vlm_of):
    vlm = vlm_of("qwen2_5_vl")
    prompt = vlm.prompt(videos=[clip(8, size=56)])
    (media,) = prompt.media
    positions = vlm.encoder.family.positions.packed([len(prompt)], [prompt.media])
    end = media.offset + media.num_tokens
    # Four moments, each a second after the last, at two positions a second: 0, 2, 4, 6 after the video's start.
    assert positions[0, media.offset : end].unique().tolist() == [media.offset + step for step in (0, 2, 4, 6)]
    assert positions[:, end].tolist() == [media.offset + 7] * 3


def test_overlapping_media_are_refused(vlm_of):
    vlm = vlm_of("qwen2_vl")
    prompt = vlm.prompt([picture()])
    media = prompt.media[0]
    broken = ModelInput(prompt.ids, (media, media.at(media.offset + 1)))
    with pytest.raises(ValueError, match="overlap"):
        vlm.encoder.family.positions.packed([len(broken)], [broken.media])
    late = rows_of([ModelInput(prompt.ids, (media.at(len(prompt) + 20),))])
    with pytest.raises(ValueError, match="end after"):
        PackedRows.of(late, CPU, vlm.encoder.family)


def test_images_of_gemma_see_themselves_whole(vlm_of):
    """The last token of an image changes what the first one is in the next layer."""
    vlm = vlm_of("gemma3")
    backend = backend_of(vlm)
    prompt = vlm.prompt([picture()], text="a long text before the answer")
    rows = PackedRows.of(rows_of([prompt]), CPU, backend.family)
    media = prompt.media[0]
    assert [tuple(block) for block in rows.segments.blocks] == [(0, media.offset, media.offset + media.num_tokens)]
    causal = dataclasses.replace(rows, segments=type(rows.segments)(rows.segments.lengths))
    with torch.no_grad():
        found, without = (backend.log_probs(one, 1.0, False)[0] for one in (rows, causal))
    assert float((found - without).abs().max()) > 1e-5


def test_models_of_other_families_are_refused_by_name(tmp_path, vlm_of):
    config = copy.deepcopy(load_config(ModelSource(str(vlm_of("gemma3").folder))))
    assert vision_family(config) is not None
    assert vision_family(config.get_text_config()) is None
    config.model_type = "llava"
    with pytest.raises(UserError, match="'llava'"):
        vision_family(config)
    with pytest.raises(UserError, match="no vision tower"):
        freeze_vision_tower(TEXT_MODELS["smolvlm"](vlm_of("smolvlm").load().config.text_config), "actor.freeze")


def test_batches_with_media_are_refused_by_text_models(vlm_of):
    vlm = vlm_of("idefics3")
    with pytest.raises(ValueError, match="takes none"):
        PackedRows.of(rows_of([vlm.prompt([picture()])]), CPU)


def test_all_video_families_take_videos(vlm):
    assert ("video" in vlm.encoder.kinds) == (vlm.name in VIDEO_FAMILIES)
    assert Media("image", b"x", 0, 1) == Media("image", b"x", 0, 1)
