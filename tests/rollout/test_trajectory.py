"""Trajectories as columns of a batch."""

from __future__ import annotations

import pytest
import torch

from burnish.batch import Batch
from burnish.models.model_input import Media, ModelInput
from burnish.reward.sample import Score
from burnish.reward.trajectories import add_scores
from burnish.rollout.engine import Completion
from burnish.rollout.trajectory import NOT_SAMPLED, Trajectory, Turn, response_columns

PROMPT = ModelInput((5, 6))


def single(*fields, **more):
    return Trajectory.single_turn(PROMPT, Completion(*fields, **more))


def with_tool(reward=None):
    """Two sampled turns around the two tokens of a tool's answer."""
    return Trajectory(
        PROMPT,
        ids=[4, 7, 30, 31, 8, 2],
        mask=[True, True, False, False, True, True],
        log_probs=[-0.5, -0.25, 0.0, 0.0, -1.0, -2.0],
        versions=[3, 3, NOT_SAMPLED, NOT_SAMPLED, 3, 4],
        turns=[Turn(0, 2, reward=reward), Turn(2, 4, "tool", latency=0.5), Turn(4, 6)],
        finish_reason="stop",
    )


def test_response_columns():
    rows = [
        single([4, 2], [-0.5, -0.25], [7, 8], "stop"),
        single([], [], [], "abort"),
        single([9], [-1.5], [8], "length"),
    ]
    batch = Batch(uid=["a", "a", "b"]).add(**response_columns(rows))  # add checks that the columns are aligned
    assert batch["responses"].lists() == [[4, 2], [], [9]]
    assert batch["response_mask"].lists() == [[1, 1], [], [1]]
    assert batch["rollout_log_probs"].lists() == [[-0.5, -0.25], [], [-1.5]]
    assert batch["weight_version"].lists() == [[7, 8], [], [8]]
    assert batch["finish_reason"] == ["stop", "abort", "length"]
    assert batch["responses"].flat.dtype == torch.int64 and batch["rollout_log_probs"].flat.dtype == torch.float32
    assert batch["response_mask"].flat.dtype == torch.float32
    assert "turns" not in batch and "top_log_probs" not in batch


def test_top_log_probs_are_a_column_where_the_sampling_asks_for_them():
    row = single([4], [-0.5], [7], "stop", None, [[(4, -0.5), (5, -1.0)]])
    assert response_columns([row])["top_log_probs"] == [[[(4, -0.5), (5, -1.0)]]]


def test_no_token_at_all():
    columns = response_columns([single([], [], [], "abort")])
    assert columns["responses"].lists() == [[]] and columns["responses"].flat.dtype == torch.int64


def test_tokens_of_a_tool_are_masked():
    columns = response_columns([with_tool(), single([9], [-1.5], [8], "length")])
    assert columns["response_mask"].lists() == [[1, 1, 0, 0, 1, 1], [1]]
    assert columns["weight_version"].lists()[0] == [3, 3, NOT_SAMPLED, NOT_SAMPLED, 3, 4]
    assert [len(turns) for turns in columns["turns"]] == [3, 1]


@pytest.mark.parametrize(
    ("reward", "expected"), [(None, [0, 0, 0, 0, 0, 1.5]), (0.5, [0, 0.5, 0, 0, 0, 1.5])], ids=["end", "turn and end"]
)
def test_a_score_goes_to_the_last_token_of_a_turn(reward, expected):
    batch = Batch(uid=["a"]).add(**response_columns([with_tool(reward)]))
    assert add_scores(batch, [Score(1.5)])["token_level_scores"].lists() == [expected]


def test_a_score_goes_to_the_last_sampled_token_where_a_tool_had_the_last_word():
    cut = with_tool()
    row = Trajectory(PROMPT, cut.ids[:4], cut.mask[:4], cut.log_probs[:4], cut.versions[:4], cut.turns[:2], "length")
    batch = Batch(uid=["a"]).add(**response_columns([row]))
    assert add_scores(batch, [Score(2.0)])["token_level_scores"].lists() == [[0, 2.0, 0, 0]]


def test_text_is_without_what_ended_it():
    def decode(ids):
        return "".join(chr(96 + token) for token in ids)

    assert single([1, 2, 3], [0.0] * 3, [1] * 3, "stop", stop_reason=3).text(decode) == "ab"
    assert single([1, 2, 3], [0.0] * 3, [1] * 3, "stop", stop_reason="bc").text(decode) == "a"
    assert single([1, 2, 3], [0.0] * 3, [1] * 3, "length").text(decode) == "abc"


# model inputs


def image(digest, offset=1):
    return Media("image", digest, offset=offset, num_tokens=2)


def test_a_prefix_key_covers_tokens_and_media():
    ids = (5, 9, 9, 6, 7)
    plain, cat, dog = ModelInput(ids), ModelInput(ids, (image(b"cat"),)), ModelInput(ids, (image(b"dog"),))
    assert len({plain.key, cat.key, dog.key}) == 3
    assert plain.prefix_key(1) == cat.prefix_key(1) == dog.prefix_key(1), "before the image they are the same"
    assert cat.prefix_key(2) != dog.prefix_key(2)
    assert cat.key == ModelInput(ids, (image(b"cat"),)).key and cat == ModelInput(ids, (image(b"cat"),))
    assert cat.key != ModelInput(ids, (image(b"cat", offset=2),)).key


def test_extending_keeps_the_prefix():
    start = ModelInput((5, 9, 9), (image(b"cat"),))
    longer = start.extend((6, 7), (image(b"dog", offset=4),))
    assert longer.ids == (5, 9, 9, 6, 7) and len(longer) == 5
    assert longer.prefix_key(3) == start.key and longer.prefix_key(4) == ModelInput((5, 9, 9, 6), start.media).key
