"""What one can see of a key: each function takes a Case and gives a value to compare."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import burnish.data.measure
import burnish.loop.api
from burnish.batch import Batch
from burnish.config import Loaded
from burnish.errors import UserError, WorkerDied
from burnish.loop.credit import credit
from burnish.loop.fit import fit
from burnish.loop.restart import restarting
from burnish.loop.run import Run
from burnish.loop.state import save
from burnish.models.model_input import ModelInput
from burnish.models.parts import backbone
from burnish.reward.sample import Sample
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin.decode_plan import decode_plan, uses_device_loop
from burnish.rollout.engines.builtin.engine import BuiltinEngine

from ..rollout.engines.builtin.drafting import verify_all
from .kit import PROMPTS, Case, fixed_batch, recorded
from .row import Observe

# data


def prompts(case: Case) -> Batch:
    return case.run.rollout.train_data.batch(range(PROMPTS), epoch=0)


def prompt_ids(case: Case) -> list[list[int]]:
    return prompts(case)["prompt_ids"].lists()


def longest_prompt(case: Case) -> int:
    return max(map(len, prompt_ids(case)))


def columns(case: Case) -> set[str]:
    return set(prompts(case))


def media_digests(case: Case) -> list[bytes]:
    return [item.digest for row in prompts(case)["media"] for item in row]


def num_media(case: Case) -> int:
    return len(media_digests(case))


def media_tokens(case: Case) -> list[int]:
    return [item.num_tokens for row in prompts(case)["media"] for item in row]


def tower_trains(case: Case) -> bool:
    """Whether a whole run changes a weight of the vision tower."""
    model = case.run.learner.policy.backend.model
    tower = [parameter for name, parameter in model.named_parameters() if ".visual." in name]
    before = [parameter.detach().clone() for parameter in tower]
    case.fitted()
    return not all(map(torch.equal, before, tower))


def data_sources(case: Case) -> list[str]:
    return prompts(case)["data_source"]


def num_train(case: Case) -> int:
    return len(case.run.rollout.train_data)


def num_val(case: Case) -> int:
    return 0 if case.run.rollout.val_data is None else len(case.run.rollout.val_data)


def first_batch(case: Case) -> list[int]:
    return case.run.rollout.sampler.next()[0]


def batch_size(case: Case) -> int:
    return len(first_batch(case))


def measuring_processes(case: Case) -> int:
    """Of the pool that measures prompts; here its processes are threads. 0: no pool."""
    pools = [0]

    class Threads(ThreadPoolExecutor):
        def __init__(self, workers: int, context: object, **start: Any) -> None:
            pools.append(workers)
            super().__init__(workers, **start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burnish.data.measure, "ProcessPoolExecutor", Threads)
        patch.setattr(os, "cpu_count", lambda: 4)
        assert len(case.run.rollout.train_data) > 0
    return pools[-1]


def validation_calls(case: Case) -> list[list[tuple[int, ...]]]:
    """The prompts of each call of the engine in a run that only validates."""
    return [[request.ids for request in call] for call in case.fitted().requests]


# models


def policy_weights(case: Case) -> float:
    return _size_of(case.run.learner.policy.backend.model)


def critic_weights(case: Case) -> float:
    return _size_of(backbone(case.run.learner.critic.backend.model))


def _size_of(module: torch.nn.Module) -> float:
    return float(sum(parameter.detach().double().abs().sum() for parameter in module.parameters()))


def policy_class(case: Case) -> str:
    return type(case.run.learner.policy.backend.model).__name__


def critic_class(case: Case) -> str:
    return type(case.run.learner.critic.backend.model).__name__


def tokenizer_class(case: Case) -> str:
    return type(case.run.recorder.tokenizer).__name__


def imports_external_lib(case: Case) -> bool:
    sys.modules.pop("keys_external_lib", None)
    case.resumed()
    return "keys_external_lib" in sys.modules


def device(case: Case) -> str:
    return case.run.learner.policy.backend.device.type


# rollout


def step_batch(case: Case) -> Batch:
    """The responses to the first prompts, as a step gathers them."""
    case.run.sync_weights()
    return case.run.rollout.collect(prompts(case), step=1)


def responses(case: Case) -> list[list[int]]:
    return step_batch(case)["responses"].lists()


def response_lengths(case: Case) -> list[int]:
    return list(map(len, responses(case)))


def longest_response(case: Case) -> int:
    return max(response_lengths(case))


def num_responses(case: Case) -> int:
    return len(responses(case))


def rollout_log_probs(case: Case) -> list[float]:
    return step_batch(case)["rollout_log_probs"].flat.tolist()


def validation_responses(case: Case) -> list[list[int]]:
    case.run.sync_weights()
    return case.run.rollout.collect_validation(prompts(case))["responses"].lists()


def num_validation_responses(case: Case) -> int:
    return len(validation_responses(case))


def engine_class(case: Case) -> str:
    return type(case.run.rollout.engine).__name__


def engine_dtype(case: Case) -> str:
    return str(next(case.run.rollout.engine.runner.model.parameters()).dtype)


def cache_blocks(case: Case) -> int:
    """Blocks of the engine's KV cache."""
    engine = case.run.rollout.engine
    engine.decoder.open_cache()
    return engine.scheduler.blocks.pool.num_free


