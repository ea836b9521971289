import numpy as np
import pytest

from burnish.reward.search_qa import last_tagged, search_qa

TRUTH = {"target": ["Marie Curie", "Maria Skłodowska"]}


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<answer>Marie Curie</answer>", 1.0),
        ("<answer> the  marie CURIE! </answer>", 1.0),
        ("<answer>Pierre</answer> no: <answer>Maria Skłodowska</answer>", 1.0),
        ("<answer>Marie Curie</answer> no: <answer>Pierre</answer>", 0.0),
        ("Marie Curie", 0.0),
        ("<answer>Marie Curie", 0.0),
        ("</answer>Marie Curie<answer>", 0.0),
        ("<answer>x</answer>" * 10 + "<answer>Marie Curie</answer>", 0.25),
        ("<answer>x</answer>" * 9 + "<answer>Marie Curie</answer>", 1.0),
        ("</answer>" * 11 + "<answer>Marie Curie</answer>", 0.25),
    ],
)
def test_the_last_answer_counts(response, score):
    assert search_qa(response, TRUTH) == score


def test_ground_truth_formats():
    for truth in ({"target": np.array(["7", "seven"])}, ["7", "seven"], "seven", {"target": "Seven"}):
        assert search_qa("<answer>seven</answer>", truth) == 1.0


def test_an_answer_ends_at_its_first_closing_tag():
    assert last_tagged("<answer>a</answer></answer>") == "a"
    assert last_tagged("<answer>a<answer>b</answer>") == "b"
