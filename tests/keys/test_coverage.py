"""Every acting key has exactly one row, with a value other than its default. Keys that act, keys that are refused here,
keys that are not shown here, inert, refused and pending keys are counted apart.

An observable is a result of the run: tensors, files, requests, metrics, printed lines, or a call of a library or
program that is not ours (Ray, torch.distributed, SGLang's command line). A config value that is only stored on an
object is none.
"""

from collections import Counter
from operator import attrgetter

from burnish.config import load
from burnish.config.explain import UNSUPPORTED
from burnish.config.overrides import entry_of, read_overrides
from burnish.config.settings import Setting
from burnish.config.status import check_supported, inert_notices, status_of
from burnish.config.tree import tree
from burnish.config.values import convert

from ..vllm import rows as vllm
from .table import ROWS

KEYS = [row.key for row in (*ROWS, *vllm.ROWS)]

# Acting keys whose rows may end in a refusal instead of an observation, depending on the machine.
REFUSED_WITHOUT = {
    "actor_rollout_ref.model.use_liger": "a GPU",
    "trainer.device": "a GPU",
    "reward.isolate": "Linux namespaces",
    "reward.network": "Linux namespaces",
    "actor_rollout_ref.rollout.multi_turn.enable": "tools, a simulated user or an agent",
}
# Acting keys that need vLLM; tests/vllm checks them where it is installed.
NOT_SHOWN = {row.key for row in vllm.ROWS}

NUM_ACTING, NUM_INERT, NUM_REFUSED, NUM_PENDING = 662, 115, 4, 0


def test_every_acting_key_has_a_row():
    acting = {key for key in tree().leaves if status_of(key).kind == "acts"}
    assert acting - set(KEYS) == set()


def test_only_acting_keys_have_a_row():
    assert {key: status_of(key).kind for key in KEYS if status_of(key).kind != "acts"} == {}
    assert set(KEYS) <= set(tree().leaves)


def test_no_key_has_two_rows():
    assert [key for key, count in Counter(KEYS).items() if count > 1] == []


def test_keys_are_counted_by_what_is_shown_of_them():
    """A refusal never counts as acting."""
    refused = {row.key for row in ROWS if row.refused}
    kinds = Counter(status_of(key).kind for key in tree().leaves)
    counts = {
        "act": len(ROWS) - len(refused),
        "refused here": len(refused),
        "not shown here": len(NOT_SHOWN),
        "inert with a notice": kinds["inert"],
        "refused": kinds["refused"],
        "pending": kinds["pending"],
    }
    print(counts, {key: f"refused without {REFUSED_WITHOUT[key]}" for key in refused})
    assert refused <= set(REFUSED_WITHOUT)
    assert counts["act"] + counts["refused here"] + counts["not shown here"] == NUM_ACTING
    assert counts["inert with a notice"] == NUM_INERT
    assert (counts["refused"], counts["pending"]) == (NUM_REFUSED, NUM_PENDING)
    assert sum(counts.values()) == len(tree().leaves)


def test_every_inert_key_gives_a_notice_and_every_unsupported_key_an_error_or_a_notice():
    cfg = load(["actor_rollout_ref.model.path=model"], check=False).cfg
    silent = []
    for key in tree().leaves:
        settings = {key: Setting("another value", "test")}
        notices, errors = inert_notices(cfg, settings), check_supported(cfg, settings)
        kind = status_of(key).kind
        if (kind == "inert" and not (notices and not errors)) or (kind in UNSUPPORTED and not (notices or errors)):
            silent.append(key)
    assert silent == []


def test_every_value_is_another_than_the_default():
    defaults = load(["actor_rollout_ref.model.path=model"], check=False).cfg
    wrong = {}
    for row in ROWS:
        leaf = tree().leaves[row.key]
        if isinstance(row.value, str):  # otherwise it is a path in the kit, which no default is
            value = written(leaf, row.value)
            if value == attrgetter(leaf.path)(defaults) or status_of(row.key, value).kind != "acts":
                wrong[row.key] = value
    assert wrong == {}


def written(leaf, value):
    """The value of the key once this is written on the command line."""
    (override,), errors = read_overrides([f"{leaf.key}={value}"])
    assert errors == []
    return convert(leaf, entry_of(override).value)