def padded_batches(case: Case) -> tuple[int, ...]:
    """The batch size to which a GPU engine pads 1 to 16 sequences for its CUDA graphs; empty without graphs."""
    options = replace(case.run.rollout.engine.options, device=torch.device("cuda"))
    if not uses_device_loop(options):
        return ()
    plan = decode_plan(options, "qwen2")
    return tuple(plan.capture_size(number) or number for number in range(1, 17)) if plan.captured else ()


def shared_kv_tokens(case: Case) -> float:
    """KV tokens that a GPU's decode loop does not read again for samples of one prompt; here its device is the CPU."""
    ours = case.run.rollout.engine
    engine = BuiltinEngine(replace(ours.options, device_loop=True, max_model_len=128, own_thread=False))
    engine.load_weights(ours.runner.model.named_parameters(), 1)
    requests = [Request(ModelInput((5,) * 100), Sampling(9, ignore_eos=True), seed) for seed in range(4)]
    for future in engine.generate(requests):
        future.result()
    found = engine.stats()["kv_tokens_saved"]
    engine.close()
    return found


def decode_steps(case: Case) -> float:
    step_batch(case)
    return case.run.rollout.engine.stats()["decode_steps"]


def drafts(case: Case) -> tuple[int, int]:
    """Most drafts of a response in a decode step, and most responses in a step with drafts, if all were verified."""
    decoder = case.run.rollout.engine.decoder
    if decoder.drafter is None:
        return 0, 0
    verify_all(case.run.rollout.engine, lambda sequence: [5] * 100)
    calls = recorded(decoder, "_verify")
    step_batch(case)
    return max((max(map(len, call[1])) for call in calls), default=0), max((len(call[0]) for call in calls), default=0)


def prefills(case: Case) -> int:
    calls = recorded(case.run.rollout.engine.runner, "prefill")
    step_batch(case)
    return len(calls)


def scored_rows(case: Case) -> int:
    """Tokens in the engine's forward pass over a sequence of five; a batch-invariant engine pads them."""
    sizes: list[int] = []
    runner = case.run.rollout.engine.runner
    runner.model.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].numel()))
    runner.score([[3, 4, 5, 6, 7]], 1.0)
    return sizes[0]


def engine_metrics(case: Case) -> set[str]:
    """In metrics.jsonl."""
    return {name for name in case.fitted().metrics[2] if name.startswith("engine/")}


def engine_sleeps(case: Case) -> float:
    """In the last step, as metrics.jsonl has it."""
    return case.fitted().metrics[2].get("engine/sleeps", 0.0)


# rewards


