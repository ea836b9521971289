"""Keys of actor_rollout_ref.rollout.* as vLLM itself has understood them."""

from __future__ import annotations

from operator import attrgetter

import pytest

from ..keys.kit import Case, Kit
from .rows import ROLLOUT, ROWS, VLLM

# key, another value than the default, where vLLM keeps it, what it then is
KEPT = [
    ("dtype", "float16", "model_config.dtype", "torch.float16"),
    ("max_model_len", "40", "model_config.max_model_len", "40"),
    ("max_num_seqs", "5", "scheduler_config.max_num_seqs", "5"),
    ("max_num_batched_tokens", "77", "scheduler_config.max_num_batched_tokens", "77"),
    ("enable_prefix_caching", "true", "cache_config.enable_prefix_caching", "True"),
    ("enforce_eager", "false", "model_config.enforce_eager", "False"),
    ("load_format", "auto", "load_config.load_format", "auto"),
    ("gpu_memory_utilization", "0.0001", "cache_config.kv_cache_memory_bytes", None),
]


@pytest.fixture(scope="module")
def kit(tmp_path_factory, tiny_folder):
    return Kit(tmp_path_factory.mktemp("keys"), tiny_folder)


@pytest.fixture(scope="module")
def configs(kit):
    """What vLLM makes of the defaults, and of all of KEPT at once."""
    found = []
    for values in ((), tuple(f"{ROLLOUT}.{key}={value}" for key, value, _, _ in KEPT)):
        case = Case(kit, (*VLLM, *values))
        found.append(case.run.rollout.engine.core.config)
        case.close()
    return found


@pytest.mark.parametrize(("key", "value", "place", "expected"), KEPT, ids=[row[0] for row in KEPT])
def test_a_key_reaches_vllm(configs, key, value, place, expected):
    before, after = (str(attrgetter(place)(config)) for config in configs)
    assert before != after and expected in (after, None)


@pytest.mark.timeout(900)  # servers start slowly where others compute too
@pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])
def test_a_key_acts(row, kit):
    row.check(kit)
    assert kit.seen(row.observe, row.after(kit)) == row.expected
