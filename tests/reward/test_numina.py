from burnish.reward.numina import numina


def test_formulas_are_compared_by_value():
    assert numina(r"So \boxed{x^2+2x+1}", "(x+1)^2") == 1.0
    assert numina(r"So \boxed{0.25}", r"\boxed{\frac14}") == 1.0
    assert numina(r"\boxed{1} or \boxed{2}", "1") == 0.0
    assert numina("(x+1)^2", "(x+1)^2") == 0.0  # not boxed
    assert numina(r"\boxed{" + "9" * 1000 + "}", "9") == 0.0
