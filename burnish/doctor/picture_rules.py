"""Rules about images: how many tokens they take."""

from __future__ import annotations

from burnish.doctor.rules import NOTE, WARNING, Case, Rule, RuleResult
from burnish.doctor.tower import Tower

TEXT_SHARE = 4  # a quarter of a prompt is left for its text
GEMMA_TOKENS = 256  # of one picture


def _tower(case: Case) -> Tower | None:
    has_images = case.cfg.data.image_key is not None or case.cfg.data.video_key is not None
    return case.shapes.policy.tower if case.shapes is not None and has_images else None


def large_pictures(case: Case) -> RuleResult:
    """One picture of the largest size does not fit into a prompt."""
    tower, data = _tower(case), case.cfg.data
    if tower is None or tower.max_pixels is None or data.mm_processor_kwargs:
        return None
    most = tower.tokens(tower.max_pixels)
    if most <= data.max_prompt_length:
        return None
    fitting = data.max_prompt_length * (TEXT_SHARE - 1) // TEXT_SHARE * (tower.patch * tower.merge) ** 2
    return (
        f"a large picture takes up to {most:,} tokens (unless the model's preprocessor_config.json says otherwise),"
        f" more than data.max_prompt_length={data.max_prompt_length}: such prompts are overlong",
        f"data.mm_processor_kwargs.max_pixels={fitting} (pictures are scaled down), or a larger max_prompt_length",
    )


def no_room_for_a_picture(case: Case) -> RuleResult:
    """Families with a fixed number of tokens per picture."""
    tower, longest = _tower(case), case.cfg.data.max_prompt_length
    if tower is None or tower.family != "gemma3" or longest > GEMMA_TOKENS:
        return None
    return (
        f"one picture takes {GEMMA_TOKENS} tokens, which leaves none of data.max_prompt_length={longest} for text",
        f"data.max_prompt_length={4 * GEMMA_TOKENS}",
    )


PICTURE_RULES = (
    Rule("large_pictures", NOTE, "prompts with large pictures are dropped or refused as overlong", large_pictures),
    Rule("no_room_for_a_picture", WARNING, "every prompt with a picture is overlong", no_room_for_a_picture),
)
