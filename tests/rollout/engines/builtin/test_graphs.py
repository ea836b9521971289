"""Decode steps can be captured: they never synchronize with the host, and all layers share one compiled program."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import DraftOptions, Request, Sampling
from burnish.rollout.engines.builtin import graphs
from burnish.rollout.engines.builtin.decode_plan import DecodePlan
from burnish.rollout.engines.builtin.device_batch import PLAIN, SamplingMode
from burnish.rollout.engines.builtin.graphs import CompiledLayers, StepGraphs

from .drafting import verify_all

# On a GPU each of these waits for the device, because the host must know a value or the size of a result.
SYNCS = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::is_nonzero",
    "aten::equal",
    "aten::repeat_interleave",
    "aten::bincount",
}
LOOP = {"device_loop": True, "eager": False, "extra": {"block_size": 16, "sync_interval": 4}}


class SyncRecorder(TorchDispatchMode):
    """Records every operation that a capture would refuse: synchronizations, and tensors made from host numbers."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().split(".")[0]
        made = name == "aten::lift_fresh" and args[0].dim() > 0  # a single number travels with the launch
        masked = name in ("aten::index", "aten::index_put_", "aten::index_put") and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        )
        if name in SYNCS or made or masked:
            self.seen.add(name)
        return function(*args, **(kwargs or {}))


def ready(engine, prompt, sampling):
    """An engine in the middle of a response to two requests."""
    engine.generate([Request(ModelInput(prompt(20)), sampling, 1), Request(ModelInput(prompt(7)), sampling, 2)])
    engine.step()
    return engine.decoder


@pytest.mark.parametrize(
    "mode",
    [
        Sampling(30, ignore_eos=True),
        Sampling(30, top_k=4, top_p=0.9, min_p=0.01, ignore_eos=True, logprobs=2),
        Sampling(30, repetition_penalty=1.2, bad_words=((3, 4),), min_tokens=20),
    ],
    ids=["plain", "restricted", "looks back"],
)
@pytest.mark.parametrize("depth", [0, 3])
def test_a_step_never_syncs_with_the_host(depth, mode, tiny_folder, make_engine, prompt):
    decoder = ready(make_engine(tiny_folder, own_thread=False, drafts=DraftOptions(), **LOOP), prompt, mode)
    body, known = decoder.graphs.get(2, decoder.batch.mode, depth)
    with SyncRecorder() as recorder:
        body.run()
    assert known and recorder.seen == set()


@pytest.mark.parametrize("shared_prefix", [False, True])
def test_no_family_syncs_with_the_host(shared_prefix, family_folder, make_engine, prompt):
    extra = {**LOOP["extra"], "shared_prefix": shared_prefix}
    engine = make_engine(family_folder, own_thread=False, **{**LOOP, "extra": extra})
    decoder = ready(engine, prompt, Sampling(30, ignore_eos=True))
    body, known = decoder.graphs.get(2, PLAIN)
    with SyncRecorder() as recorder:
        body.run()
    assert known and recorder.seen == set()


def test_the_recorder_sees_a_sync():
    with SyncRecorder() as recorder:
        torch.arange(3)[torch.tensor([True, False, True])]
        assert torch.arange(3).sum().item() == 3
    assert recorder.seen >= {"aten::index", "aten::_local_scalar_dense", "aten::lift_fresh"}


def test_capturing_changes_nothing(tiny_folder, make_engine, prompt, monkeypatch):
    """A capture runs the step a few times first; running sequences must not change."""

    class WarmedUp(graphs.EagerStep):
        def __init__(self, body, pool):
            super().__init__(body)
            for _ in range(graphs.WARM_UPS + 1):
                body()

    sampling = [Sampling(25, ignore_eos=True), Sampling(25, repetition_penalty=1.3, ignore_eos=True, logprobs=1)]
    requests = [Request(ModelInput(prompt(20)), one, seed) for seed, one in enumerate(sampling * 3)]
    plain = verify_all(make_engine(tiny_folder, drafts=DraftOptions(), **LOOP))
    expected = [future.result(60) for future in plain.generate(requests)]
    monkeypatch.setattr(graphs, "CapturedStep", WarmedUp)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    tried = verify_all(make_engine(tiny_folder, drafts=DraftOptions(), **LOOP))
    object.__setattr__(tried.decoder.graphs.plan, "captured", True)
    assert [future.result(60) for future in tried.generate(requests)] == expected
    assert all(isinstance(body, WarmedUp) for body in tried.decoder.graphs.steps.values())
    assert {depth for _, _, depth in tried.decoder.graphs.steps} > {0}


@pytest.mark.long
@pytest.mark.parametrize("shared_prefix", [False, True])
def test_all_layers_and_sizes_share_few_programs(
    shared_prefix, family_folder, make_engine, prompt, decoding_as_on_a_gpu
):
    """One for the first size and one for all others, per kind of layer, without graph breaks; as many with drafts."""
    torch._dynamo.reset()
    extra = {**LOOP["extra"], "shared_prefix": shared_prefix}
    engine = make_engine(family_folder, own_thread=False, drafts=DraftOptions(), **{**LOOP, "extra": extra})
    decoder = ready(engine, prompt, Sampling(30, ignore_eos=True))
    counter = CompileCounterWithBackend("aot_eager")
    layers = CompiledLayers(decoder.runner.model, backend=counter)
    for size, depth in ((3, 0), (5, 0), (6, 0), (3, 3), (5, 7), (6, 3)):
        body = decoder._make_step(size, PLAIN, depth)
        decoder.batch.deactivate()
        body()
        expected = decoder.batch.log_probs.device[:2, 0].clone()
        decoder.batch.log_probs.device.zero_()
        decoder.batch.deactivate()
        layers.around(body)()
        assert torch.allclose(decoder.batch.log_probs.device[:2, 0], expected, atol=1e-5)
    kinds = len(set(getattr(decoder.runner.model.config, "layer_types", None) or ["all"]))
    assert counter.frame_count == 4 * kinds
    assert all("forward" not in vars(layer) for layer in layers.layers)


class TestSizes:
    def make(self, made, **plan):
        def body(size, mode, depth):
            made.append((size, mode))
            return lambda: None

        return StepGraphs(None, DecodePlan(**plan), body, lambda: None)

    def test_a_batch_uses_the_next_larger_size(self):
        made = []
        bodies = self.make(made, capture_sizes=(1, 2, 4, 8))
        found = [bodies.get(rows, PLAIN) for rows in (1, 3, 4, 5, 8, 9, 9)]
        assert [known for _, known in found] == [True] * 5 + [False] * 2
        assert [size for size, _ in made] == [1, 4, 8, 9, 9]  # no graph is large enough for nine
        assert found[1][0] is found[2][0]

    def test_sampling_modes_have_their_own_graph(self):
        made = []
        bodies = self.make(made, capture_sizes=(4, 8))
        bodies.get(3, SamplingMode(num_slow=8, restricted=True))
        bodies.get(3, PLAIN)
        bodies.get(4, SamplingMode(num_slow=4, restricted=True))
        assert made == [(4, SamplingMode(num_slow=4, restricted=True)), (4, PLAIN)]

    def test_clear(self):
        made = []
        bodies = self.make(made, capture_sizes=(4,))
        bodies.get(3, PLAIN)
        bodies.clear()
        bodies.get(3, PLAIN)
        assert len(made) == 2
