from burnish.reward.rules import REWARDS


def test_common_data_sources_are_registered():
    assert {"openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"} <= set(
        REWARDS.names()
    )
    assert "burnish/sums" in REWARDS


def test_every_entry_loads_a_function_and_has_an_example():
    for row in REWARDS.entries.values():
        assert callable(row.load())
        assert row.metadata["example"].right != row.metadata["example"].wrong
