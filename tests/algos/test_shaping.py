import pytest
import torch

from burnish.algos.shaping import (
    SCORE_NORMALIZERS,
    BatchMoments,
    Moments,
    RunningMoments,
    overlong_penalty,
    stop_properly,
)


def test_the_overlong_penalty_grows_from_the_stretch_to_the_limit():
    lengths = torch.tensor([0, 50, 80, 81, 90, 100])
    expected = torch.tensor([0.0, 0.0, 0.0, -0.1, -1.0, -2.0])
    torch.testing.assert_close(overlong_penalty(lengths, max_length=100, buffer=20, factor=2.0), expected)


def test_the_overlong_penalty_against_the_formula_of_dapo():
    lengths = torch.arange(1, 513)
    expected = [min(-(n - (512 - 128)) / 128 * 0.5, 0) for n in range(1, 513)]
    torch.testing.assert_close(overlong_penalty(lengths, 512, 128, 0.5), torch.tensor(expected))


@pytest.mark.parametrize(
    ("coefficient", "expected"), [(0.5, [2.0, 0.5, -1.0]), (0.0, [2.0, 0.0, 0.0]), (-3.0, [2.0, -3.0, -3.0])]
)
def test_a_response_that_did_not_stop_keeps_a_share_or_gets_the_coefficient(coefficient, expected):
    scores, truncated = torch.tensor([2.0, 1.0, -2.0]), torch.tensor([False, True, True])
    torch.testing.assert_close(stop_properly(scores, truncated, coefficient), torch.tensor(expected))


def test_the_batch_is_standardized_by_its_own_moments():
    scores = torch.tensor([1.0, 2.0, 3.0, 6.0])
    shaped = BatchMoments().of(scores).standardize(scores)
    torch.testing.assert_close(shaped, (scores - scores.mean()) / scores.std())


@pytest.mark.parametrize("scores", [[0.1, 0.1, 0.1], [3.0]])
def test_scores_that_do_not_differ_are_not_divided(scores):
    scores = torch.tensor(scores)
    for normalizer in (BatchMoments(), RunningMoments()):
        torch.testing.assert_close(
            normalizer.of(scores).standardize(scores), torch.zeros(len(scores)), atol=1e-6, rtol=0
        )
    assert Moments(0.0, 1e-12).standardize(torch.tensor([1.0])).item() == 1.0


def test_running_moments_are_those_of_everything_so_far():
    parts = torch.randn(30, generator=torch.Generator().manual_seed(0)).mul(3).add(2).split([4, 1, 10, 15])
    running = RunningMoments()
    for number, part in enumerate(parts):
        moments, seen = running.of(part), torch.cat(parts[: number + 1]).double()
        assert moments.mean == pytest.approx(float(seen.mean()))
        assert moments.std == pytest.approx(float(seen.std()))


def test_running_moments_go_on_from_their_state():
    parts = torch.randn(12, generator=torch.Generator().manual_seed(1)).split(4)
    whole, first, second = RunningMoments(), RunningMoments(), RunningMoments()
    for part in parts:
        expected = whole.of(part)
    first.of(parts[0])
    second.load_state_dict(first.state_dict())
    second.of(parts[1])
    assert second.of(parts[2]) == expected


def test_a_normalizer_that_forgets_has_no_state():
    assert BatchMoments().state_dict() == {}
    assert SCORE_NORMALIZERS.names() == ["batch", "running"]
