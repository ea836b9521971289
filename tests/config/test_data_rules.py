"""Rules and remarks about the data section."""

import pytest

from burnish.config import load
from burnish.errors import UserError

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]
PLAIN = "data.apply_chat_template=false"


def notice_text(*overrides):
    return " ".join(load([*GIVEN, *overrides]).notices)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["data.input_template=Question", PLAIN],
            r"data\.input_template='Question': no \{\} placeholder for the prompt",
        ),
        (
            ["data.input_template='Q {}'"],
            "conflicts with the chat template.*data.apply_chat_template=false",
        ),
        (["data.sampler.class_path=a.py"], r"data\.sampler\.class_name: the name of the class is missing"),
        (["data.datagen.path=a.py"], r"data\.datagen\.name: the name of the class is missing"),
        (["data.handler.name=AlpacaStylePairwiseHandler"], "Allowed: AlpacaStyleInstructionHandler, R1Alpaca"),
        (["data.handler.prompt_type=chatglm"], "Allowed: empty, default, qwen"),
        (["data.train_probs=[0.5,-1]"], r"data\.train_probs=\[0\.5, -1\]: out of range"),
    ],
)
def test_what_is_refused(overrides, problem):
    with pytest.raises(UserError, match=problem):
        load([*GIVEN, *overrides])


def test_a_literal_backslash_n_gives_a_notice():
    assert "a literal \\n (two characters)" in notice_text(r"data.input_template='Q {}\n'", PLAIN)
    assert "a literal \\n (two characters)" not in notice_text("data.input_template='Q {}\n'", PLAIN)


@pytest.mark.parametrize("key", ["data", "actor_rollout_ref.model"])
def test_remote_code_gives_one_notice(key):
    assert "trust_remote_code" not in notice_text()
    told = [line for line in load([*GIVEN, f"{key}.trust_remote_code=true"]).notices if "trust_remote_code" in line]
    assert told == [f"Python code from the model or tokenizer repository will be executed ({key}.trust_remote_code)."]


def test_remote_code_of_an_unused_reward_model_gives_no_notice():
    assert "will run here" not in notice_text("reward_model.model.trust_remote_code=true")
    given = ("reward_model.enable=true", "reward_model.model.path=judge", "reward_model.model.trust_remote_code=true")
    assert "will be executed (reward_model.model.trust_remote_code)" in notice_text(*given)
