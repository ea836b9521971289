"""Every key of real verl commands is known in its job's tree, by its own name or as another spelling."""

import json
from pathlib import Path

import pytest

from burnish.config.aliases import GROUPS, find_alias
from burnish.config.tree import tree

CASES = Path(__file__).parents[3] / "shared" / "cases" / "verl.jsonl"


def job_of(entry):
    words = {"sft": "sft", "generation": "generate", "eval": "eval"}
    return next((job for word, job in words.items() if word in entry), "train")


def known(key, value, job):
    if tree(job).find(key) is not None or (job, key, value) in GROUPS:
        return True
    alias = find_alias(key, job)
    return alias is not None and all(tree(job).find(target) is not None for target in alias[1])


def test_every_key_of_the_cases_is_known():
    if not CASES.exists():
        pytest.skip("shared folder is not here")
    unknown, seen = set(), set()
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        for argument in case["argv"]:
            if argument.startswith("--"):
                continue
            key, _, value = argument.lstrip("+~").partition("=")
            seen.add(key)
            if not known(key, value, job_of(case["entry"])):
                unknown.add((case["entry"], key))
    assert unknown == set()
    assert len(seen) > 300
