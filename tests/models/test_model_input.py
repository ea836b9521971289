"""The identity of a model input: its tokens and its media."""

from __future__ import annotations

import pytest

from burnish.models.model_input import Media, ModelInput

IDS = tuple(range(40))


def image(digest, offset=10):
    return Media("image", digest, offset, num_tokens=4)


PLAIN, CAT, DOG = ModelInput(IDS), ModelInput(IDS, (image(b"cat"),)), ModelInput(IDS, (image(b"dog"),))


def test_equal_content_is_equal():
    assert CAT.key == ModelInput(IDS, (image(b"cat"),)).key and ModelInput(IDS, (image(b"cat"),)) == CAT
    assert len({PLAIN.key, CAT.key, DOG.key, ModelInput(IDS, (image(b"cat", 11),)).key}) == 4


def test_a_prefix_has_the_media_that_start_in_it():
    assert CAT.prefix_key(10) == DOG.prefix_key(10) == PLAIN.prefix_key(10) == ModelInput(IDS[:10]).key
    assert CAT.prefix_key(11) != DOG.prefix_key(11) and CAT.prefix_key(11) != PLAIN.prefix_key(11)


@pytest.mark.parametrize("input", [PLAIN, CAT])
@pytest.mark.parametrize("block_size", [1, 7, 40, 41])
def test_keys_of_blocks_are_keys_of_prefixes(input, block_size):
    ends = range(block_size, len(IDS) + 1, block_size)
    assert list(input.prefix_keys(block_size)) == [input.prefix_key(end) for end in ends]


def test_common_prefix():
    assert CAT.common_prefix(DOG) == CAT.common_prefix(PLAIN) == 10
    assert CAT.common_prefix(CAT.extend((7, 8), (image(b"bird", 41),))) == 40
    assert PLAIN.common_prefix(ModelInput((*IDS[:23], 99, *IDS[24:]))) == 23
    assert PLAIN.common_prefix(ModelInput((99,))) == PLAIN.common_prefix(ModelInput(())) == 0
