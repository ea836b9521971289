"""Router replay: updates use exactly the experts that were recorded, and the engine's mismatch shrinks."""

import pytest
import torch

from burnish.batch import Ragged
from burnish.errors import UserError
from burnish.training.packing import row_lengths
from tests.training import layouts
from tests.training.layouts import SINGLE_PROCESS, Case, policy_of

R2, R3 = ({"router_replay.mode": mode, "ppo_epochs": 1} for mode in ("R2", "R3"))


def watch(policy):
    """Experts to which each token of each pass is sent, by layer: [tokens, k], and the weights they get."""
    seen = []
    for number, layer in enumerate(policy.backend.model.model.layers):
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts.register_forward_pre_hook(
                lambda module, args, number=number: seen.append((number, args[1].clone(), args[2].detach().clone()))
            )
    return seen


def perturb(policy, scale=0.5):
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in policy.backend.model.named_parameters():
            if ".gate.weight" in name:
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(scale * noise * parameter.std())


@pytest.mark.parametrize("recompute", [None, (None, None), ("uniform", 2), ("block", 1)])
def test_an_update_uses_the_recorded_experts(batch, recompute):
    """Whatever the routers would choose by then, and in recomputed layers too."""
    policy = policy_of(Case("mixtral", torch.float32, R2, recompute), SINGLE_PROCESS)
    batch = batch.add(**{"routed_experts": policy.compute_log_probs(batch)["routed_experts"]})
    perturb(policy)
    recorded = batch["routed_experts"]
    assert torch.equal(recorded.lengths, row_lengths(batch))
    seen = watch(policy)
    policy.update(batch, 1)
    wanted = recorded.flat.long()
    for number in range(4):
        found = torch.cat([chosen for layer, chosen, _ in seen if layer == number])
        times = len(found) / len(wanted)
        assert times in (1, 2)  # twice where layers are recomputed
        counts = torch.bincount(found.reshape(-1), minlength=4)
        assert torch.equal(counts, int(times) * torch.bincount(wanted[:, number].reshape(-1), minlength=4))


def test_replay_shrinks_the_mismatch_with_an_engine_of_other_routers(batch, without):
    """An engine whose routers differ a little: with its choices, the trainer's log-probs are nearer to its own."""
    engine = policy_of(Case("qwen3 mixture", torch.float32, R2), SINGLE_PROCESS)
    perturb(engine, scale=0.15)
    theirs = engine.compute_log_probs(batch)
    trainer = policy_of(Case("qwen3 mixture", torch.float32, R3), SINGLE_PROCESS)
    replayed = trainer.compute_log_probs(batch.add(routed_experts=theirs["routed_experts"]))["old_log_probs"]
    own = policy_of(Case("qwen3 mixture", torch.float32), SINGLE_PROCESS).compute_log_probs(batch)["old_log_probs"]
    gap = (own.flat - theirs["old_log_probs"].flat).abs().mean()
    assert gap > 0
    assert (replayed.flat - theirs["old_log_probs"].flat).abs().mean() < 0.7 * gap


def test_own_choices_change_nothing_and_others_do(batch):
    plain = layouts.train(policy_of(Case("mixtral", changes={"ppo_epochs": 1}), SINGLE_PROCESS), batch)
    policy = policy_of(Case("mixtral", changes=R2), SINGLE_PROCESS)
    own = policy.compute_log_probs(batch)["routed_experts"]
    policy.plan = policy_of(Case("mixtral", changes=R2 | {"ppo_mini_batch_size": 6}), SINGLE_PROCESS).plan
    same = layouts.train(policy, batch.add(routed_experts=own))
    layouts.same({**same, "columns": {}}, {**plain, "columns": {}}, 1e-6)
    other = policy_of(Case("mixtral", changes=R2), SINGLE_PROCESS)
    changed = layouts.train(other, batch.add(routed_experts=Ragged.like((own.flat + 1) % 4, own)))
    assert abs(changed["numbers"][0]["actor/pg_loss"] - plain["numbers"][0]["actor/pg_loss"]) > 1e-4
    gates = [name for name in changed["gradient"] if ".gate.weight" in name]
    assert gates and all(changed["gradient"][name].norm() > 0 for name in gates)  # routers learn from the weights


def test_the_engines_choices_are_not_optional(batch):
    policy = policy_of(Case("mixtral", changes=R3), SINGLE_PROCESS)
    for call in (lambda: policy.compute_log_probs(batch), lambda: policy.update(batch, 1)):
        with pytest.raises(UserError, match="without the engine's choices"):
            call()
