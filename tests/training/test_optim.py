import copy

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.config.optim import OptimConfig
from burnish.training.optim import Optimizer


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def optimizer(module, total_steps=10, updates_per_step=1, **settings):
    return Optimizer(module, OptimConfig(**settings), total_steps, updates_per_step)


def set_gradients(module, size):
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.grad = size * torch.randn(parameter.shape, generator=generator)


def applied_norm(made, module, grad_clip):
    """The norm of the gradients that AdamW gets to see."""
    seen = []
    step = made.inner.step

    def watch():
        seen.append(float(torch.cat([p.grad.flatten() for p in module.parameters()]).norm()))
        return step()

    made.inner.step = watch
    norm = float(made.update(grad_clip))
    return norm, seen


@pytest.mark.parametrize(("grad_clip", "clipped"), [(0.5, True), (1e6, False), (0, False)])
def test_clipping(module, grad_clip, clipped):
    set_gradients(module, size=10.0)
    norm, (seen,) = applied_norm(optimizer(module), module, grad_clip)
    assert norm > 10
    assert seen == pytest.approx(0.5 if clipped else norm, rel=1e-4)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_is_thrown_away(module, poison):
    made = optimizer(module, lr=1e-2)
    before = [p.detach().clone() for p in module.parameters()]
    set_gradients(module, size=1.0)
    module.weight.grad[0, 0] = poison
    state = [tensor.clone() for tensor in made._state()]
    assert not torch.isfinite(made.update(grad_clip=1.0))
    assert all(torch.equal(a, b) for a, b in zip(state, made._state(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert (made.skipped, made.updates) == (1, 1)
    assert all(p.grad is None for p in module.parameters())


def test_the_update_is_adamws(module):
    made = optimizer(module, lr=1e-2, weight_decay=0.1, betas=[0.8, 0.9])
    before = module.weight.detach().clone()
    set_gradients(module, size=1.0)
    gradient = module.weight.grad.clone()
    made.update(grad_clip=0)
    expected = before * (1 - 1e-2 * 0.1) - 1e-2 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(module.weight.detach(), expected)


@pytest.mark.parametrize("arguments", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_sgd_is_torchs(module, arguments):
    theirs = copy.deepcopy(module)
    made = optimizer(module, lr=1e-2, weight_decay=0.1, optimizer="sgd", override_optimizer_config=dict(arguments))
    plain = torch.optim.SGD(theirs.parameters(), lr=1e-2, weight_decay=0.1, **arguments)
    for size in (1.0, float("nan"), 2.0):
        set_gradients(module, size)
        made.update(grad_clip=0)
        if size == size:  # the update of nan is skipped
            set_gradients(theirs, size)
            plain.step()
    for ours, expected in zip(module.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)


def rates(made, module, steps, updates):
    """The learning rate of every update, as AdamW has it."""
    seen = []
    for _ in range(steps):
        for _ in range(updates):
            set_gradients(module, 1.0)
            made.update(1.0)
            seen.append(made.inner.param_groups[0]["lr"])
        made.steps += 1
    return seen


def test_the_schedule_counts_steps(module):
    made = optimizer(module, 4, 2, lr=1.0, lr_warmup_steps=2, warmup_style="linear")
    assert rates(made, module, steps=4, updates=2) == pytest.approx([0.5, 0.5, 1, 1, 1, 1, 0.5, 0.5])


def test_the_schedule_counts_updates(module):
    made = optimizer(module, 4, 2, lr=1.0, lr_warmup_steps=2, warmup_style="linear", lr_step_unit="update")
    expected = [0.5, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    assert rates(made, module, steps=4, updates=2) == pytest.approx(expected)


def test_warm_up_as_a_share_and_a_horizon_of_its_own(module):
    assert optimizer(module, 20, lr_warmup_steps_ratio=0.25).rate.warmup == 5
    made = optimizer(module, 20, lr_warmup_steps_ratio=0.25, total_training_steps=8)
    assert (made.rate.warmup, made.rate.total) == (2, 8)
    assert optimizer(module, 20, lr_warmup_steps=3, lr_warmup_steps_ratio=0.5).rate.warmup == 3


def test_the_floor_of_a_decaying_schedule(module):
    made = optimizer(module, 2, lr=2.0, warmup_style="cosine", min_lr_ratio=0.25)
    made.steps = 50
    assert made.lr == pytest.approx(0.5)


def test_a_frozen_parameter_stays(module):
    module.bias.requires_grad_(False)
    made = optimizer(module, lr=1.0)
    assert len(made.parameters) == 1


def test_adamws_state_is_there_from_the_start_and_changes_no_update(module):
    """Saving an optimizer that has made no update must not be the thing that makes its state."""
    made = optimizer(module, lr=1e-2)
    twin = nn.Linear(4, 3)
    twin.load_state_dict(module.state_dict())
    lazy = torch.optim.AdamW(twin.parameters(), lr=1e-2, weight_decay=0.01, fused=True)
    assert {float(state["step"]) for state in made.inner.state.values()} == {0.0}
    for _ in range(3):
        for network in (module, twin):
            set_gradients(network, 1.0)
        made.update(grad_clip=0)
        lazy.step()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters(), strict=True))


def test_weight_decay_may_spare_biases_and_norms():
    module = torch.nn.Linear(3, 3)
    made = optimizer(module, 4, lr=0.1, weight_decay=0.5, decay_matrices_only=True)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.update(1.0)
    assert torch.equal(module.bias, before["bias"])
    assert torch.allclose(module.weight, before["weight"] * (1 - 0.1 * 0.5))


def test_a_share_of_updates_is_rounded_up(module):
    assert optimizer(module, 10, 1, lr_warmup_steps_ratio=0.03, lr_step_unit="update").rate.warmup == 1
    assert optimizer(module, 10, 1, lr_warmup_steps_ratio=0.03).rate.warmup == 0


class Kernels(TorchDispatchMode):
    """Names of the kernels that run, without allocations and views."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def kernels_of(made):
    with Kernels() as kernels:
        made.inner.step()
    return kernels.names


@pytest.fixture
def meshes():
    """Two meshes of one rank."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield [init_device_mesh("cpu", (1,), mesh_dim_names=(name,)) for name in ("data", "tensor")]
    distributed.destroy_process_group()


@pytest.mark.parametrize(("decay_matrices_only", "groups"), [(False, 1), (True, 2)])
def test_one_kernel_updates_all_weights_of_a_group(decay_matrices_only, groups):
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    made = optimizer(module, lr=1e-2, weight_decay=0.1, decay_matrices_only=decay_matrices_only)
    set_gradients(module, 1.0)
    made.inner.found_inf = torch.zeros(())
    assert kernels_of(made).count("aten::_fused_adamw_") == groups


def test_one_kernel_updates_sharded_weights_of_several_meshes(meshes):
    """To the bits of plain weights, as FSDP and tensor ranks have them."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sharded = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for layer, twin, mesh in zip(sharded, plain, meshes, strict=True):
        for name, parameter in twin.named_parameters():
            setattr(layer, name, nn.Parameter(distribute_tensor(parameter.detach().clone(), mesh, [Shard(0)])))
    made = [optimizer(module, lr=1e-2) for module in (plain, sharded)]
    set_gradients(plain, 1.0)
    for parameter, twin in zip(sharded.parameters(), plain.parameters(), strict=True):
        parameter.grad = distribute_tensor(twin.grad.clone(), parameter.device_mesh, [Shard(0)])
    for each in made:
        each.inner.found_inf = torch.zeros(())
    assert [kernels_of(each).count("aten::_fused_adamw_") for each in made] == [1, 1]
    for parameter, twin in zip(sharded.parameters(), plain.parameters(), strict=True):
        assert isinstance(parameter, DTensor) and torch.equal(parameter.full_tensor(), twin)
