"""Validation: responses to held-out prompts, scored, counted, shown."""

from __future__ import annotations

from burnish.batch import Batch
from burnish.data.sampler import validation_batches
from burnish.log.folder import dump_rollouts
from burnish.log.metrics import row_sums
from burnish.log.validation import pick_generations, validation_metrics
from burnish.loop.gather import gather_validation, reward_problems
from burnish.loop.run import Run
from burnish.reward.model_scorer import reward_model_metrics


def validate(run: Run) -> dict[str, float]:
    """val-core/... and val-aux/... of the engine's present weights; generations go where the config wants them."""
    data, cfg = run.val_data, run.cfg.data
    order = validation_batches(len(data), cfg.val_batch_size, cfg.validation_shuffle, run.seed)
    with run.clock("testing"):
        batch = Batch.join([gather_validation(run, data.batch(index, epoch=0)) for index in order])
        batch = _judged(run, batch)
    for line in reward_problems(run)[1]:
        run.loggers.note(line)
    rows = rollout_rows(run, batch)
    if run.cfg.trainer.validation_data_dir is not None:
        dump_rollouts(run.cfg.trainer.validation_data_dir, run.step, rows)
    if run.cfg.trainer.log_val_generations > 0:
        columns = [[row[name] for row in rows] for name in ("input", "output", "score")]
        shown = pick_generations(*columns, run.cfg.trainer.log_val_generations)
        run.loggers.table("val_generations", run.step, ["input", "output", "score"], shown)
    scores = [row["score"] for row in rows]
    names = sorted({name for extras in batch["reward_extras"] for name in extras})
    extras = {name: [found.get(name) for found in batch["reward_extras"]] for name in names}
    return validation_metrics(batch["data_source"], batch["uid"], scores, extras)


def _judged(run: Run, batch: Batch) -> Batch:
    """The reward model reads while the engine sleeps, as in a step. Its numbers are told for training steps only."""
    if run.reward_model is None:
        return batch
    if run.cfg.actor_rollout_ref.rollout.free_cache_engine:
        run.engine.sleep(level=1)
    batch = run.reward_model.score(batch)
    run.engine.wake()
    reward_model_metrics(run)
    return batch


def rollout_rows(run: Run, batch: Batch) -> list[dict]:
    """One readable record per response, with the reward's extras."""
    inputs = run.tokenizer.batch_decode(batch["prompt_ids"].lists(), skip_special_tokens=False)
    scores = row_sums(batch["token_level_scores"]).tolist()
    tokens = token_records(run, batch)
    return [
        {
            **batch["reward_extras"][row],
            "input": inputs[row],
            "output": batch["response_text"][row],
            "gts": batch["ground_truth"][row],
            "score": scores[row],
            "uid": batch["uid"][row],
            "sample": batch["sample"][row],
            "finish_reason": batch["finish_reason"][row],
            **tokens[row],
            **_overlong(batch, row),
        }
        for row in range(len(batch))
    ]


def token_records(run: Run, batch: Batch) -> list[dict[str, list[dict]]]:
    """Every token of a response with its log-prob and the likeliest ones beside it, where rollout.logprobs asks."""
    if "top_log_probs" not in batch:
        return [{} for _ in range(len(batch))]

    def text(token: int) -> str:
        return run.tokenizer.decode([token])

    rows = zip(batch["responses"].lists(), batch["rollout_log_probs"].lists(), batch["top_log_probs"], strict=True)
    return [
        {
            "logprobs": [
                {"id": token, "token": text(token), "logprob": own, "top": [[text(one), value] for one, value in top]}
                for token, own, top in zip(ids, log_probs, likeliest or [[]] * len(ids), strict=True)
            ]
        }
        for ids, log_probs, likeliest in rows
    ]


def _overlong(batch: Batch, row: int) -> dict[str, float | bool]:
    """The points taken off for length, where reward_model.overlong_buffer.log wants them seen."""
    if "overlong_reward" not in batch:
        return {}
    points = float(batch["overlong_reward"][row])
    return {"overlong_reward": points, "overlong": points < 0}
