"""A model with images on several ranks: the same log-probs and gradients as on one."""

from __future__ import annotations

import pytest
import torch

from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.parts import check_head
from burnish.models.sequence.method import choose_method
from burnish.models.vision.family import freeze_vision_tower, vision_modules
from burnish.training.backend import BackendOptions, FsdpOptions, MicroBatch, create_backend
from burnish.training.dtensor import full_tensor
from burnish.training.inference import compute_log_probs
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext, build_mesh
from burnish.training.stages import StageOptions
from tests.ranks import run_ranks
from tests.training.conftest import CPU, settings
from tests.vlm import FAMILIES, Vlm, picture, rows_of

CASES = {
    "sharded": ({"balance": False}, BackendOptions()),
    "offloaded": ({"balance": False}, BackendOptions(fsdp=FsdpOptions(offload=True))),
    "by size": ({"balance": False}, BackendOptions(fsdp=FsdpOptions(min_num_params=5000))),
    "sequence": ({"sequence_size": 2}, BackendOptions()),
    "tensor": ({"tensor_size": 2}, BackendOptions()),
    "stages": ({"stages": StageOptions(2)}, BackendOptions()),
}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    def make(name: str):
        vlm = Vlm.make(tmp_path_factory.mktemp(name), name)
        words = [vlm.prompt(text="only words"), vlm.prompt(text="and more of them")]
        images = [vlm.prompt([picture()]), vlm.prompt([picture(seed=1), picture(56, 28, 2)], text="two")]
        return vlm, rows_of([words[0], images[0], images[1], words[1]])

    return make


def run(folder: str, batch, parallel: ParallelContext, options: BackendOptions, frozen: bool = False) -> dict:
    """Log-probs of a batch, and its gradients by name. Micro-batches have one row: a rank's may lack an image while
    others have one."""
    model = load_causal_lm(ModelSource(folder), PACKED, torch.float32)
    if frozen:
        freeze_vision_tower(model, "actor_rollout_ref.actor.freeze_vision_tower")
    backend = create_backend(model, CPU, torch.float32, options=options, parallel=parallel)
    backend.check(lambda model, **given: check_head(model, segments=[4], **given))
    config = settings("actor_rollout_ref.actor", {})
    backend.create_optimizer(config.optim, 10, 1)
    size = MicroBatchSize(rows=1)
    found = {"log_probs": compute_log_probs(backend, batch, 0.7, size).flat}

    def loss(output):
        log_probs, _ = output.log_probs(0.7, False)
        return (log_probs * output.micro_batch.batch["advantages"].flat).sum(), None

    with backend.on_device():
        rows = parallel.shard_batch(batch, size)
        backend.forward_backward([MicroBatch.select(batch, numbers) for numbers in rows], loss)
        if parallel.pipeline_size > 1:
            backend._sum_tied_gradients()  # as an update does
        for name, parameter in backend.model.named_parameters():
            if parameter.grad is not None and name != "lm_head.weight":  # tied to the embedding
                found[name] = full_tensor(parameter.grad).cpu()
    return found


def cases(rank: int, folder: str, batch, names: list[str], frozen: bool):
    found = {}
    for name in names:
        sizes, options = CASES[name]
        found[name] = run(folder, batch, build_mesh(CPU, **sizes), options, frozen)
    return found


def check(vlm, batch, names: list[str], frozen: bool = False) -> None:
    alone = run(str(vlm.folder), batch, SINGLE_PROCESS, BackendOptions(), frozen)
    tower = tuple(vision_modules(vlm.load()))
    assert any(name.startswith(tower) for name in alone) == (not frozen)
    ranks = run_ranks(2, cases, str(vlm.folder), batch, names, frozen)
    for case in names:
        everywhere = {**ranks[0][case], **ranks[1][case]}
        assert everywhere.keys() == alone.keys(), case
        for rank in ranks:
            assert case == "stages" or rank[case].keys() == alone.keys(), case
            for name, found in rank[case].items():
                atol = 1e-6 * max(1.0, float(alone[name].abs().max()))
                torch.testing.assert_close(found, alone[name], rtol=1e-5, atol=atol, msg=f"{case}: {name}")


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3"])
def test_two_ranks_are_one(made, family):
    check(*made(family), ["sharded", "sequence", "stages"])


@pytest.mark.long
def test_two_ranks_are_one_with_a_frozen_tower(made):
    check(*made("qwen2_5_vl"), ["sharded", "sequence", "stages"], frozen=True)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_two_ranks(made, family):
    check(*made(family), list(CASES))


def test_ring_attention_cannot_show_images_whole(made):
    vlm, _ = made("gemma3")
    with pytest.raises(UserError, match="images seen as a whole"):
        choose_method(vlm.load().config, 3, "ulysses_sequence_parallel_size")
    assert choose_method(vlm.load().config, 2, "ulysses_sequence_parallel_size").method.name == "Ulysses"
