"""What a user can get wrong ends with exit status 1 and a message to read."""

import pytest

RAISES = "def compute_score(solution_str):\n    raise ValueError('I do not like this')\n"
NAN = "def compute_score(solution_str, extra_info):\n    return float('nan') if extra_info['index'] == 3 else 1.0\n"
HANGS = """
import time

def compute_score(solution_str, extra_info):
    if extra_info["index"] == 3:
        time.sleep(600)
    return 1.0
"""


@pytest.fixture
def refused(burnish, verl_command, tmp_path):
    """refused(*overrides): the message of a command that must not train."""

    def run(*overrides):
        status, printed = burnish(*verl_command(tmp_path / "run", *overrides))
        assert status == 1, printed
        assert "Traceback" not in printed
        assert len(printed.strip().splitlines()) <= 6, "one message, not a flood"
        assert not list((tmp_path / "run").glob("metrics*.jsonl")), "it trained"
        return printed

    return run


def test_a_missing_file(refused, tmp_path):
    message = refused(f"data.train_files={tmp_path / 'nowhere.parquet'}")
    assert "data.train_files" in message and "nowhere.parquet" in message


def test_a_missing_column(refused, parquet, row):
    rows = [{"question" if key == "prompt" else key: value for key, value in row(n).items()} for n in range(4)]
    message = refused(f"data.train_files={parquet(rows)}")
    assert "data.prompt_key='prompt'" in message and "question" in message


def test_a_parquet_file_that_cannot_be_read(refused, tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then something else")
    message = refused(f"data.train_files={tmp_path / 'broken.parquet'}")
    assert "broken.parquet" in message and "data.train_files" in message


def test_a_prompt_that_is_too_long_names_its_row(refused, parquet, row):
    rows = [*(row(n) for n in range(5)), row(5, "1+" * 20)]
    message = refused(f"data.train_files={parquet(rows)}", "data.filter_overlong_prompts=False")
    assert "row 5" in message and "data.max_prompt_length" in message


def test_nothing_is_left_after_filtering(refused, parquet, row):
    message = refused(f"data.train_files={parquet([row(n, '1+' * 20) for n in range(5)])}")
    assert "no prompt is left" in message and "5 longer than data.max_prompt_length=16" in message


def test_an_unknown_key(refused):
    message = refused("actor_rollout_ref.actor.clip_ration=0.3")
    assert "clip_ration" in message and "clip_ratio" in message


def test_several_wrong_settings_are_reported_at_once(refused):
    message = refused("algorithm.adv_estimator=gpro", "data.truncation=middel", "trainer.nodes=2")
    assert all(word in message for word in ("grpo", "middle", "trainer.nnodes"))


def test_the_command_itself_exits_with_1(spawn):
    process = spawn(["train", "trainer.nodes=2"])
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "trainer.nnodes" in printed and "Traceback" not in printed


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reward_that_raises_stops_the_run_where_asked(burnish, verl_command, tmp_path):
    (tmp_path / "raises.py").write_text(RAISES)
    settings = (f"custom_reward_function.path={tmp_path / 'raises.py'}", "~custom_reward_function.reward_kwargs.digit")
    status, printed = burnish(*verl_command(tmp_path / "run", *settings, "reward.on_error=stop"))
    assert status == 1, printed
    assert "raised ValueError: I do not like this in raises.py:compute_score" in printed
    assert "Sample " in printed and "reward.on_error=fallback" in printed
    assert "Traceback" not in printed and "Exception in thread" not in printed


@pytest.mark.parametrize(
    ("source", "said"), [(NAN, "returned nan"), (HANGS, "timed out after 0.3 s")], ids=["nan", "hangs"]
)
def test_a_misbehaving_reward_is_reported_and_the_run_continues(burnish, verl_command, tmp_path, source, said):
    (tmp_path / "odd.py").write_text(source)
    settings = (f"custom_reward_function.path={tmp_path / 'odd.py'}", "~custom_reward_function.reward_kwargs.digit")
    more = ("trainer.total_training_steps=3", "trainer.val_before_train=False", "reward.timeout=0.3")
    status, printed = burnish(*verl_command(tmp_path / "run", *settings, *more))
    assert status == 0, printed
    notes = (tmp_path / "run" / "notes.txt").read_text()
    assert said in notes and "odd.py:compute_score" in notes and "2 times" in notes
    assert "the reward function failed on 2 responses" in printed
