from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig
from burnish.reward.settings import RewardSettings


def test_defaults_equal_those_of_the_config():
    assert RewardSettings.of(CustomRewardFunctionConfig(), RewardConfig()) == RewardSettings()


def test_keys_are_copied():
    function = CustomRewardFunctionConfig(path="f.py", name="g", reward_kwargs={"a": 1})
    reward = RewardConfig(num_workers=5, timeout=3.0, memory_mb=99, on_error="stop", fallback_score=-1.0)
    reward.pass_env = ["HF_TOKEN"]
    arrived = RewardSettings("f.py", "g", {"a": 1}, 5, 3.0, 99, "stop", -1.0, ("HF_TOKEN",))
    assert RewardSettings.of(function, reward) == arrived


def test_default_function_name():
    assert RewardSettings.of(CustomRewardFunctionConfig(name=None), RewardConfig()).name == "compute_score"


def test_verifier_and_remote_keys_are_copied():
    reward = RewardConfig(
        isolate=True,
        network=False,
        verifiers=["acc"],
        verifier_weights=[2.0],
        remote_url=["http://host/"],
        remote_timeout=1.0,
        remote_retries=2,
        remote_wait=3.0,
    )
    arrived = RewardSettings.of(CustomRewardFunctionConfig(), reward)
    assert (arrived.isolate, arrived.network) == (True, False)
    assert (arrived.verifiers, arrived.verifier_weights) == (("acc",), (2.0,))
    assert (arrived.remote_url, arrived.remote_timeout) == (("http://host/",), 1.0)
    assert (arrived.remote_retries, arrived.remote_wait) == (2, 3.0)
