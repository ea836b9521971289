"""vLLM beside others: one engine over two processes, and one engine in each of two ranks that train together."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.errors import UserError
from burnish.models.load import ModelSource
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.vllm.engine import VllmEngine

from ..ranks import run_ranks
from .compare import assert_log_probs, expected, moved

pytestmark = pytest.mark.timeout(900)  # processes start slowly where others compute too


def test_two_processes_share_one_model(make_engine, their_model, tiny_folder):
    """Weights reach processes that cannot see ours, and so does the way we want log-probs."""
    engine = make_engine(tiny_folder, own_thread=False, tensor_parallel=2, max_num_seqs=16)
    assert engine.core.config.parallel_config.world_size == 2 and not engine.core.in_this_process
    assert_log_probs(their_model(tiny_folder), engine, Sampling(12, temperature=0.7, top_p=0.8), 0.7)
    other = moved(their_model(tiny_folder), seed=5)
    engine.load_weights(other.named_parameters(), version=2)
    assert_log_probs(other, engine, Sampling(12, temperature=0.7, top_p=0.8), 0.7)
    engine.close()


def in_a_rank(rank, folder):
    """An engine among ranks: (its largest error, whether the ranks' group still stands afterwards)."""
    torch.set_num_threads(1)
    options = EngineOptions(
        ModelSource(folder),
        torch.float32,
        torch.device("cpu"),
        (2,),
        max_model_len=64,
        max_num_seqs=8,
        own_thread=False,
    )
    engine = VllmEngine(options)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    engine.load_weights(model.named_parameters(), version=1)
    prompt = (5, 6 + rank)
    futures = engine.generate(
        [Request(ModelInput(prompt), Sampling(8 + 8 * rank, temperature=0.7), seed) for seed in range(3)]
    )
    errors = []
    for future in futures:
        completion = future.result(60)
        wanted = expected(model, prompt, completion.ids, 0.7)
        errors += [abs(one - other) for one, other in zip(completion.log_probs, wanted, strict=True)]
    with pytest.raises(UserError, match="only a vLLM server"):
        VllmEngine(EngineOptions(**vars(options) | {"tensor_parallel": 2}))
    engine.close()
    ranks = torch.tensor([1.0])
    torch.distributed.all_reduce(ranks)
    return max(errors), float(ranks)


def test_each_rank_has_an_engine_of_its_own(tiny_folder):
    """They answer different prompts, of different lengths, and leave the trainer's group alone."""
    for error, ranks in run_ranks(2, in_a_rank, tiny_folder, limit=400.0):
        assert error < 2e-5 and ranks == 2
