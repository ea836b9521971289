"""The tree: every key documented in both languages, typed, spelled once."""

import pytest
from omegaconf import OmegaConf

from burnish.config.jobs import JOBS
from burnish.config.tree import english, tree
from burnish.config.zh import DOCS, chinese
from burnish.errors import UserError


@pytest.mark.parametrize("job", JOBS)
def test_every_leaf_has_an_english_and_a_chinese_doc(job):
    lacking = [
        leaf.key for leaf in tree(job).leaves.values() if not leaf.doc.strip() or not chinese(leaf.owner, leaf.name)
    ]
    assert lacking == []


@pytest.mark.parametrize("job", JOBS)
def test_docs_are_sentences_of_their_language(job):
    for leaf in tree(job).leaves.values():
        assert leaf.doc.endswith("."), leaf.key
        text = chinese(leaf.owner, leaf.name)
        assert text.endswith("。") and any("\u4e00" <= letter <= "\u9fff" for letter in text), leaf.key


def test_the_chinese_catalogue_has_no_entry_without_a_field():
    used = {
        f"{base.__name__}.{leaf.name}"
        for job in JOBS
        for leaf in tree(job).leaves.values()
        for base in leaf.owner.__mro__
    }
    assert set(DOCS) - used == set()


@pytest.mark.parametrize("job", JOBS)
def test_a_job_builds_and_resolves_from_its_defaults(job):
    built = OmegaConf.to_object(OmegaConf.structured(JOBS[job]))
    assert type(built) is JOBS[job]


def test_keys_and_sections_do_not_collide():
    for job in JOBS:
        known = tree(job)
        assert set(known.leaves).isdisjoint(known.sections)


def test_place_specific_defaults_are_seen():
    assert tree().leaves["actor_rollout_ref.actor.optim.lr"].default == 1e-6
    assert tree().leaves["critic.optim.lr"].default == 1e-5


def test_find_reaches_into_free_mappings_only():
    leaf, rest = tree().find("custom_reward_function.reward_kwargs.bonus.tool")
    assert (leaf.key, rest) == ("custom_reward_function.reward_kwargs", "bonus.tool")
    assert tree().find("trainer.seed.deeper") is None
    assert tree().find("trainer") is None


def test_dashed_names_are_keys():
    leaf = tree().leaves["trainer.worker_nsight_options.capture-range-end"]
    assert leaf.path == "trainer.worker_nsight_options.capture_range_end"


def test_inherited_docs_are_found():
    leaf = tree().leaves["actor_rollout_ref.rollout.temperature"]
    assert english(leaf.owner, leaf.name).startswith("Sampling temperature")


def test_unknown_job_is_named():
    with pytest.raises(UserError, match="no such job"):
        tree("trian")
