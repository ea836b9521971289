"""Generating ahead: how far, with which weights, and that nothing is lost, doubled or left running."""

import itertools
import json
import math
import threading
import time

import pytest
import torch

from burnish.errors import UserError
from burnish.loop.fit import fit
from burnish.loop.schedules import ASYNC_MODES, StalenessLimits
from burnish.loop.state import save

ONE_STEP_OFF = "async_training.mode=one_step_off"
QUEUE = (
    "async_training.mode=queue",
    "async_training.trigger_parameter_sync_step=1",
    "async_training.staleness_threshold=2",
)
PATIENCE = 30  # seconds after which a test that waits for another thread gives up


def steps(run, count):
    """Make so many steps, without what `fit` puts around them; the batches and numbers."""
    made = []
    for _ in range(count):
        made.append(run.schedule.step(run.step + 1)[1:])
        run.step += 1
    return made


def versions(batch):
    return set(batch["weight_version"].flat.tolist())


def producers():
    return [thread for thread in threading.enumerate() if thread.name == "burnish-producer"]


def before(owner, name, act, monkeypatch):
    """From now on `act(arguments)` comes before each call of this method."""
    method = getattr(owner, name)

    def call(*arguments, **more):
        act(*arguments)
        return method(*arguments, **more)

    monkeypatch.setattr(owner, name, call)


# one step off


def test_each_batch_is_sampled_with_the_weights_before_the_last(make_run):
    run = make_run(ONE_STEP_OFF, "trainer.total_training_steps=5")
    made = steps(run, 5)
    assert [versions(batch) for batch, _ in made] == [{1}, {1}, {2}, {3}, {4}]
    assert [numbers["async/version_lag/max"] for _, numbers in made] == [0, 1, 1, 1, 1]
    assert run.rollout.version == 6 and run.learner.num_unsynced == 0
    assert not producers(), "with its last batch the producer is done"


def test_the_next_batch_is_generated_during_the_update(make_run, monkeypatch):
    run = make_run(ONE_STEP_OFF, "trainer.total_training_steps=3")
    learning, generating = threading.Event(), threading.Event()

    def generate(requests):
        if run.schedule.producing == 2:
            generating.set()
            assert learning.wait(PATIENCE), "batch 2 is generated before step 1 is learnt, not meanwhile"

    def update(batch, step):
        if step == 1:
            learning.set()
            assert generating.wait(PATIENCE), "step 1 is learnt before batch 2 is begun, not meanwhile"

    before(run.rollout.engine, "generate", generate, monkeypatch)
    before(run.learner.policy, "update", update, monkeypatch)
    steps(run, 3)
    assert learning.is_set() and generating.is_set()


def test_weights_are_sent_while_neither_runs(make_run, monkeypatch):
    run = make_run(ONE_STEP_OFF, "trainer.total_training_steps=4")
    standing = []

    def load(stream, version):
        standing.append((version, run.schedule.producing, len(run.schedule.pending), len(run.rollout.engine.running)))

    before(run.rollout.engine, "load_weights", load, monkeypatch)
    steps(run, 4)
    assert standing == [(2, None, 1, 0), (3, None, 1, 0), (4, None, 1, 0), (5, None, 0, 0)]


def test_two_runs_are_equal(make_run, rows, weights, equal, metric_lines, rollouts, tmp_path):
    made = []
    for name in ("one", "other"):
        run = make_run(
            *(ONE_STEP_OFF, "trainer.total_training_steps=4", "trainer.logger=[file]", "trainer.test_freq=2"),
            out=name,
            val_dataset=rows(2),
            reward=slow_sevens(0.002 if name == "one" else 0),
        )
        fit(run)
        made.append((weights(run.learner.policy), metric_lines(tmp_path / name), rollouts(tmp_path / name)))
    (one, lines, texts), (other, other_lines, other_texts) = made
    assert equal(one, other) and texts == other_texts
    assert lines == other_lines and len(lines) == 5


