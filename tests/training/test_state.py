import json
import resource

import pytest
import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.errors import UserError
from burnish.training.checkpoint import Checkpoints, damage
from burnish.training.state import copy_to_cpu, load_role, quiet_dcp, role_writer

ALL = ["model", "optimizer", "extra"]


def save(folder, role, contents=ALL, tokenizer=None):
    folder.mkdir()
    role_writer(role.backend, contents, tokenizer)(folder)


def load(folder, role, contents=ALL):
    load_role(folder, role.backend, contents, key="actor_rollout_ref.actor.checkpoint.load_contents")


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def moments(role):
    return [{name: value.clone() for name, value in state.items()} for state in role.optimizer.inner.state.values()]


@pytest.fixture
def trained(make_policy, batch):
    """A policy after two steps, on a schedule that moves."""
    policy = make_policy(**{"optim.warmup_style": "cosine", "optim.lr_warmup_steps": 3})
    policy.update(batch, 1)
    policy.update(batch, 2)
    return policy


@pytest.fixture
def fresh(make_policy):
    return make_policy(**{"optim.warmup_style": "cosine", "optim.lr_warmup_steps": 3})


def test_the_next_update_after_loading_is_bit_identical(trained, fresh, batch, weights, tmp_path):
    save(tmp_path / "actor", trained)
    load(tmp_path / "actor", fresh)
    assert equal(weights(fresh), weights(trained))
    here, there = fresh.update(batch, 3).metrics, trained.update(batch, 3).metrics
    assert here == there
    assert equal(weights(fresh), weights(trained))
    assert all(equal(a, b) for a, b in zip(moments(fresh), moments(trained), strict=True))


@pytest.mark.parametrize("arguments", [{}, {"momentum": 0.9}])
def test_sgd_resumes_bit_identically(make_policy, batch, weights, tmp_path, arguments):
    """Without momentum it has no state at all."""
    sgd = {"optim.optimizer": "sgd", "optim.override_optimizer_config": arguments}
    trained, fresh = make_policy(**sgd), make_policy(**sgd)
    trained.update(batch, 1)
    save(tmp_path / "actor", trained)
    load(tmp_path / "actor", fresh)
    assert equal(weights(fresh), weights(trained)) and any(moments(fresh)) == bool(arguments)
    assert fresh.update(batch, 2).metrics == trained.update(batch, 2).metrics
    assert equal(weights(fresh), weights(trained))


def test_a_checkpoint_of_an_earlier_version_resumes_bit_identically(trained, fresh, batch, weights, tmp_path):
    """Earlier versions wrote DCP's own format, whose index is a pickle."""
    folder = tmp_path / "actor"
    save(folder, trained)
    for file in folder.glob("shards*"):
        file.unlink()
    with quiet_dcp():
        dcp.save(trained.backend.state_dict(ALL), checkpoint_id=folder, no_dist=True)
    assert (folder / ".metadata").is_file() and list(folder.glob("*.distcp"))
    load(folder, fresh)
    assert fresh.update(batch, 3).metrics == trained.update(batch, 3).metrics
    assert equal(weights(fresh), weights(trained))
    assert all(equal(a, b) for a, b in zip(moments(fresh), moments(trained), strict=True))


