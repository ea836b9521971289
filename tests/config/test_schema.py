"""The JSON schema accepts what `load` accepts, and rejects what it rejects."""

import json

import jsonschema
import pytest
import yaml

from burnish.cli.main import main
from burnish.config import JOBS, load
from burnish.config.explain import describe_all
from burnish.config.schema import config_schema
from burnish.config.tree import to_plain, tree
from burnish.config.values import convert
from burnish.errors import UserError

from ..laws.source import ROOT

VALUES = (None, True, False, 0, 1, -1, -2, 2, 0.5, 1.5, 10**9, "text", "1", "1e-6", "-3", "", "true", "a,b")
OTHERS = ([], ["a"], [1], [1.5], [None], {}, {"a": 1}, "${data.seed}", "x.py:f", "pkg://a.b:f")


@pytest.fixture(scope="module")
def schemas():
    return {job: config_schema(job) for job in JOBS}


def errors(schema, config):
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(config)]


def part(schema, key):
    for name in key.split("."):
        schema = schema["properties"][name]
    return schema


@pytest.mark.parametrize("job", JOBS)
def test_the_default_config_is_valid(job, schemas):
    jsonschema.Draft7Validator.check_schema(schemas[job])
    assert errors(schemas[job], to_plain(JOBS[job]())) == []
    assert errors(schemas[job], yaml.safe_load(load(job=job, check=False).yaml())) == []


@pytest.mark.parametrize(
    "config",
    [
        {"trainer": {"sed": 1}},
        {"trainre": {}},
        {"trainer": {"seed": "one"}},
        {"trainer": 5},
        {"algorithm": {"adv_estimator": "gpro"}},
        {"actor_rollout_ref": {"rollout": {"n": 0}}},
        {"actor_rollout_ref": {"actor": {"optim": {"lr": "fast"}}}},
        {"data": {"shuffle": "maybe"}},
        {"data": {"train_files": {"a": 1}}},
    ],
)
def test_a_wrong_config_is_rejected(config, schemas):
    assert errors(schemas["train"], config) != []
    with pytest.raises(UserError):
        load(config, check=False)


def test_files_with_aliases_interpolations_and_hydras_entries_are_valid(schemas):
    config = {
        "defaults": ["ppo_trainer", "_self_"],
        "hydra": {"run": {"dir": "x"}},
        "algorithm": {"_target_": "verl.Config", "adv_estimator": "mine.py:f"},
        "actor_rollout_ref": {"actor": {"optim": {"lr_scheduler_type": "cosine", "lr": "1e-6"}}},
        "data": {"train_files": "a.parquet,b.parquet", "train_batch_size": "${oc.env:SIZE}"},
        "critic": None,
    }
    assert errors(schemas["train"], config) == []
    for path in (ROOT / "examples").glob("*.yaml"):
        assert errors(schemas["train"], yaml.safe_load(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("job", JOBS)
def test_every_value_that_a_key_accepts_is_valid_and_others_are_not(job, schemas):
    """Numbers and lists written as text are the exception: a schema cannot check their bounds."""
    wrong = []
    for leaf in tree(job).leaves.values():
        validator = jsonschema.Draft7Validator(part(schemas[job], leaf.key))
        for value in (*VALUES, *OTHERS, *(leaf.facts.allowed or ())):
            accepted, valid = is_accepted(leaf, value), validator.is_valid(value)
            if accepted != valid and (accepted or not isinstance(value, str)):
                wrong.append((leaf.key, value))
    assert wrong == []


def is_accepted(leaf, value):
    try:
        convert(leaf, value)
    except UserError:
        return False
    return True


def test_a_key_has_its_default_allowed_values_and_description(schemas):
    rows = {row.key: row for row in describe_all()}
    estimator = part(schemas["train"], "algorithm.adv_estimator")
    assert estimator["default"] == rows["algorithm.adv_estimator"].default
    assert estimator["description"].startswith(rows["algorithm.adv_estimator"].doc)
    assert {"grpo", "gae"} <= set(estimator["anyOf"][0]["enum"])
    rate = part(schemas["train"], "actor_rollout_ref.actor.optim.lr")
    assert any(choice.get("type") == "number" and "minimum" in str(choice).lower() for choice in rate["anyOf"])
    assert part(schemas["train"], "trainer")["description"]
    assert all(part(schemas["train"], key)["description"] for key in rows)


def test_the_command_prints_it(capsys):
    assert main(["schema", "eval", "--lang", "zh"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(config_schema("eval", "zh")))
    assert printed["$schema"].startswith("http://json-schema.org/draft-07")