def slow_sevens(seconds):
    def reward(solution_str):
        time.sleep(seconds)
        return solution_str.count("7") / max(1, len(solution_str))

    return reward


GRPO = ("actor_rollout_ref.actor.use_kl_loss=true",)
PPO = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.horizon=50",
    "critic.optim.lr=1e-3",
    "trainer.critic_warmup=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.shuffle=true",
    "actor_rollout_ref.actor.optim.warmup_style=cosine",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
)
REMAX = ("algorithm.adv_estimator=remax", "reward.normalize=running")
FILTERED = ("algorithm.filter_groups.enable=true", "data.gen_batch_size=6", "actor_rollout_ref.rollout.n=4")


@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "stops"),
    [(GRPO, (1, 2, 3)), (PPO, (1, 2, 3)), (REMAX, (2,)), (FILTERED, (2,))],
    ids=["grpo", "ppo", "remax", "filtered"],
)
def test_resumed_after_any_step_it_ends_as_if_never_stopped(
    make_run, rows, weights, equal, metric_lines, rollouts, tmp_path, algorithm, stops
):
    """The batch that waits is in the checkpoint, with the versions that sampled it."""
    keys = (ONE_STEP_OFF, "trainer.total_training_steps=4", "trainer.logger=[file]", "trainer.test_freq=2")
    whole = make_run(*keys, *algorithm, "trainer.save_freq=1", out="whole", val_dataset=rows(2))
    fit(whole)
    lines, texts = metric_lines(tmp_path / "whole"), rollouts(tmp_path / "whole")
    assert {numbers.get("async/version_lag/max") for _, numbers in lines[2:]} <= {0.0, 1.0}
    for stopped in stops:
        torch.manual_seed(stopped)  # a new process starts with other global random numbers
        path = tmp_path / "whole" / f"global_step_{stopped}"
        assert sorted(file.name for file in (path / "queue").iterdir()) == [
            f"{stopped + 1}.json",
            f"{stopped + 1}.safetensors",
        ]
        where = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}")
        out = f"from{stopped}"
        run = make_run(*keys, *algorithm, *where, out=out, val_dataset=rows(2))
        fit(run)
        assert equal(weights(run.learner.policy), weights(whole.learner.policy))
        assert run.learner.critic is None or equal(weights(run.learner.critic), weights(whole.learner.critic))
        assert (
            run.learner.kl.value == whole.learner.kl.value
            and run.learner.shaper.state_dict() == whole.learner.shaper.state_dict()
        )
        assert run.rollout.sampler.state_dict() == whole.rollout.sampler.state_dict()
        assert (run.rollout.version, run.learner.num_unsynced) == (whole.rollout.version, whole.learner.num_unsynced)
        assert metric_lines(tmp_path / out) == [line for line in lines if line[0] > stopped]
        assert rollouts(tmp_path / out) == {name: text for name, text in texts.items() if int(name[:-6]) > stopped}


def test_ctrl_c_keeps_the_batch_that_is_made(make_run, ctrl_c_at, rollouts, tmp_path):
    keys = (ONE_STEP_OFF, "trainer.total_training_steps=4")
    fit(make_run(*keys, out="whole"))
    first = make_run(*keys, out="halves", reward=ctrl_c_at(12))
    assert fit(first).interrupted and first.step < 4
    assert len(first.schedule.pending) == 1
    first.close()
    fit(make_run(*keys, out="halves"))
    assert rollouts(tmp_path / "halves") == rollouts(tmp_path / "whole")


def test_a_synchronous_run_resumes_with_batches_generated_ahead(make_run, launch, rollouts, tmp_path):
    launch(ONE_STEP_OFF, "trainer.total_training_steps=3", "trainer.save_freq=1")
    made = rollouts(tmp_path / "run")
    path = tmp_path / "run" / "global_step_1"
    run = make_run(
        *("trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}", "trainer.total_training_steps=3"),
        "trainer.resume_changes=accept",
        out="turn",
    )
    (batch, _), (other, _) = steps(run, 2)
    assert batch["response_text"] == [json.loads(line)["output"] for line in made["2.jsonl"].splitlines()]
    assert set(other["uid"]) == {json.loads(line)["uid"] for line in made["3.jsonl"].splitlines()}


