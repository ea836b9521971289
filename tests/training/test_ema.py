import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.training.state import load_role, role_writer

ALL = ["model", "optimizer", "extra"]
KEY = "actor_rollout_ref.actor.checkpoint.load_contents"


@pytest.fixture
def averaging(make_policy):
    return lambda **more: make_policy(ema_beta=0.9, **more)


def save(folder, role, contents=ALL):
    folder.mkdir()
    role_writer(role.backend, contents)(folder)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_average_follows_the_weights(averaging, batch, weights):
    policy = averaging(ppo_mini_batch_size=3)
    expected = {name: w.double() for name, w in weights(policy).items()}
    update, seen = policy.optimizer.inner.step, []

    def step(*args):
        update(*args)
        seen.append(weights(policy))

    policy.optimizer.inner.step = step
    policy.update(batch, 1)
    assert len(seen) == 2
    for now in seen:
        expected = {name: 0.9 * average + 0.1 * now[name].double() for name, average in expected.items()}
    for name, average in policy.optimizer.average.weights.items():
        assert average.dtype == torch.float32
        torch.testing.assert_close(average.double(), expected[name], rtol=0, atol=1e-6)
    assert not torch.equal(policy.optimizer.average.weights[name], weights(policy)[name])


def test_no_average_is_kept_unless_asked_for(make_policy):
    assert make_policy().optimizer.average is None


def test_averaging_changes_no_weight(averaging, make_policy, batch, weights):
    one, other = averaging(), make_policy()
    for policy in (one, other):
        policy.update(batch, 1)
    assert equal(weights(one), weights(other))


def test_a_skipped_update_leaves_the_average(averaging, batch):
    policy = averaging()
    before = {name: w.clone() for name, w in policy.optimizer.average.weights.items()}
    parameter = policy.optimizer.parameters[0]
    parameter.grad = torch.full_like(parameter, torch.nan)
    policy.optimizer.update(1.0)
    assert equal(policy.optimizer.average.weights, before) and policy.optimizer.skipped == 1


def test_a_resumed_average_continues_bit_by_bit(averaging, batch, weights, tmp_path):
    trained, fresh = averaging(), averaging()
    trained.update(batch, 1)
    save(tmp_path / "actor", trained)
    load_role(tmp_path / "actor", fresh.backend, ALL, key=KEY)
    assert equal(fresh.optimizer.average.weights, trained.optimizer.average.weights)
    for policy in (trained, fresh):
        policy.update(batch, 2)
    assert equal(fresh.optimizer.average.weights, trained.optimizer.average.weights)
    assert equal(weights(fresh), weights(trained))


def test_without_a_saved_average_it_starts_at_the_loaded_weights(averaging, make_policy, batch, weights, tmp_path):
    plain, fresh = make_policy(), averaging()
    plain.update(batch, 1)
    save(tmp_path / "actor", plain)
    load_role(tmp_path / "actor", fresh.backend, ALL, key=KEY)
    assert equal(fresh.optimizer.average.weights, weights(plain))


def test_a_run_that_keeps_none_loads_a_checkpoint_that_has_one(averaging, make_policy, batch, weights, tmp_path):
    trained, fresh = averaging(), make_policy()
    trained.update(batch, 1)
    save(tmp_path / "actor", trained)
    load_role(tmp_path / "actor", fresh.backend, ALL, key=KEY)
    assert equal(weights(fresh), weights(trained)) and fresh.optimizer.average is None


def test_the_hugging_face_folder_holds_the_average(averaging, batch, weights, tmp_path):
    policy = averaging()
    policy.update(batch, 1)
    now = weights(policy)
    save(tmp_path / "actor", policy, [*ALL, "hf_model"])
    written = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "actor" / "huggingface").named_parameters())
    assert equal({name: p.detach() for name, p in written.items()}, policy.optimizer.average.weights)
    assert equal(weights(policy), now), "the policy itself keeps its own"
