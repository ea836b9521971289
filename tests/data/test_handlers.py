from dataclasses import replace

import pytest

from burnish.config.data import HandlerConfig
from burnish.data.files import ListRows
from burnish.data.handlers import REASONING, HandledRows
from burnish.data.load import load_train
from burnish.errors import UserError

ALPACA, R1, MATH = (f"{name}AlpacaStyleInstructionHandler" for name in ("", "R1", "Math17k"))
DEEPSCALER = {"prompt": "problem", "query": "", "response": "answer", "system": ""}


def handled(rows, **settings):
    return HandledRows(ListRows(rows, "raw.json"), replace(HandlerConfig(), **settings), "prompt")


def test_alpaca_columns_by_their_usual_names():
    rows = handled([{"instruction": "Add.", "input": "1 and 2", "output": "3", "system": "Be brief."}], name=ALPACA)
    assert rows.row(0)["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add.\n1 and 2"},
    ]
    assert rows.row(0)["reward_model"] == {"ground_truth": "3"}
    assert rows.row(0)["extra_info"]["row"]["input"] == "1 and 2"


def test_a_mapped_part_and_one_that_is_left_out():
    raw = [{"problem": "1+2", "input": "not this", "answer": "3"}]
    rows = handled(raw, name=R1, map_keys=DEEPSCALER, prompt_type="qwen_r1")
    assert rows.row(0)["prompt"] == [
        {"role": "system", "content": REASONING},
        {"role": "user", "content": "1+2"},
    ]
    assert rows.row(0)["reward_model"] == {"ground_truth": "3"}


def test_a_chat_and_an_object_with_the_ground_truth():
    raw = [{"prompt": [{"role": "user", "content": "1+2"}], "reward_model": {"ground_truth": "3"}}]
    keys = {"prompt": "prompt", "query": "", "response": "reward_model", "system": ""}
    rows = handled(raw, name=MATH, map_keys=keys, prompt_type="empty")
    assert rows.row(0)["prompt"] == "1+2" and rows.row(0)["reward_model"] == {"ground_truth": "3"}


def test_prompts_without_a_template(config, tokenizer, write):
    file = write("raw.json", [{"instruction": "1+2=", "output": "3"}])
    cfg = config(train_files=[file], handler=HandlerConfig(name=ALPACA, prompt_type="empty"))
    batch = load_train(cfg, tokenizer, run_seed=0).batch([0], 0)
    assert tokenizer.decode(batch["prompt_ids"].lists()[0]) == "1+2="
    assert batch["ground_truth"] == ["3"] and batch["data_source"] == ["raw"]


def test_a_data_source_of_the_raw_rows_stays(config, tokenizer, write):
    file = write("raw.json", [{"instruction": "1+2=", "output": "3", "data_source": "mine"}])
    cfg = config(train_files=[file], handler=HandlerConfig(name=ALPACA))
    data = load_train(cfg, tokenizer, run_seed=0)
    assert data.data_sources() == {"mine"} and data.batch([0], 0)["data_source"] == ["mine"]


@pytest.mark.parametrize(
    ("raw", "settings", "problem"),
    [
        ({"problem": "1"}, {"map_keys": DEEPSCALER}, r"raw\.json has no column 'answer' for the response.*problem"),
        ({"output": "1"}, {}, r"raw\.json has no column 'instruction' for the prompt"),
        ({"instruction": "", "output": "1"}, {}, r"raw\.json, row 0: 'instruction' is empty"),
        ({"instruction": 5, "output": "1"}, {}, r"raw\.json, row 0: 'instruction' must be text, not int"),
        ({"instruction": "5", "output": None}, {}, r"raw\.json, row 0: 'output' is empty"),
        ({"instruction": "5", "output": "1"}, {"map_keys": {"chosen": "a"}}, "chosen cannot be mapped"),
        ({"instruction": "5", "output": "1"}, {"name": MATH}, "row 0: the prompt must be a list of messages"),
        ({"instruction": [{"role": "user", "content": "5"}], "output": "1"}, {"name": MATH}, "no ground_truth"),
    ],
)
def test_bad_rows_and_maps_are_named(raw, settings, problem):
    with pytest.raises(UserError, match=problem):
        handled([raw], **{"name": ALPACA, **settings}).row(0)


def test_other_settings_are_another_dataset():
    raw = [{"instruction": "5", "output": "1"}]
    one, same, other = handled(raw, name=R1), handled(raw, name=R1), handled(raw, name=R1, prompt_type="qwen_r1")
    assert one.fingerprint == same.fingerprint != other.fingerprint
