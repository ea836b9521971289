"""What one can see of a role that is taught, read, saved and loaded. `role` is policy, critic or reference."""

from __future__ import annotations

from functools import cache

import torch

from burnish.loop.state import save
from burnish.models.parts import backbone
from burnish.training.optim import Optimizer

from .kit import Case, fixed_batch, recorded
from .row import Observe

INFERENCE = {
    "policy": "compute_log_probs",
    "reference": "compute_log_probs",
    "critic": "compute_values",
    "judge": "compute_scores",
}


def update(case: Case, role: str) -> dict[str, float]:
    """The numbers of one step's teaching."""
    taught = getattr(case.run.learner, role).update(fixed_batch(case.run), step=1)
    return taught if isinstance(taught, dict) else taught.metrics


@cache
def numbers(role: str, *names: str) -> Observe:
    """Those of teaching."""
    return lambda case: {name: found for name, found in update(case, role).items() if name in names}


@cache
def num_updates(role: str) -> Observe:
    def count(case: Case) -> int:
        update(case, role)
        return getattr(case.run.learner, role).optimizer.updates

    return count


PASSES = {"policy": "log_probs", "critic": "values", "reference": "log_probs"}  # of a role's backend


@cache
def taught_rows(role: str) -> Observe:
    """The response tokens of each micro-batch of teaching, in order."""

    def rows(case: Case) -> list[list[int]]:
        calls = recorded(getattr(case.run.learner, role).backend, PASSES[role])
        update(case, role)
        return [sorted(call[0].targets.tolist()) for call in calls]

    return rows


@cache
def num_taught(role: str) -> Observe:
    """Micro-batches of teaching."""
    return lambda case: len(taught_rows(role)(case))


@cache
def update_tokens(role: str) -> Observe:
    """The tokens that an update computes."""

    def count(case: Case) -> int:
        calls = recorded(getattr(case.run.learner, role).backend, PASSES[role])
        update(case, role)
        return sum(len(call[0].ids) for call in calls)

    return count


@cache
def inference_tokens(role: str) -> Observe:
    """The tokens that a pass without gradients computes."""

    def count(case: Case) -> int:
        calls = recorded(getattr(case.run.learner, role).backend, PASSES[role])
        getattr(getattr(case.run.learner, role), INFERENCE[role])(fixed_batch(case.run))
        return sum(len(call[0].ids) for call in calls)

    return count


@cache
def num_read(role: str) -> Observe:
    """Micro-batches of reading."""

    def count(case: Case) -> int:
        calls = recorded(getattr(case.run.learner, role).backend, PASSES[role])
        getattr(getattr(case.run.learner, role), INFERENCE[role])(fixed_batch(case.run))
        return len(calls)

    return count


@cache
def layer_passes(role: str) -> Observe:
    """How often the first layer runs in one update: twice where activations are computed again."""

    def count(case: Case) -> int:
        passes: list[int] = []
        layer = backbone(getattr(case.run.learner, role).backend.model).layers[0]
        layer.register_forward_pre_hook(lambda *_: passes.append(1))
        update(case, role)
        return len(passes)

    return count


@cache
def taught_weights(role: str) -> Observe:
    """All weights after one step's teaching."""

    def weights(case: Case) -> torch.Tensor:
        update(case, role)
        model = getattr(case.run.learner, role).backend.model
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    return weights


@cache
def gradient_norm(role: str) -> Observe:
    """The norm of the gradient that the first update was given, from AdamW's first moment."""

    def norm(case: Case) -> float:
        update(case, role)
        optimizer: Optimizer = getattr(case.run.learner, role).optimizer
        moments = [optimizer.inner.state[parameter]["exp_avg"].flatten() for parameter in optimizer.parameters]
        return float(torch.cat(moments).norm()) / (1 - optimizer.config.betas[0])

    return norm


@cache
def rates(role: str) -> Observe:
    """The learning rate of every update over six steps, two updates each."""

    def over_steps(case: Case) -> list[float]:
        optimizer: Optimizer = getattr(case.run.learner, role).optimizer
        found = []
        for update in range(12):
            optimizer.steps, optimizer.updates = update // 2, update
            found.append(optimizer.lr)
        return found

    return over_steps


@cache
def resumed_rate(role: str) -> Observe:
    """The learning rate of the next update after a resume."""
    return lambda case: getattr(case.resumed().learner, role).optimizer.lr


@cache
def num_trained(role: str) -> Observe:
    """The weights that updates change."""
    return lambda case: len(getattr(case.run.learner, role).optimizer.parameters)


@cache
def saved_files(role: str) -> Observe:
    """What a checkpoint holds of a role."""

    def files(case: Case) -> list[str]:
        save(case.run)
        folder = case.run.recorder.checkpoints.path(0) / role
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    return files


@cache
def loaded_steps(role: str) -> Observe:
    """How many steps the role's optimizer has made, after a resume."""
    return lambda case: getattr(case.resumed().learner, role).optimizer.steps
