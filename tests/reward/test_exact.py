from burnish.reward.exact import exact


def test_white_space_at_the_ends_does_not_count():
    assert exact(" 42\n", "42") == 1.0
    assert exact("42", 42) == 1.0
    assert exact("4 2", "42") == 0.0
    assert exact("42.", "42") == 0.0
    assert exact("", "42") == 0.0
