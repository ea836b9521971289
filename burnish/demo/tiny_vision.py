"""Tiny random vision-language models of every supported family, with tokenizer, chat template and processor files."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerFast

from burnish.demo.tiny import END, PAD, make_tokenizer
from burnish.models.load import quiet_transformers

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'][0] }} "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% elif part['type'] == 'video' %}VIDEO{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>a {% endif %}"
)
VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
MAX_ROWS = 4  # of a split image, in the tokenizer of SmolVLM


@dataclass(frozen=True)
class Size:
    """Of the language model."""

    hidden: int
    layers: int
    rope_theta: float

    def text(self, tokenizer: Any, **more: Any) -> dict[str, Any]:
        return {
            "vocab_size": len(tokenizer),
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": self.hidden // 4,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "bos_token_id": None,
            "eos_token_id": tokenizer.convert_tokens_to_ids(END),
            "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
            "tie_word_embeddings": True,
            **more,
        }


@dataclass(frozen=True)
class TinyFamily:
    """How to make a model of one family."""

    special: dict[str, str]  # tokens by the attribute that processors look for
    image: str  # what the chat template writes for an image
    video: str
    config: Callable[[Any, Size], dict[str, Any]]
    files: dict[str, dict[str, Any]]  # processor files


def make_vision_model(
    folder: Path,
    family: str,
    *,
    characters: str = string.printable,
    words: Sequence[str] = (),
    hidden: int = 64,
    layers: int = 2,
    seed: int = 0,
    rope_theta: float = 10_000.0,
    split_images: bool = False,
) -> PreTrainedModel:
    """Create a random model of a family (a key of TINY_FAMILIES) and save it with all files of a checkpoint.

    An image of 28 to 56 pixels takes 1 to 4 tokens; `split_images` turns on the tiles of SmolVLM and Idefics3.
    """
    tiny = TINY_FAMILIES[family]
    tokenizer = _tokenizer(tiny, characters, words)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **tiny.config(tokenizer, Size(hidden, layers, rope_theta)))
    model = AutoModelForImageTextToText.from_config(config, trust_remote_code=False)
    _init_projector(model)
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name, content in tiny.files.items():
        split = {"do_image_splitting": True} if split_images and "do_image_splitting" in content else {}
        (folder / name).write_text(json.dumps(content | split, indent=2))
    return model


def _tokenizer(tiny: TinyFamily, characters: str, words: Sequence[str]) -> PreTrainedTokenizerFast:
    base = make_tokenizer(characters, words)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=base.backend_tokenizer, eos_token=END, pad_token=PAD, extra_special_tokens=tiny.special
    )
    tokenizer.chat_template = TEMPLATE.replace("IMAGE", tiny.image).replace("VIDEO", tiny.video)
    return tokenizer


def _init_projector(model: PreTrainedModel) -> None:
    """Gemma 3 starts its projector at zero, so that pictures would have no effect."""
    for name, parameter in model.named_parameters():
        if name.endswith("mm_input_projection_weight"):
            nn.init.normal_(parameter, std=0.1)


def _vision_ids(tokenizer: Any) -> dict[str, int]:
    names = {
        "image_token_id": IMAGE_PAD,
        "video_token_id": VIDEO_PAD,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
    }
    return {name: cast("int", tokenizer.convert_tokens_to_ids(token)) for name, token in names.items()}


def _qwen2_vl(tokenizer: Any, size: Size) -> dict[str, Any]:
    return dict(
        text_config=_mrope(size.text(tokenizer), size),
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": size.hidden, "num_heads": 2, "mlp_ratio": 2},
        tie_word_embeddings=True,
        **_vision_ids(tokenizer),
    )


def _qwen2_5_vl(tokenizer: Any, size: Size) -> dict[str, Any]:
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": size.hidden}
    vision |= {"window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2}
    return dict(
        text_config=_mrope(size.text(tokenizer), size),
        vision_config=vision,
        tie_word_embeddings=True,
        **_vision_ids(tokenizer),
    )


def _qwen3_vl(tokenizer: Any, size: Size) -> dict[str, Any]:
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": size.hidden}
    vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0], "patch_size": 14}
    return dict(
        text_config=_mrope(size.text(tokenizer), size, mrope_interleaved=True),
        vision_config=vision,
        tie_word_embeddings=True,
        **_vision_ids(tokenizer),
    )


def _mrope(text: dict[str, Any], size: Size, **more: Any) -> dict[str, Any]:
    """The rotary frequencies of a head, half as many as its dimensions, shared out over time, height and width."""
    spatial = size.hidden // 8 // 3
    sections = [size.hidden // 8 - 2 * spatial, spatial, spatial]
    return text | {"rope_parameters": text["rope_parameters"] | {"mrope_section": sections, **more}}


def _idefics(tokenizer: Any, size: Size) -> dict[str, Any]:
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return dict(
        text_config=size.text(tokenizer) | {"model_type": "llama"},
        vision_config=vision | {"image_size": 28, "patch_size": 7},
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        tie_word_embeddings=True,
    )


def _gemma3(tokenizer: Any, size: Size) -> dict[str, Any]:
    rope = {kind: {"rope_type": "default", "rope_theta": size.rope_theta} for kind in ("full", "sliding")}
    text = size.text(tokenizer) | {
        "rope_parameters": {f"{kind}_attention": parameters for kind, parameters in rope.items()},
        "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(size.layers)],
        "sliding_window": 8,
        "query_pre_attn_scalar": size.hidden // 4,
        "model_type": "gemma3_text",
    }
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>"}
    ids |= {"eoi_token_index": "<end_of_image>"}
    return dict(
        text_config=text,
        vision_config=vision | {"image_size": 28, "patch_size": 7, "model_type": "siglip_vision_model"},
        mm_tokens_per_image=4,
        tie_word_embeddings=True,
        **{name: cast("int", tokenizer.convert_tokens_to_ids(token)) for name, token in ids.items()},
    )


QWEN_SPECIAL = {
    "vision_start_token": VISION_START,
    "vision_end_token": VISION_END,
    "image_token": IMAGE_PAD,
    "video_token": VIDEO_PAD,
}
IDEFICS_SPECIAL = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "video_token": "<video>",
} | {f"row_{r}_col_{c}": f"<row_{r}_col_{c}>" for r in range(1, MAX_ROWS + 1) for c in range(1, MAX_ROWS + 1)}
GEMMA_SPECIAL = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}


def _qwen_family(config: Callable[[Any, Size], dict[str, Any]], processor: str, video: str) -> TinyFamily:
    size = {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}
    grid = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "size": size}
    return TinyFamily(
        QWEN_SPECIAL,
        f"{VISION_START}{IMAGE_PAD}{VISION_END}",
        f"{VISION_START}{VIDEO_PAD}{VISION_END}",
        config,
        {
            "preprocessor_config.json": {
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": processor,
                **grid,
            },
            "video_preprocessor_config.json": {
                "video_processor_type": video,
                "processor_class": processor,
                **grid,
                # of all frames in Qwen3-VL, of one in the others
                "size": {"shortest_edge": 28 * 28, "longest_edge": 8 * 56 * 56},
            },
        },
    )


def _idefics_family(name: str, video: str) -> TinyFamily:
    size = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}, "do_image_splitting": False}
    files = {
        "preprocessor_config.json": {
            "image_processor_type": f"{name}ImageProcessor",
            "processor_class": f"{name}Processor",
            **size,
        },
        "processor_config.json": {"image_seq_len": 4, "processor_class": f"{name}Processor"},
    }
    return TinyFamily(IDEFICS_SPECIAL, "<image>", video, _idefics, files)


TINY_FAMILIES: dict[str, TinyFamily] = {
    "qwen2_vl": _qwen_family(_qwen2_vl, "Qwen2VLProcessor", "Qwen2VLVideoProcessor"),
    "qwen2_5_vl": _qwen_family(_qwen2_5_vl, "Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
    "qwen3_vl": _qwen_family(_qwen3_vl, "Qwen3VLProcessor", "Qwen3VLVideoProcessor"),
    "smolvlm": _idefics_family("SmolVLM", "<video>"),
    "idefics3": _idefics_family("Idefics3", ""),
    "gemma3": TinyFamily(
        GEMMA_SPECIAL,
        "<start_of_image>",
        "",
        _gemma3,
        {
            "preprocessor_config.json": {
                "image_processor_type": "Gemma3ImageProcessor",
                "processor_class": "Gemma3Processor",
                "size": {"height": 28, "width": 28},
                "do_pan_and_scan": False,
                "pan_and_scan_min_crop_size": 28,
                "pan_and_scan_max_num_crops": 4,
                "pan_and_scan_min_ratio_to_activate": 1.2,
            },
            "processor_config.json": {"image_seq_length": 4, "processor_class": "Gemma3Processor"},
        },
    ),
}