def test_only_the_critic_is_updated_at_first(make_run):
    run = make_run(
        *(ONE_STEP_OFF, "algorithm.adv_estimator=gae", "trainer.critic_warmup=2", "trainer.total_training_steps=4")
    )
    made = steps(run, 4)
    assert [versions(batch) for batch, _ in made] == [{1}, {1}, {1}, {1}], "sent after steps 3 and 4"
    assert ["actor/pg_loss" in numbers for _, numbers in made] == [False, False, True, True]
    assert run.rollout.version == 3


@pytest.mark.parametrize("mode", [(ONE_STEP_OFF,), QUEUE], ids=["one step off", "queue"])
def test_epochs_count_where_groups_are_filtered(make_run, mode):
    """As many steps as in turn: what is left of an epoch is not generated twice, and nothing generated is dropped."""

    def even(extra_info, solution_str):
        return len(solution_str) % 2 if extra_info["number"] % 2 else 0.0

    keys = ("trainer.total_training_steps=null", "trainer.total_epochs=3", *FILTERED)
    taken = []
    for name, more in (("turn", ()), ("ahead", (*mode, "actor_rollout_ref.actor.optim.lr=1e-9"))):
        run = make_run(*keys, *more, out=name, reward=even)
        result = fit(run)
        taken.append(result.step)
        assert not result.interrupted and run.rollout.sampler.epochs_done >= 3
    assert taken[0] == taken[1] > 1


# importance weights


def test_stale_rows_are_read_and_weighted(make_run):
    run = make_run(ONE_STEP_OFF, "trainer.total_training_steps=3", "actor_rollout_ref.actor.optim.lr=2e-2")
    made = steps(run, 3)
    ratios = [(batch["old_log_probs"].flat - batch["rollout_log_probs"].flat).exp() for batch, _ in made]
    assert (ratios[0] - 1).abs().max() < 1e-4, "the first batch is of the current weights"
    assert (ratios[2] - 1).abs().max() > 1e-3
    for ratio, (batch, _) in zip(ratios, made, strict=True):
        torch.testing.assert_close(batch["importance_weights"].flat, ratio.clamp(max=2.0))


def test_without_a_correction_stale_rows_are_still_read(make_run):
    off = "algorithm.rollout_correction.rollout_is=null"
    run = make_run(ONE_STEP_OFF, off, "trainer.total_training_steps=2")
    assert not run.learner.correction.acts
    steps(run, 1)
    assert "timing_s/old_log_prob" not in run.clock.take()
    steps(run, 1)
    assert "timing_s/old_log_prob" in run.clock.take()


# the queue


