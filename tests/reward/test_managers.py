from burnish.reward.managers import REWARD_MANAGERS
from burnish.reward.settings import RewardSettings


def test_naive_builds_a_scorer_from_settings_and_a_callable(sample):
    build = REWARD_MANAGERS["naive"].load()
    with build(RewardSettings(num_workers=1)) as scorer:
        assert scorer.score([sample("42"), sample("1")])[0].value == 1.0
    with build(RewardSettings(num_workers=1), lambda solution_str: 0.25) as scorer:
        assert scorer.score([sample()])[0].value == 0.25
