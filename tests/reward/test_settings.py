from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig
from burnish.reward.settings import RewardSettings


def test_the_defaults_are_the_configs():
    assert RewardSettings.of(CustomRewardFunctionConfig(), RewardConfig()) == RewardSettings()


def test_every_key_arrives():
    function = CustomRewardFunctionConfig(path="f.py", name="g", reward_kwargs={"a": 1})
    reward = RewardConfig(num_workers=5, timeout=3.0, memory_mb=99, on_error="stop", fallback_score=-1.0)
    reward.pass_env = ["HF_TOKEN"]
    arrived = RewardSettings("f.py", "g", {"a": 1}, 5, 3.0, 99, "stop", -1.0, ("HF_TOKEN",))
    assert RewardSettings.of(function, reward) == arrived


def test_no_name_is_the_usual_name():
    assert RewardSettings.of(CustomRewardFunctionConfig(name=None), RewardConfig()).name == "compute_score"