@pytest.mark.parametrize("sync_every", [1, 2, 3, 4])
@pytest.mark.parametrize("staleness", [0, 0.5, 1, 2])
@pytest.mark.parametrize("queue_size", [None, 1, 3])
def test_bounds_hold_whichever_side_is_faster(sync_every, staleness, queue_size):
    """Every order in which producer and learner can take turns, from any step on."""
    bounds = StalenessLimits(sync_every, int(staleness * sync_every), queue_size)
    oldest = 0
    for first in (0, 1, 5):
        # next batch, step that is or was learnt, is it learnt now, step whose weights are sent, those that wait
        seen, open_states = set(), [(first + 1, first, False, first, ())]
        while open_states:
            state = open_states.pop()
            if state in seen or state[0] > first + 12:
                continue
            seen.add(state)
            number, step, learns, sent, waiting = state
            if bounds.may_start(number, step, sent):
                open_states.append((number + 1, step, learns, sent, (*waiting, sent)))
            if learns:
                open_states.append((number, step, False, step if step % sync_every == 0 else sent, waiting))
            elif waiting:
                transfers = step // sync_every - waiting[0] // sync_every
                oldest = max(oldest, transfers)
                assert 0 <= transfers <= math.ceil(staleness)
                assert queue_size is None or len(waiting) <= queue_size
                open_states.append((number, step + 1, True, sent, waiting[1:]))
        assert max(step for _, step, _, _, _ in seen) >= first + 5, "it never stands still"
    ahead = bounds.max_staleness if queue_size is None else min(bounds.max_staleness, queue_size)
    assert oldest == -(-ahead // sync_every), "and as far ahead as allowed it does get"


@pytest.mark.parametrize("partial", ["true", "false"])
def test_a_batch_is_never_older_than_allowed(make_run, monkeypatch, partial):
    """The learner is slow, so that the producer gets as far ahead as it may."""
    run = make_run(
        *QUEUE,
        *(f"async_training.partial_rollout={partial}", "async_training.queue_size=3"),
        "trainer.total_training_steps=7",
    )
    deepest = []

    def update(batch, step):
        patience = time.monotonic() + PATIENCE
        schedule = run.schedule
        while schedule.producing or schedule._may_start():
            assert time.monotonic() < patience
            time.sleep(0.001)
        deepest.append(len(schedule.pending))

    before(run.learner.policy, "update", update, monkeypatch)
    made = steps(run, 7)
    assert [numbers["async/version_lag/max"] for _, numbers in made] == [0, 1, 2, 2, 2, 2, 2]
    assert deepest == [2, 2, 2, 2, 2, 1, 0], "two of three: more would be older than two transfers"


def test_weights_travel_every_so_many_steps(make_run):
    run = make_run(
        *("async_training.mode=queue", "async_training.trigger_parameter_sync_step=3"),
        *("async_training.staleness_threshold=0", "trainer.total_training_steps=7"),
    )
    made = steps(run, 7)
    assert [versions(batch) for batch, _ in made] == [{1}, {1}, {1}, {2}, {2}, {2}, {3}]
    assert run.rollout.version == 3 and run.learner.num_unsynced == 1


def test_responses_on_their_way_go_on_with_new_weights(make_run, monkeypatch):
    run = make_run(*QUEUE, "trainer.total_training_steps=3", "actor_rollout_ref.rollout.ignore_eos=true")
    sent, turns = threading.Event(), itertools.count(1)

    def step():
        if run.schedule.producing == 2 and next(turns) == 4:  # the first finds no request yet
            assert sent.wait(PATIENCE), "weights should not wait for responses"

    def resume():
        sent.set()

    before(run.rollout.engine, "step", step, monkeypatch)
    before(run.rollout.engine, "resume", resume, monkeypatch)
    (_, _), (second, numbers), _ = steps(run, 3)
    assert second["weight_version"].lists() == [[1, 1, 1, 2, 2]] * 8
    assert numbers["async/version_lag/mean"] == pytest.approx(0.6) and numbers["async/version_lag/max"] == 1
    ratio = (second["old_log_probs"].flat - second["rollout_log_probs"].flat).abs()
    assert ratio.max() > 0


def test_without_partial_rollouts_weights_wait_for_responses(make_run, monkeypatch):
    run = make_run(*QUEUE, "async_training.partial_rollout=false", "trainer.total_training_steps=4")
    busy = []
    before(run.rollout.engine, "load_weights", lambda *_: busy.append(len(run.rollout.engine.running)), monkeypatch)
    made = steps(run, 4)
    assert busy == [0, 0, 0, 0]
    assert all(len(set(row)) == 1 for batch, _ in made for row in batch["weight_version"].lists())


def test_validation_sees_the_weights_of_its_step(make_run, rows, monkeypatch):
    """Also between two transfers; and nobody else asks the engine meanwhile."""
    run = make_run(
        *("async_training.mode=queue", "async_training.trigger_parameter_sync_step=4", "trainer.test_freq=3"),
        *("trainer.total_training_steps=6", "trainer.val_before_train=false"),
        val_dataset=rows(2),
    )
    alone = []
    before(
        run.rollout.val_data,
        "batch",
        lambda *_: alone.append((run.step, run.learner.num_unsynced, run.schedule.producing)),
        monkeypatch,
    )
    result = fit(run)
    assert alone == [(3, 0, None), (6, 0, None)] and sorted(result.validation) == [3, 6]


def uids(folder):
    """The prompts of each step, from the rollout files."""
    files = sorted((folder / "rollouts").iterdir(), key=lambda path: int(path.stem))
    return [[json.loads(line)["uid"] for line in path.read_text().splitlines()] for path in files]


@pytest.mark.long
def test_nothing_is_lost_or_doubled_by_a_stop(make_run, ctrl_c_at, tmp_path):
    """Finished batches are kept, unfinished ones asked for again: every step has the prompts it has in turn."""
    keys = ("trainer.total_training_steps=8", "async_training.queue_size=3")
    fit(make_run(keys[0], out="turn"))
    stops = 0
    for number in (20, 13, 9):
        run = make_run(*QUEUE, *keys, out="queue", reward=ctrl_c_at(number))
        result = fit(run)
        stops += result.interrupted
        kept = [one.step for one in run.schedule.pending]
        assert kept == list(range(run.step + 1, run.step + 1 + len(kept)))
        run.close()
    fit(make_run(*QUEUE, *keys, out="queue"))
    assert stops >= 2
    assert uids(tmp_path / "queue") == uids(tmp_path / "turn")


def test_a_save_amid_a_batch_forgets_the_batch_and_keeps_the_queue(make_run, monkeypatch, tmp_path):
    run = make_run(*QUEUE, "async_training.queue_size=2", "trainer.total_training_steps=6")
    amid, saved = threading.Event(), threading.Event()

    def generate(requests):
        if run.schedule.producing == 3:
            amid.set()
            assert saved.wait(PATIENCE)

    before(run.rollout.engine, "generate", generate, monkeypatch)
    steps(run, 1)
    assert amid.wait(PATIENCE)
    save(run)
    saved.set()
    state = json.loads((tmp_path / "run" / "global_step_1" / "trainer.json").read_text())
    assert state["sampler"]["offset"] == 8, "the prompts of batch 3 are drawn, and count as not drawn"
    assert run.rollout.sampler.offset == 12
    again = make_run(*QUEUE, "trainer.resume_changes=accept")
    assert [one.step for one in again.schedule.pending] == [2]


# when things go wrong


@pytest.mark.parametrize("mode", [(ONE_STEP_OFF,), QUEUE], ids=["one step off", "queue"])
def test_an_error_of_the_producer_stops_the_run(make_run, mode):
    calls = itertools.count(1)

    def reward(solution_str):
        if next(calls) == 20:
            raise ValueError("no reward today")
        return 0.0

    run = make_run(*mode, "reward.on_error=stop", "trainer.total_training_steps=9", reward=reward)
    with pytest.raises(UserError, match="no reward today"):
        fit(run)
    assert run.step <= 3
    run.close()
    assert not producers()


@pytest.mark.parametrize("mode", [(ONE_STEP_OFF,), QUEUE], ids=["one step off", "queue"])
def test_an_error_of_the_learner_ends_the_producer(make_run, monkeypatch, mode):
    run = make_run(*mode, "trainer.total_training_steps=9")

    def update(batch, step):
        if step == 2:
            raise MemoryError("too much")

    before(run.learner.policy, "update", update, monkeypatch)
    with pytest.raises(MemoryError, match="too much"):
        fit(run)
    run.close()
    assert not producers()


def test_closing_ends_a_producer_that_waits_for_a_reward(make_run):
    asked = threading.Event()

    def reward(solution_str):
        asked.set()
        time.sleep(0.02)
        return 0.0

    run = make_run(ONE_STEP_OFF, reward=reward)
    run.schedule._start(run.step + 1)
    assert asked.wait(PATIENCE)
    assert producers()
    run.close()
    assert not producers()


def test_the_modes_are_chosen_by_table(make_run):
    assert ASYNC_MODES.names() == ["sync", "one_step_off", "queue"]
    assert make_run().schedule.pending.__class__.__name__ == "deque" and not producers()
