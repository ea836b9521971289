import threading
from concurrent.futures import Future

import pytest
import torch

from burnish.errors import UserError
from burnish.loop.collect import run_episodes
from burnish.loop.event_loop import run_coroutine
from burnish.rollout.engine import Completion
from burnish.rollout.episode import SingleTurn, prompts_for


class Scheduled:
    """The run's own engine, whose completions are handed over in another order and at another time."""

    def __init__(self, engine, hand_over):
        self.engine = engine
        self.hand_over = hand_over
        self.capabilities = engine.capabilities

    def generate(self, requests):
        made = self.engine.generate(requests)
        futures = [Future() for _ in made]
        pairs = list(zip(futures, made, strict=True))
        threading.Thread(target=self.hand_over, args=(pairs,), daemon=True).start()
        return futures

    def __getattr__(self, name):
        return getattr(self.engine, name)


def last_first(pairs):
    for future, made in reversed(pairs):
        future.set_result(made.result())


def without_times(batch):
    names = [name for name in batch if name not in ("generation_time", "segments")]
    return {name: batch[name].lists() if hasattr(batch[name], "lists") else batch[name] for name in names}


def test_rows_stand_in_prompt_order_whatever_finishes_first(make_run, next_prompts):
    run = make_run()
    prompts = next_prompts(run)
    there = run.rollout.collect(prompts, step=1)
    assert there["uid"] == [uid for uid in prompts["uid"] for _ in range(2)]
    assert there["sample"] == [0, 1] * 4
    engine, run.rollout.engine = run.rollout.engine, Scheduled(run.rollout.engine, last_first)
    here = run.rollout.collect(prompts, step=1)
    run.rollout.engine = engine
    assert without_times(here) == without_times(there)


def test_scores_are_made_while_others_still_generate(make_run, next_prompts):
    scored = threading.Event()

    def reward(solution_str):
        scored.set()
        return 0.0

    def wait_for_the_first_score(pairs):
        first, made = pairs[0]
        first.set_result(made.result())
        in_time = scored.wait(timeout=10)
        for future, made in pairs[1:]:
            future.set_result(made.result()) if in_time else future.set_exception(TimeoutError("nothing was scored"))

    run = make_run(reward=reward)
    engine, run.rollout.engine = run.rollout.engine, Scheduled(run.rollout.engine, wait_for_the_first_score)
    assert len(run.rollout.collect(next_prompts(run), step=1)) == 8
    run.rollout.engine = engine


def test_a_score_stands_on_the_last_token(make_run, next_prompts):
    run = make_run(reward=lambda solution_str: 0.5 + len(solution_str))
    batch = run.rollout.collect(next_prompts(run), step=1)
    for text, row in zip(batch["response_text"], batch["token_level_scores"].lists(), strict=True):
        assert row[-1] == 0.5 + len(text) and set(row[:-1]) <= {0.0}


def test_the_reward_gets_the_row_it_belongs_to(make_run, next_prompts):
    seen = []

    def reward(data_source, solution_str, ground_truth, extra_info):
        seen.append((data_source, ground_truth, extra_info["number"]))
        return {"score": float(ground_truth), "doubled": 2 * float(ground_truth)}

    run = make_run(reward=reward)
    batch = run.rollout.collect(next_prompts(run), step=1)
    assert all(source == "digits" and truth == str(2 * number) for source, truth, number in seen)
    assert [extras["doubled"] for extras in batch["reward_extras"]] == [2 * float(t) for t in batch["ground_truth"]]
    assert [sum(row) for row in batch["token_level_scores"].lists()] == [float(t) for t in batch["ground_truth"]]


def test_an_empty_response_has_no_token_to_carry_its_score(make_run, next_prompts):
    def cut_the_first(pairs):
        for number, (future, made) in enumerate(pairs):
            whole = made.result()
            future.set_result(Completion([], [], [], "abort") if number == 0 else whole)

    run = make_run(reward=lambda solution_str: 1.0)
    engine, run.rollout.engine = run.rollout.engine, Scheduled(run.rollout.engine, cut_the_first)
    batch = run.rollout.collect(next_prompts(run), step=1)
    run.rollout.engine = engine
    assert [sum(row) for row in batch["token_level_scores"].lists()] == [0.0] + [1.0] * 7
    assert batch["response_text"][0] == ""


def test_greedy_scores_where_the_estimator_needs_them(make_run, next_prompts):
    run = make_run()
    prompts = next_prompts(run)
    assert "greedy_scores" not in run.rollout.collect(prompts, step=1)
    run.rollout.greedy_baseline = True
    batch = run.rollout.collect(prompts, step=1)
    greedy = [sample for (sample,) in prompts_for(prompts, run.rollout.val_sampling, 1, seed=0, step=0)]
    trajectories = run_coroutine(run_episodes(run.rollout.engine, SingleTurn(), greedy))
    texts = [rows[0].text(run.rollout.scorer.decode) for rows in trajectories]
    expected = [text.count("7") / max(1, len(text)) for text in texts]
    assert run.rollout.val_sampling.greedy
    torch.testing.assert_close(batch["greedy_scores"], torch.tensor(expected).repeat_interleave(2))


def test_reward_problems_are_kept_beside_the_fallback_score(make_run, next_prompts):
    def reward(solution_str, extra_info):
        if extra_info["number"] % 2:
            raise ValueError("odd")
        return 1.0

    run = make_run("reward.fallback_score=-3", reward=reward)
    batch = run.rollout.collect(next_prompts(run), step=1)
    for row in range(len(batch)):
        odd = batch["extra_info"][row]["number"] % 2
        assert sum(batch["token_level_scores"][row].tolist()) == (-3.0 if odd else 1.0)
        assert (batch["reward_problem"][row] is not None) == bool(odd)
    failed = sum(problem is not None for problem in batch["reward_problem"])
    assert sum(problem.count for problem in run.rollout.scorer.scorer.drain_problems()) == failed > 0


def test_a_reward_that_stops_the_run_leaves_the_engine_alive(make_run, next_prompts):
    def reward(solution_str):
        raise ValueError("no")

    run = make_run("reward.on_error=stop", "data.max_response_length=40", reward=reward)
    prompts = next_prompts(run)
    with pytest.raises(UserError, match="ValueError: no"):
        run.rollout.collect(prompts, step=1)
    samples = prompts_for(prompts, run.rollout.sampling, 1, seed=0, step=0)[0]
    assert run_coroutine(run_episodes(run.rollout.engine, SingleTurn(), samples))[0][0].ids


def test_the_noise_of_a_step_is_its_own_and_validations_compare(make_run, next_prompts):
    run = make_run("actor_rollout_ref.rollout.val_kwargs.do_sample=true",
                   "actor_rollout_ref.rollout.val_kwargs.temperature=1",
                   "actor_rollout_ref.rollout.val_kwargs.n=3")  # fmt: skip
    prompts = next_prompts(run)
    assert run.rollout.collect(prompts, 1)["responses"].lists() == run.rollout.collect(prompts, 1)["responses"].lists()
    assert run.rollout.collect(prompts, 1)["responses"].lists() != run.rollout.collect(prompts, 2)["responses"].lists()
    first = run.rollout.collect_validation(prompts)
    run.step = 7
    assert run.rollout.collect_validation(prompts)["responses"].lists() == first["responses"].lists()
    assert first["sample"] == [0, 1, 2] * 4
