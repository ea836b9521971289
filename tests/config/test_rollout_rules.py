"""Rules across the keys of a rollout section."""

import pytest

from burnish.config import load
from burnish.config.rollout import SamplingConfig
from burnish.config.rollout_rules import check_rollout
from burnish.errors import UserError


def broken(**settings):
    rollout = SamplingConfig(**{"prompt_length": 100, "response_length": 20, **settings})
    return [error.key for error in check_rollout(rollout, "rollout")]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"top_p": 0.0}, "rollout.top_p"),
        ({"min_tokens": 21}, "rollout.min_tokens"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 99}, "rollout.max_num_batched_tokens"),
    ],
)
def test_a_broken_rule_names_its_key(settings, key):
    assert broken(**settings) == [key]


def test_what_is_just_allowed():
    assert broken() == []
    assert broken(min_tokens=20, enable_chunked_prefill=False, max_num_batched_tokens=100) == []
    assert broken(max_num_batched_tokens=1) == []


def test_the_hf_engine_reports_keys_without_effect():
    base = ["data.train_files=t.parquet", "actor_rollout_ref.model.path=m", "trainer.device=cpu"]
    key = "actor_rollout_ref.rollout.enable_prefix_caching"
    notices = load([*base, "actor_rollout_ref.rollout.name=hf", f"{key}=true"]).notices
    assert [key in notice and "paged KV cache" in notice for notice in notices] == [True]
    assert load([*base, f"{key}=true"]).notices == []


def test_unknown_load_formats_are_refused():
    with pytest.raises(UserError, match="Did you mean 'safetensors'"):
        load(["actor_rollout_ref.rollout.load_format=safetensor"], check=False)
    assert load(["actor_rollout_ref.rollout.load_format=dummy"], check=False).cfg.actor_rollout_ref.rollout.load_format
