"""The names in `burnish.config` are those of the tables; every key is documented in both languages, and read."""

from __future__ import annotations

import ast
import re

import pytest

from burnish.config import names
from burnish.config.adapters import PAIRS
from burnish.config.aliases import find_alias
from burnish.config.explain import UNSUPPORTED
from burnish.config.jobs import JOBS
from burnish.config.status import status_of
from burnish.config.tree import tree
from burnish.config.values import is_interpolation
from burnish.config.zh import chinese

from .source import imported, modules

# The tables behind the names: where each is, and the variable of `names` that lists it.
TABLES = {
    "ADVANTAGES": "burnish.algos.advantages",
    "LOSSES": "burnish.algos.losses",
    "KL_ESTIMATORS": "burnish.algos.kl",
    "KL_CONTROLLERS": "burnish.algos.kl",
    "LOSS_AGGREGATIONS": "burnish.algos.aggregate",
    "WHITENINGS": "burnish.algos.whitening",
    "OBSERVATIONS": "burnish.algos.advantages",
    "IS_LEVELS": "burnish.algos.correction",
    "REJECTIONS": "burnish.algos.correction",
    "REWEIGHT_METHODS": "burnish.algos.filtration",
    "KL_ORDERS": "burnish.loop.credit",
    "SCHEDULES": "burnish.algos.schedules",
    "ENGINES": "burnish.rollout.engine",
    "REWARD_MANAGERS": "burnish.reward.managers",
    "VERIFIERS": "burnish.reward.verifiers",
    "LOGGERS": "burnish.log.logger",
    "TRUNCATIONS": "burnish.data.encode",
    "INVALID_MEDIA": "burnish.data.invalid_media",
    "HANDLERS": "burnish.data.handlers",
    "PROMPT_TYPES": "burnish.data.handlers",
    "RESUME_MODES": "burnish.loop.state",
    "SCORE_NORMALIZERS": "burnish.algos.shaping",
    "ASYNC_MODES": "burnish.loop.schedules",
    "TOOL_PARSERS": "burnish.rollout.chat.tool_calls",
    "HISTORIES": "burnish.rollout.chat.history",
    "TOKENIZATION_CHECKS": "burnish.rollout.chat.drift",
}
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def table(variable):
    return imported().tables[f"{TABLES[variable]}.{variable}"]


@pytest.mark.parametrize("variable", TABLES)
def test_every_row_of_a_table_has_its_name_in_the_config(variable):
    unnamed = set(table(variable)["names"]) - set(getattr(names, variable))
    assert not unnamed, f"burnish.config.names.{variable} lacks {sorted(unnamed)}: nobody can choose them"


@pytest.mark.parametrize("variable", TABLES)
def test_every_name_in_the_config_is_a_row_or_not_supported(variable):
    listed = getattr(names, variable)
    keys = [leaf.key for leaf in tree().leaves.values() if leaf.facts.allowed == tuple(listed)]
    assert keys, f"no key offers the names of {variable}"
    missing = set(listed) - set(table(variable)["names"])
    acting = [f"{key}={name}" for name in missing for key in keys if status_of(key, name).kind not in UNSUPPORTED]
    assert not acting, f"offered, but neither there nor refused: {acting}"


@pytest.mark.parametrize("variable", TABLES)
def test_a_table_names_the_key_that_chooses_from_it(variable):
    key = table(variable)["key"]
    assert tree().find(key) is not None or find_alias(key, "train") is not None, f"{key} is no key"


@pytest.mark.parametrize("variable", sorted(name for name in vars(names) if name.isupper() and name != "TABLES"))
def test_every_name_has_a_line_in_both_languages(variable):
    listed = getattr(names, variable)
    if not isinstance(listed, dict):
        assert listed <= names.ADVANTAGES.keys()
        return
    assert [name for name, line in listed.items() if not line.en.strip() or not line.zh.strip()] == []


@pytest.mark.parametrize("job", JOBS)
def test_every_key_is_documented_in_english(job):
    assert [leaf.key for leaf in tree(job).leaves.values() if not leaf.doc.strip()] == []


@pytest.mark.parametrize("job", JOBS)
def test_every_key_is_documented_in_chinese(job):
    leaves = tree(job).leaves.values()
    assert [leaf.key for leaf in leaves if not CHINESE.search(chinese(leaf.owner, leaf.name))] == []


@pytest.mark.parametrize("job", JOBS)
def test_every_section_is_documented(job):
    own = {section.key: vars(section.cls).get("__doc__") or "" for section in tree(job).sections.values()}
    # A dataclass without a docstring is given its signature as one.
    assert [key for key, doc in own.items() if not doc.strip() or doc.startswith(own_signature(key, job))] == []


def own_signature(key, job):
    return f"{tree(job).sections[key].cls.__name__}("


# Files of the config package that turn keys into other keys, or into what a package is handed.
HANDS_ON = ("derive", "adapters", "async_rules", "megatron", "ranks")


def test_every_acting_key_is_read_by_somebody():
    """`cfg.x` must stand in a package, or where the config hands it on (HANDS_ON, or a default "${x}")."""
    read = {
        node.attr
        for module in modules()
        if module.package != "config" or module.path.stem in HANDS_ON
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    read |= {name for pair in PAIRS for name in pair}
    leaves = tree().leaves.values()
    followed = {leaf.default[2:-1] for leaf in leaves if is_interpolation(leaf.default) and leaf.name in read}
    acting = [leaf for leaf in leaves if status_of(leaf.key).kind == "acts" and has_choice(leaf)]
    assert len(acting) > 50
    unread = [leaf.key for leaf in acting if leaf.name not in read and leaf.path not in followed]
    assert not unread, "they act, but nobody reads them:\n" + "\n".join(unread)


def has_choice(leaf):
    """A key whose every other value is refused has nothing to act on."""
    others = [value for value in leaf.facts.allowed or () if value != leaf.default]
    return not others or any(status_of(leaf.key, value).kind not in UNSUPPORTED for value in others)