def test_large_states_are_split_into_files(trained, fresh, weights, tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.training.shards.FILE_BYTES", 4096)
    save(tmp_path / "actor", trained)
    assert len(list((tmp_path / "actor").glob("shards-00000-*.safetensors"))) > 3
    load(tmp_path / "actor", fresh)
    assert equal(weights(fresh), weights(trained))


def test_a_copy_is_that_of_when_it_was_taken(trained, fresh, batch, weights, tmp_path):
    expected = weights(trained)
    write = role_writer(trained.backend, [*ALL, "hf_model"], copy=True)
    trained.update(batch, 3)
    (tmp_path / "actor").mkdir()
    write(tmp_path / "actor")
    load(tmp_path / "actor", fresh)
    assert equal(weights(fresh), expected) and not equal(weights(trained), expected)
    assert fresh.optimizer.updates == 2
    load(tmp_path / "actor", trained, ["hf_model"])
    assert equal(weights(trained), expected)


def test_tensors_that_are_one_are_copied_once():
    weight = torch.ones(2, 3)
    copied = copy_to_cpu({"a": weight, "b": weight.view(2, 3), "c": [weight.T, 5], "step": torch.zeros(())}, {})
    assert copied["a"] is copied["b"] is not weight
    weight.add_(1)
    assert copied["a"].sum() == 6 and copied["c"][0].shape == (3, 2) and copied["c"][1] == 5


def test_counters_come_back(trained, fresh, tmp_path):
    trained.optimizer.skipped = 4
    save(tmp_path / "actor", trained)
    load(tmp_path / "actor", fresh)
    assert (fresh.optimizer.steps, fresh.optimizer.updates, fresh.optimizer.skipped) == (2, 2, 4)
    assert fresh.optimizer.lr == trained.optimizer.lr


def test_the_critic_too(make_critic, batch, weights, tmp_path):
    critic, other = make_critic(), make_critic()
    critic.update(batch, 1)
    save(tmp_path / "critic", critic)
    load(tmp_path / "critic", other)
    assert critic.update(batch, 2) == other.update(batch, 2)
    assert equal(weights(critic), weights(other))


def test_saving_changes_nothing(make_policy, batch, weights, tmp_path):
    """Not even before the first update, when AdamW has no moments yet."""
    saved, unsaved = make_policy(), make_policy()
    save(tmp_path / "before", saved)
    for step in (1, 2):
        saved.update(batch, step)
        save(tmp_path / f"after {step}", saved)
        unsaved.update(batch, step)
    assert equal(weights(saved), weights(unsaved))


def test_a_role_without_updates_is_restored_without_optimizer_state(make_policy, batch, weights, tmp_path):
    """As the policy is during critic_warmup."""
    waiting, resumed, other = make_policy(), make_policy(), make_policy()
    save(tmp_path / "actor", waiting)
    load(tmp_path / "actor", resumed)
    resumed.update(batch, 1)
    other.update(batch, 1)
    assert equal(weights(resumed), weights(other))


def test_weights_alone_may_be_loaded(trained, fresh, weights, tmp_path):
    save(tmp_path / "actor", trained)
    load(tmp_path / "actor", fresh, ["model"])
    assert equal(weights(fresh), weights(trained))
    assert fresh.optimizer.updates == 0
    assert all(float(state["exp_avg"].abs().max()) == 0 for state in moments(fresh))


def test_the_optimizer_alone_may_be_loaded(trained, fresh, weights, tmp_path):
    before = weights(fresh)
    save(tmp_path / "actor", trained)
    load(tmp_path / "actor", fresh, ["optimizer", "extra"])
    assert equal(weights(fresh), before)
    assert fresh.optimizer.updates == 2
    assert all(equal(a, b) for a, b in zip(moments(fresh), moments(trained), strict=True))


def test_a_hugging_face_folder_alone_restores_the_weights(trained, fresh, weights, tmp_path):
    save(tmp_path / "actor", trained, ["hf_model", "extra"])
    load(tmp_path / "actor", fresh, ["hf_model", "extra"])
    assert equal(weights(fresh), weights(trained))
    assert fresh.backend.model.config._attn_implementation == trained.backend.model.config._attn_implementation


@pytest.mark.parametrize(
    ("saved", "asked", "missing"),
    [
        (["model"], ["model", "optimizer"], "optimizer"),
        (["optimizer", "extra"], ["model"], "model"),
        (["model", "optimizer"], ALL, "extra"),
        (["extra"], ["model"], "model"),
        (["hf_model"], ALL, "model"),
        (["extra"], ["hf_model"], "hf_model"),
    ],
)
def test_a_part_that_was_not_saved_cannot_be_loaded(trained, fresh, weights, tmp_path, saved, asked, missing):
    before = weights(fresh)
    save(tmp_path / "actor", trained, saved)
    with pytest.raises(UserError) as caught:
        load(tmp_path / "actor", fresh, asked)
    assert missing in caught.value.problem and str(tmp_path / "actor") in caught.value.problem
    assert caught.value.key == "actor_rollout_ref.actor.checkpoint.load_contents"
    assert equal(weights(fresh), before)


def test_a_role_that_was_not_saved_cannot_be_loaded(fresh, tmp_path):
    with pytest.raises(UserError, match="has no critic"):
        load(tmp_path / "critic", fresh)


def test_save_contents_decides_what_is_written(trained, tmp_path):
    save(tmp_path / "model", trained, ["model"])
    save(tmp_path / "all", trained, ALL)
    assert not (tmp_path / "model" / "extra.json").exists()
    assert json.loads((tmp_path / "all" / "extra.json").read_text()) == {
        "steps": 2,
        "updates": 2,
        "skipped": 0,
        "schedule_steps": trained.optimizer.schedule_steps,
    }

    def size(folder):
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))

    assert size(tmp_path / "all") > 2.5 * size(tmp_path / "model")


@pytest.mark.parametrize("contents", [["model"], ["model", "hf_model"]])
def test_the_hugging_face_folder_explains_itself(trained, tokenizer, tmp_path, contents):
    save(tmp_path / "actor", trained, contents, tokenizer)
    files = {path.name for path in (tmp_path / "actor" / "huggingface").iterdir()}
    assert files >= {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert ("model.safetensors" in files) == ("hf_model" in contents)


@torch.no_grad()
def test_the_hugging_face_folder_loads_in_transformers(trained, tokenizer, batch, tmp_path):
    save(tmp_path / "actor", trained, ["hf_model"], tokenizer)
    hub = tmp_path / "actor" / "huggingface"
    theirs = AutoModelForCausalLM.from_pretrained(hub)
    ids = batch["prompt_ids"][3][None]
    trained.backend.model.eval()
    ours = trained.backend.model(ids, segments=[ids.shape[1]]).logits
    torch.testing.assert_close(theirs(ids).logits, ours, rtol=1e-5, atol=1e-5)
    assert "burnish" not in (hub / "config.json").read_text()
    assert AutoTokenizer.from_pretrained(hub).eos_token == tokenizer.eos_token


@pytest.mark.parametrize("contents", [ALL, ["hf_model"]])
def test_a_real_write_error_keeps_the_old_checkpoint(trained, tmp_path, contents):
    """The libraries that write tensors have exceptions of their own; the user gets a UserError for all of them."""
    checkpoints = Checkpoints(tmp_path)

    def actor(folder):
        role_writer(trained.backend, contents)(folder)

    checkpoints.save(1, {"actor": actor}, {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))  # no file may grow beyond this
    try:
        with pytest.raises(UserError) as caught:
            checkpoints.save(2, {"actor": actor}, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "global_step_1" in caught.value.text()
    assert checkpoints.steps() == [1] and damage(checkpoints.path(1)) is None
    checkpoints.save(2, {"actor": actor}, {"step": 2})
    assert damage(checkpoints.path(2)) is None
