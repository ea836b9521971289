import pytest

from burnish.config import load
from burnish.errors import UserError

BASE = ["actor_rollout_ref.model.path=m", "data.train_files=t.parquet", "data.max_response_length=100"]
DAPO = "reward_model.reward_manager=dapo"
KWARGS = "reward_model.reward_kwargs"


def given(*overrides):
    return load([*BASE, *overrides])


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["reward.verifiers=[acc]", "custom_reward_function.path=f.py"], "can score responses"),
        (["reward.verifiers=[acc]", "reward.remote_url=f.py"], "can score responses"),
        (["reward.remote_url=f.py", "custom_reward_function.path=f.py"], "can score responses"),
        (["reward.verifiers=[acc,step]", "reward.verifier_weights=[1]"], "1 weights for 2 verifiers"),
        (["reward.verifier_weights=[1]"], "1 weights for 0 verifiers"),
        (["reward.verifiers=[base_ac]"], "Did you mean 'base_acc'"),
        (["reward.remote_url=[f.py,g.py]"], "a Python file cannot be combined"),
        (["reward.isolate=true", "reward.num_workers=0"], "without limits"),
        (["reward.network=false", "reward.num_workers=0"], "without limits"),
        (["reward.network=false", "reward.isolate=false"], "cannot block the network"),
        (["reward.network=false", "reward.remote_url=http://h/"], "require the network"),
        ([DAPO, f"{KWARGS}.overlong_buffer_cfg.length=3"], "no such setting. Did you mean 'len'"),
        ([DAPO, f"{KWARGS}.overlong_buffer_cfg.len=many"], "wrong type"),
        ([DAPO, f"{KWARGS}.overlong_buffer_cfg.enable=1"], "wrong type"),
        ([DAPO, f"{KWARGS}.max_resp_len=-1.5"], "wrong type"),
        ([DAPO, f"{KWARGS}.overlong_buffer_cfg=3"], "wrong type"),
        (
            [DAPO, f"{KWARGS}.overlong_buffer_cfg={{enable:true,len:60}}", f"{KWARGS}.max_resp_len=50"],
            "not within the response length",
        ),
    ],
)
def test_what_is_refused(overrides, text):
    with pytest.raises(UserError, match=text):
        given(*overrides)


def test_addresses_may_be_written_with_commas():
    assert given("reward.remote_url='http://a/,http://b/'").cfg.reward.remote_url == ["http://a/", "http://b/"]
    assert given("reward.verifiers=acc,step").cfg.reward.verifiers == ["acc", "step"]


def test_verls_dapo_arguments_are_the_overlong_buffer():
    loaded = given(
        DAPO,
        f"+{KWARGS}.overlong_buffer_cfg.enable=True",
        f"+{KWARGS}.overlong_buffer_cfg.len=20",
        f"+{KWARGS}.overlong_buffer_cfg.penalty_factor=0.5",
        f"+{KWARGS}.overlong_buffer_cfg.log=False",
        f"+{KWARGS}.max_resp_len=${{data.max_response_length}}",
    )
    buffer = loaded.cfg.reward_model.overlong_buffer
    expected = {"enable": True, "len": 20, "penalty_factor": 0.5, "log": False, "max_resp_len": 100}
    assert vars(buffer) == expected
    assert loaded.cfg.reward_model.reward_kwargs == {}
    assert any("reward_model.overlong_buffer.len=20" in notice for notice in loaded.notices)


def test_other_managers_keep_their_arguments():
    loaded = given(f"{KWARGS}.max_resp_len=5", "reward_model.reward_manager=mine.py:Manager")
    assert loaded.cfg.reward_model.reward_kwargs == {"max_resp_len": 5}
    assert loaded.cfg.reward_model.overlong_buffer.max_resp_len is None


def test_the_eval_command_has_the_same_rules():
    with pytest.raises(UserError, match="1 weights for 2 verifiers"):
        load(["data.path=p.parquet", "reward.verifiers=[acc,step]", "reward.verifier_weights=[1]"], job="eval")
