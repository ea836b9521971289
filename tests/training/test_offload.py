"""Offloading, forced on a CPU: the same code moves the same tensors, from one memory to itself."""

import copy

import pytest
import torch

from burnish.training.backend import BackendOptions
from burnish.training.backends.single import SingleBackend
from burnish.training.offload import TensorOffload, activations_on_cpu, has_own_memory, updated_on_cpu
from burnish.training.optim import OptimizerOptions
from burnish.training.packing import PackedRows
from burnish.training.state import load_role, role_writer

from .conftest import CPU, settings


def test_a_cpu_has_nothing_to_offload_from():
    assert not has_own_memory(CPU) and has_own_memory(torch.device("cuda"))


def test_tensors_move_and_come_back_with_what_was_done_to_them():
    weight, frozen = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3), requires_grad=False)
    offload = TensorOffload(lambda: [weight, frozen], CPU, changes=lambda tensor: tensor.requires_grad)
    places = [weight.data_ptr(), frozen.data_ptr()]
    with offload.on_device(), offload.on_device():
        assert weight.data_ptr() != places[0] and frozen.data_ptr() != places[1]
        with torch.no_grad():
            weight.add_(1)
    assert [weight.data_ptr(), frozen.data_ptr()] == places, "they live where they lived"
    assert weight.tolist() == [2, 2, 2] and frozen.tolist() == [1, 1, 1]
    with offload.on_device():
        assert weight.tolist() == [2, 2, 2]


def test_what_is_new_finds_a_home_when_it_is_parked():
    tensors = [torch.ones(2)]
    offload = TensorOffload(lambda: tensors, CPU)
    with offload.on_device():
        tensors[0] = torch.full((3,), 5.0)
    with offload.on_device():
        assert tensors[0].tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("weights", "state"),
    [
        (BackendOptions(offload=True), OptimizerOptions(device=CPU)),
        (BackendOptions(), OptimizerOptions(device=CPU, offload=True)),
        (BackendOptions(offload=True), OptimizerOptions(device=CPU, offload=True)),
        (BackendOptions(offload=True), OptimizerOptions(device=CPU, on_cpu=True)),
        (BackendOptions(activations_on_cpu=True), OptimizerOptions(device=CPU)),
    ],
    ids=["weights", "state", "both", "updates on the CPU", "activations"],
)
def test_a_policy_learns_the_same_wherever_its_tensors_wait(make_policy, backend, batch, weights, state):
    plain = make_policy()
    numbers = [plain.update(batch, step).metrics for step in (1, 2)]
    model = copy.deepcopy(backend().model)
    other = make_policy(made=SingleBackend(model, CPU, torch.float32, options=weights))
    optim = settings("actor_rollout_ref.actor", {"optim.lr": 1e-2}).optim
    other.backend.create_optimizer(optim, 10, 1, state)
    assert [other.update(batch, step).metrics for step in (1, 2)] == numbers
    unread = batch.keep("prompt_ids", "responses")
    assert torch.equal(
        other.compute_log_probs(unread)["old_log_probs"].flat, plain.compute_log_probs(unread)["old_log_probs"].flat
    )
    assert all(torch.equal(sent, own) for (_, sent), (_, own) in zip(other.weights(), plain.weights(), strict=True))


def test_activations_wait_elsewhere_and_weights_do_not(backend, batch):
    made = backend()
    rows = PackedRows.of(batch, CPU)
    weights = {parameter.data_ptr() for parameter in made.model.parameters()}
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: seen.append(tensor) or tensor, lambda tensor: tensor):
        made.head_input(rows)
    kept = []
    moved = activations_on_cpu(made.model, CPU)
    pack = moved.pack_hook
    for tensor in seen:
        wrap, home, _ = pack(tensor)
        kept.append((tensor, wrap is not None, home))
    assert any(was_moved for _, was_moved, _ in kept)
    for tensor, was_moved, home in kept:
        base = tensor if tensor._base is None else tensor._base
        assert was_moved == (base.data_ptr() not in weights and tensor.is_floating_point())
        assert was_moved == (home.data_ptr() != tensor.data_ptr())
        assert torch.equal(home, tensor)


def test_an_update_on_the_cpu_writes_back():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 3.0)
    place = weight.data_ptr()
    with updated_on_cpu([weight]):
        assert weight.data_ptr() != place and weight.grad.tolist() == [3, 3]
        with torch.no_grad():
            weight.sub_(weight.grad)
    assert weight.data_ptr() == place and weight.tolist() == [-2, -2] and weight.grad is None


def test_a_loaded_state_goes_where_it_belongs(backend, batch, make_policy, tmp_path):
    """DCP puts the state beside the weights; a state that is offloaded waits elsewhere again."""
    contents = ["model", "optimizer", "extra"]
    plain = make_policy()
    plain.update(batch, 1)
    role_writer(plain.backend, contents)(tmp_path)
    optim = settings("actor_rollout_ref.actor", {"optim.lr": 1e-2}).optim
    for options in (OptimizerOptions(device=CPU, offload=True), OptimizerOptions(device=CPU, on_cpu=True)):
        other = make_policy()
        other.backend.create_optimizer(optim, 10, 1, options)
        load_role(tmp_path, other.backend, contents, key="key")
        assert other.optimizer.offload is None or len(other.optimizer.offload.cpu_copies) == 3 * len(
            other.optimizer.parameters
        )
        again = make_policy()
        load_role(tmp_path, again.backend, contents, key="key")
        assert other.update(batch, 2).metrics == again.update(batch, 2).metrics


def test_activations_come_back_as_they_lay():
    """Turned round, cut out, repeated: a compiled program reads them by their strides."""
    source = torch.randn(4, 6, requires_grad=True)
    given = [source.t() * 1.0, source[:, 1:4] * 1.0, (source * 1.0)[:, 1:4], source.exp().expand(2, 4, 6)]
    saved: list[tuple[int, ...]] = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            return sum(tensor.sum() for tensor in tensors)

        @staticmethod
        def backward(ctx, grad):
            saved.extend(tensor.stride() for tensor in ctx.saved_tensors if 0 not in tensor.stride())
            for tensor, before in zip(ctx.saved_tensors, given, strict=True):
                assert torch.equal(tensor, before)
            return tuple(torch.ones_like(tensor) * grad for tensor in ctx.saved_tensors)

    with activations_on_cpu(torch.nn.Linear(1, 1), CPU):
        total = Keep.apply(*given)
    total.backward()
    assert saved[:3] == [tensor.stride() for tensor in given[:3]]