def scored(case: Case) -> tuple[float, dict[str, Any], str | None]:
    """One response's score, extras and problem."""
    score = case.run.rollout.scorer.scorer.score([Sample("sums", "77+1", "1", {}, "uid", 0)])[0]
    return score.value, score.extras, score.problem


def score_value(case: Case) -> float:
    return scored(case)[0]


def stops_on_failure(case: Case) -> bool:
    """Whether a failing reward ends a run that has started."""
    scorer = case.run.rollout.scorer.scorer
    try:
        scorer.score([Sample("sums", "77+1", "1", {}, "uid", 0)])
    except UserError:
        return True
    return False


def stops_when_all_fail(case: Case) -> bool:
    """Whether a step in which every reward fails ends the run."""
    scorer = case.run.rollout.scorer.scorer
    scorer.score([Sample("sums", "77+1", "1", {}, "uid", 0)])
    try:
        scorer.check_failures("step 1")
    except UserError:
        return True
    return False


def score_problem(case: Case) -> str | None:
    """Its first words."""
    problem = scored(case)[2]
    return problem and problem.partition(" in ")[0]


def secret_seen(case: Case) -> str | None:
    return scored(case)[1]["seen"]


def scored_elsewhere(case: Case) -> bool:
    """Did the reward function run in a process that this one started?"""
    return scored(case)[1]["process"] != os.getpid() and scored(case)[1]["parent"] == os.getpid()


# algorithm


def credited(case: Case) -> dict[str, list[float]]:
    """Rewards, advantages and returns of two steps one after the other."""
    run, batch = case.run, fixed_batch(case.run)
    kept = [name for name in batch if name not in ("advantages", "returns")]
    steps = [
        credit(batch.keep(*kept), run.learner.algorithm, run.learner.estimator, run.learner.kl)[0] for _ in range(2)
    ]
    names = ("token_level_rewards", "advantages", "returns")
    return {f"{name} {number}": step[name].flat.tolist() for number, step in enumerate(steps) for name in names}


# the run


def has_critic(case: Case) -> bool:
    """Does the run train a critic?"""
    return "critic/vf_loss" in case.fitted().result.metrics


def fitted(observe: Callable[..., Any]) -> Observe:
    """Of a whole run."""
    return lambda case: observe(case.fitted())


files = fitted(lambda run: run.files)
num_lines = fitted(lambda run: len(run.said))
title = fitted(lambda run: run.said[0].partition(":")[0])
last_step = fitted(lambda run: run.result.step)
validated_steps = fitted(lambda run: sorted(run.result.validation))
taught_steps = fitted(lambda run: [step for step, found in run.metrics.items() if "actor/pg_loss" in found])
checkpoints = fitted(lambda run: sorted({f.rpartition("/extra.json")[0] for f in run.files if "/extra.json" in f}))


def attempts(case: Case) -> int:
    """How often a run is built whose workers always die."""
    built = []

    def build(loaded: Loaded) -> Run:
        built.append(loaded)
        raise WorkerDied("rank 1", "was killed")

    with pytest.raises(UserError):
        restarting(case.loaded, build, lambda run, loaded: fit(run), lambda run: run.recorder)
    return len(built)


def is_watched(case: Case) -> bool:
    """Does a watchdog look after the run while it trains?"""
    threads: set[str] = set()
    log = case.run.recorder.loggers.log

    def look(step: int, metrics: dict[str, float]) -> None:
        threads.update(thread.name for thread in threading.enumerate())
        log(step, metrics)

    case.run.recorder.loggers.log = look
    fit(case.run)
    return "burnish-watchdog" in threads


def resumed_step(case: Case) -> int:
    return case.resumed().step


def saves_elsewhere(case: Case) -> bool:
    """Does a checkpoint land in the kit's folder `elsewhere`?"""
    folder = case.kit.root / "elsewhere"
    shutil.rmtree(folder, ignore_errors=True)
    save(case.run)
    return (folder / "latest_checkpointed_iteration.txt").exists()
