"""The loss scale: in and out again, halved by what is not finite, and saved."""

import json

import torch

from burnish.training.backends.single import SingleBackend
from burnish.training.loss_scale import GROWTH_INTERVAL, INITIAL, LossScale
from burnish.training.optim import OptimizerOptions
from burnish.training.state import load_role, role_writer

from .conftest import CPU, settings


def test_it_is_one_where_nothing_is_scaled():
    scale, loss = LossScale(enabled=False), torch.tensor(2.0)
    scale.update(torch.tensor(False))
    assert scale.scaled(loss) is loss and scale.factor == 1


def test_gradients_are_divided_again():
    scale, weight = LossScale(enabled=True), torch.nn.Parameter(torch.ones(2))
    scale.scaled((weight * torch.tensor([1.0, 3.0])).sum()).backward()
    assert weight.grad.tolist() == [INITIAL, 3 * INITIAL]
    scale.unscale([weight])
    assert weight.grad.tolist() == [1, 3]


def test_it_learns_from_updates():
    scale = LossScale(enabled=True)
    scale.update(torch.tensor(False))
    assert scale.factor == INITIAL / 2
    for _ in range(GROWTH_INTERVAL):
        scale.update(torch.tensor(True))
    assert scale.factor == INITIAL
    for _ in range(100):
        scale.update(torch.tensor(False))
    assert scale.factor == 1


def test_the_scale_is_restored_from_a_checkpoint(backend, batch, make_policy, tmp_path):
    optim = settings("actor_rollout_ref.actor", {"optim.lr": 1e-2}).optim

    def half():
        made = SingleBackend(backend().model, CPU, torch.float16)
        policy = make_policy(made=made)
        made.create_optimizer(optim, 10, 1, OptimizerOptions(device=CPU, scale_loss=True))
        return policy

    policy = half()
    policy.optimizer.scale.factor = 2.0**60  # overflows: the first update is thrown away
    assert policy.update(batch, 1).metrics["actor/skipped_updates"] == 1
    contents = ["model", "optimizer", "extra"]
    role_writer(policy.backend, contents)(tmp_path)
    assert json.loads((tmp_path / "extra.json").read_text())["loss_scale"] == [2.0**59, 0]
    again = half()
    load_role(tmp_path, again.backend, contents, key="key")
    assert again.optimizer.scale.factor == 2.0**59
