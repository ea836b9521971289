"""Vision-language families by the names of their models, for commands whose model is not on this machine.

A config.json decides where there is one (`burnish.models.vision.family`); names are read by `convert`, `doctor` and
`rehearse`, whose answers must not depend on the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Patterns of the last part of a model's name, and transformers' model_type. The first match wins.
_SUPPORTED: tuple[tuple[str, str], ...] = (
    (r"qwen-?3[-_.]?vl.*a\d+b", "qwen3_vl_moe"),
    (r"qwen-?3[-_.]?vl", "qwen3_vl"),
    (r"qwen-?(2\.5|25|2_5|2-5)[-_.]?vl", "qwen2_5_vl"),
    (r"qwen-?2[-_.]?vl|qvq", "qwen2_vl"),
    (r"smolvlm-?2", "smolvlm"),
    (r"smolvlm|idefics-?3", "idefics3"),
    (r"gemma-?3-?(4|12|27)b|medgemma", "gemma3"),
)
SUPPORTED_NAMES = "Qwen2-VL, Qwen2.5-VL, Qwen3-VL, SmolVLM, Idefics3, Gemma 3"
# Families that take images, video or audio in a way that Burnish does not support, by the name in error messages.
_UNSUPPORTED: tuple[tuple[str, str], ...] = (
    (r"intern-?(vl|s1)|internvideo", "InternVL"),
    (r"llava", "LLaVA"),
    (r"kimi-?vl|kimi-?k2\.5", "Kimi-VL"),
    (r"deepseek-?(vl|ocr)|janus", "DeepSeek-VL"),
    (r"minicpm-?[ov]", "MiniCPM-V"),
    (r"glm-?[\d.]+v(?![a-z])|cogvlm|glm-?ocr", "GLM-V"),
    (r"llama-?3\.2-(11|90)b|llama-?4|mllama", "Llama with vision"),
    (r"pixtral|mistral-small-3\.[12]|magistral-small-1\.2", "Pixtral"),
    (r"idefics-?2|idefics(?!-?3)", "Idefics2"),
    (r"molmo", "Molmo"),
    (r"paligemma", "PaliGemma"),
    (r"gemma-?(3n|4)", "Gemma 3n and 4"),
    (r"phi-?(3(\.5)?-vision|4-multimodal)", "Phi vision"),
    (r"ovis", "Ovis"),
    (r"keye-?vl", "Keye-VL"),
    (r"ernie.*vl", "ERNIE-VL"),
    (r"aya-?vision", "Aya Vision"),
    (r"qwen-?(2\.5|25|3)[-_.]?omni", "Qwen-Omni"),
    (r"qwen-?2?[-_.]?audio|whisper|voxtral", "audio models"),
    (r"qwen-?vl(?![a-z])", "Qwen-VL (1)"),
    (r"qwen-?3[-_.]5", "Qwen3.5"),
)
# Families whose images vLLM gets (rollout/engines/vllm/media.py says why).
VLLM_TYPES = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl"})
SUPPORTED_TYPES = frozenset(kind for _, kind in _SUPPORTED)
# A config with one of these is not of a text model.
_TOWER_CONFIGS = ("vision_config", "audio_config")
# A name that says that the model sees, but not of which family it is.
_GENERIC = re.compile(r"(?<![a-z])(vl|vlm)(?![a-z])")


def vision_type(name: str) -> str | None:
    """The model_type that a model's name or path implies; None for text models and names that do not tell."""
    last = _last_part(name)
    if unsupported_family(name) is not None:
        return None
    return next((kind for pattern, kind in _SUPPORTED if re.search(pattern, last)), None)


def unsupported_family(name: str) -> str | None:
    """The multimodal family of a model's name, if Burnish does not support it."""
    last = _last_part(name)
    return next((family for pattern, family in _UNSUPPORTED if re.search(pattern, last)), None)


def has_tower(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a model that takes more than text."""
    return any(config.get(name) is not None for name in _TOWER_CONFIGS)


def unsupported_type(config: Mapping[str, Any]) -> str | None:
    """The model_type of a config.json, if it is of a multimodal family that Burnish does not support."""
    model_type = str(config.get("model_type"))
    return model_type if has_tower(config) and model_type not in SUPPORTED_TYPES else None


def names_vision(name: str) -> bool:
    """Whether the name says that the model sees."""
    return vision_type(name) is not None or _GENERIC.search(_last_part(name)) is not None


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
