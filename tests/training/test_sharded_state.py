"""The state of a sharded role: written by any number of ranks, read by any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoModelForCausalLM

from burnish.config.adapters import AdapterSettings
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.lora import add_adapters
from burnish.training.backend import create_backend
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext, build_mesh
from burnish.training.policy import Policy
from tests.ranks import run_ranks
from tests.training.conftest import CPU, TEMPERATURE, make_batch, settings

ALL = ["model", "optimizer", "extra", "hf_model"]
KEY = "actor_rollout_ref.actor.checkpoint.load_contents"
ADAPTER = AdapterSettings(
    key="actor_rollout_ref.model",
    rank=3,  # no multiple of the ranks
    alpha=6,
    dropout=0.0,
    target_modules="all-linear",
    exclude_modules=None,
    adapter_path=None,
    dora=False,
    dtype=None,
    init_a=None,
    init_b="normal",
)


def make(folder: str, parallel: ParallelContext, adapted: bool, averaged: bool) -> Policy:
    model = load_causal_lm(ModelSource(folder), PACKED, torch.float32)
    adapters = add_adapters(model, ADAPTER, dtype=torch.float32, seed=4) if adapted else None
    backend = create_backend(model, CPU, torch.float32, adapters=adapters, parallel=parallel)
    changes = {"ppo_mini_batch_size": 6, "optim.lr": 1e-2, "ema_beta": 0.5 if averaged else None}
    config = settings("actor_rollout_ref.actor", changes)
    backend.create_optimizer(config.optim, 10, 1)
    return Policy(
        backend,
        config,
        temperature=TEMPERATURE,
        rows_per_prompt=1,
        max_response_length=12,
        inference_micro_batch=MicroBatchSize(rows=4),
        seed=1,
    )


def facts(policy: Policy) -> dict:
    average = policy.optimizer.average
    return {
        "weights": {name: tensor.clone() for name, tensor in policy.weights()},
        "average": None if average is None else {n: _whole(t) for n, t in average.weights.items()},
        "counters": (policy.optimizer.steps, policy.optimizer.updates),
    }


def _whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def parallel_of(rank: int | None) -> ParallelContext:
    return SINGLE_PROCESS if rank is None else build_mesh(CPU)


def update_and_save(rank: int | None, folder: str, batch, out: str, adapted: bool, averaged: bool):
    """One step, a checkpoint of a copy, one more step; returns the state after each step."""
    policy = make(folder, parallel_of(rank), adapted, averaged)
    policy.update(batch, 1)
    contents = [part for part in ALL if not (adapted and part == "hf_model")]
    write = policy.writer(contents, copy=True)
    saved = facts(policy)
    policy.update(batch, 2)
    write(Path(out))
    if not (adapted or averaged):  # as earlier versions wrote it
        state, kwargs = policy.backend.state_dict(["model", "optimizer"]), {"no_dist": rank is None}
        dcp.save(state, checkpoint_id=Path(out) / "earlier", process_group=parallel_group(policy), **kwargs)
    policy.export(Path(out) / "exported", None)
    return saved, facts(policy)


def parallel_group(policy: Policy):
    return policy.backend.parallel.checkpoint_group


def load_and_update(rank: int | None, folder: str, batch, out: str, adapted: bool, averaged: bool):
    policy = make(folder, parallel_of(rank), adapted, averaged)
    policy.load(Path(out), ["model", "optimizer", "extra"], key=KEY)
    loaded = facts(policy)
    policy.update(batch, 2)
    return loaded, facts(policy)


def load_hub(rank: int | None, folder: str, out: str):
    policy = make(folder, parallel_of(rank), False, False)
    policy.load(Path(out), ["hf_model"], key=KEY)
    return facts(policy)["weights"]


# adapted, averaged
CASES = {"full": (False, True), "adapters": (True, False), "plain": (False, False)}


def save_all(rank: int, folder: str, batch, out: str):
    return {name: update_and_save(rank, folder, batch, f"{out}/{name}", *case) for name, case in CASES.items()}


def load_all(rank: int, folder: str, batch, out: str):
    cases = {"full": CASES["full"], "adapters": CASES["adapters"], "one process": CASES["plain"]}
    found = {name: load_and_update(rank, folder, batch, f"{out}/{name}", *case) for name, case in cases.items()}
    return found | {"hub": load_hub(rank, folder, f"{out}/plain"), "earlier": load_earlier(rank, folder, out)}


def load_earlier(rank: int | None, folder: str, out: str):
    """The weights of a checkpoint of two ranks in the earlier format."""
    policy = make(folder, parallel_of(rank), False, False)
    policy.load(Path(out, "plain", "earlier"), ["model", "optimizer"], key=KEY)
    return facts(policy)["weights"]


@pytest.fixture(scope="module")
def ranks(model_folder, tokenizer, tmp_path_factory):
    """What two ranks and one process save, and what two ranks load of it: (folder, batch, saved, loaded)."""
    out = tmp_path_factory.mktemp("sharded")
    for name in (*CASES, "one process"):
        (out / name).mkdir()
    batch = make_batch(tokenizer)
    saved = run_ranks(2, save_all, str(model_folder), batch, str(out))
    alone = update_and_save(None, str(model_folder), batch, str(out / "one process"), *CASES["plain"])
    loaded = run_ranks(2, load_all, str(model_folder), batch, str(out))
    return out, batch, saved, alone, loaded


def same(found: dict, expected: dict, exact: bool) -> None:
    assert found["counters"] == expected["counters"]
    for part in ("weights", "average"):
        assert (found[part] is None) == (expected[part] is None)
        for name, tensor in (expected[part] or {}).items():
            tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-6}
            torch.testing.assert_close(found[part][name], tensor, **tolerance, msg=name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["full", "adapters"])
def test_two_ranks_save_what_one_and_two_load(ranks, model_folder, name):
    out, batch, (first, second), _, loaded = ranks
    out, (saved, updated) = out / name, first[name]
    same(second[name][0], saved, exact=True)
    assert json.loads((out / "extra.json").read_text())["updates"] == 1
    alone = load_and_update(None, str(model_folder), batch, str(out), *CASES[name])
    for found, again in [alone, *(rank[name] for rank in loaded)]:
        same(found, saved, exact=True)
        same(again, updated, exact=False)
    exported = AutoModelForCausalLM.from_pretrained(out / "exported").state_dict()
    averaged = updated["average"] is not None
    assert averaged == (name == "full")
    expected = updated["average"] if averaged else updated["weights"]
    for weight, tensor in expected.items():
        torch.testing.assert_close(exported[weight], tensor, rtol=0, atol=1e-6, msg=weight)
    if averaged:
        hub = AutoModelForCausalLM.from_pretrained(out / "huggingface").state_dict()
        assert all(torch.equal(hub[weight], tensor) for weight, tensor in saved["average"].items())


def test_one_process_saves_what_two_ranks_load(ranks):
    _, _, _, (saved, updated), loaded = ranks
    for rank in loaded:
        same(rank["one process"][0], saved, exact=True)
        same(rank["one process"][1], updated, exact=False)


def test_the_earlier_format_moves_between_numbers_of_ranks(ranks, model_folder):
    out, _, (first, _), _, loaded = ranks
    expected = first["plain"][1]["weights"]
    for found in (load_earlier(None, str(model_folder), str(out)), *(rank["earlier"] for rank in loaded)):
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_hugging_face_folder_is_read_into_shards(ranks):
    _, _, (first, _), _, loaded = ranks
    for rank in loaded:
        assert all(torch.equal(rank["hub"][name], tensor) for name, tensor in first["plain"][0]["weights"].items())
