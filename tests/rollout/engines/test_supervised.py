"""An engine that dies: every prompt is answered once, by an engine with the right weights, in the right state."""

import threading
import time
from concurrent.futures import Future

import pytest
import torch

from burnish.models.model_input import ModelInput
from burnish.models.stream import WeightStream
from burnish.rollout.engine import Capabilities, Completion, EngineDied, Request, Sampling
from burnish.rollout.engines.supervised import Supervised

PATIENCE = 30.0


class Mortal:
    """An engine whose fate is the name of a call: it dies in it. Its answers come when the test wants them."""

    def __init__(self, hospital, fate):
        self.capabilities = Capabilities("request", invariant=True)
        self.hospital, self.fate, self.number = hospital, fate, len(hospital.engines)
        self.dead = self.paused = False
        self.silent = False  # it does not even fail what it was asked, until it is closed
        self.asleep, self.weights, self.version = 0, None, None
        self.waiting, self.ended = [], []
        self.lock = threading.RLock()
        hospital.engines.append(self)
        self._live("make")

    def _live(self, moment):
        if self.dead or self.fate == moment:
            self._die(moment)

    def _die(self, moment):
        self.dead = True
        with self.lock:
            flying, self.waiting = ([], self.waiting) if self.silent else (self.waiting, [])
        death = EngineDied(f"engine {self.number} died in {moment}")
        for _, future in flying:
            future.set_exception(death)
        raise death

    def generate(self, requests):
        self._live("generate")
        futures = [Future() for _ in requests]
        with self.lock:
            self.waiting += zip(requests, futures, strict=True)
        return futures

    def answer(self, count):
        """Complete the oldest."""
        for _ in range(count):
            with self.lock:
                request, future = self.waiting.pop(0)
            self.hospital.answered.append((self.number, request.seed))
            ids = [int(self.weights.sum()) % 97, request.seed % 97]
            future.set_result(Completion(ids, [0.0, 0.0], [self.version] * 2, "length"))

    def kill(self):
        with pytest.raises(EngineDied):
            self._die("its sleep")

    def abort(self, futures):
        self._live("abort")
        chosen = set(futures)
        for pair in [pair for pair in self.waiting if pair[1] in chosen]:
            self.waiting.remove(pair)
            pair[1].set_result(Completion([], [], [], "abort"))

    def end_session(self, session):
        self._live("end_session")
        self.ended.append(session)

    def pause(self):
        self._live("pause")
        self.paused = True

    def resume(self):
        self._live("resume")
        self.paused = False

    def load_weights(self, stream, version):
        named = dict(stream)
        self._live("load_weights")
        self.weights, self.version = named["w"].clone(), version

    def score(self, rows, temperature=1.0):
        self._live("score")
        return [[float(len(row))] for row in rows]

    def sleep(self, level=1):
        self._live("sleep")
        self.asleep = level

    def wake(self):
        self._live("wake")
        self.asleep = 0

    def stats(self):
        self._live("stats")
        return {"tokens": 2.0}

    def step(self):
        return False

    def close(self):
        with self.lock:
            flying, self.waiting = self.waiting, []
        for _, future in flying:
            future.set_exception(RuntimeError("the engine was closed"))


class Hospital:
    """Makes engines, each with its fate; those beyond the list are immortal."""

    def __init__(self, *fates):
        self.fates, self.engines, self.answered = list(fates), [], []

    def __call__(self):
        return Mortal(self, self.fates.pop(0) if self.fates else None)

    def wait_for(self, number):
        end = time.monotonic() + PATIENCE
        while len(self.engines) <= number or not self.engines[number].waiting:
            assert time.monotonic() < end
            time.sleep(0.002)
        return self.engines[number]


WEIGHTS = torch.arange(4.0)


def supervised(*fates, restarts=3):
    hospital = Hospital(*fates)
    engine = Supervised(hospital, restarts)
    engine.load_weights(WeightStream(lambda: [("w", WEIGHTS)]), version=7)
    return hospital, engine


def requests(count=5):
    return [Request(ModelInput((1, 2)), Sampling(2), seed) for seed in range(count)]


def answered_once(hospital, futures):
    """Every future has its own answer, and no request was answered by two engines."""
    assert [future.result(PATIENCE).ids for future in futures] == [[6, seed] for seed in range(len(futures))]
    seeds = [seed for _, seed in hospital.answered]
    assert sorted(seeds) == list(range(len(futures)))


def test_a_living_engine_is_left_alone():
    hospital, engine = supervised()
    futures = engine.generate(requests())
    hospital.engines[0].answer(5)
    answered_once(hospital, futures)
    assert len(hospital.engines) == 1 and engine.stats() == {"tokens": 2.0, "restarts": 0}


@pytest.mark.parametrize("done", [0, 2, 5])
def test_death_before_during_and_after_the_answers(done):
    hospital, engine = supervised()
    futures = engine.generate(requests())
    first = hospital.engines[0]
    first.answer(done)
    first.kill()
    if done < 5:
        second = hospital.wait_for(1)
        assert [request.seed for request, _ in second.waiting] == list(range(done, 5))
        assert second.version == 7 and torch.equal(second.weights, WEIGHTS)
        second.answer(5 - done)
    answered_once(hospital, futures)
    assert engine.stats()["restarts"] == 1  # if only because this call finds it dead
    assert {who for who, _ in hospital.answered} == ({0, 1} if 0 < done < 5 else {0} if done else {1})


def test_a_death_while_requests_are_handed_over():
    hospital, engine = supervised("generate")
    futures = engine.generate(requests())
    hospital.wait_for(1).answer(5)
    answered_once(hospital, futures)


def test_two_deaths():
    hospital, engine = supervised()
    futures = engine.generate(requests())
    hospital.engines[0].answer(1)
    hospital.engines[0].kill()
    second = hospital.wait_for(1)
    second.answer(2)
    second.kill()
    hospital.wait_for(2).answer(2)
    answered_once(hospital, futures)
    assert engine.stats()["restarts"] == 2 and engine.stats()["restarts"] == 0


def test_what_comes_after_a_death_is_answered_too():
    hospital, engine = supervised()
    hospital.engines[0].kill()
    early = engine.generate(requests(2))
    hospital.wait_for(1).answer(2)
    answered_once(hospital, early)


def test_a_late_word_of_a_dead_engine_is_not_heard():
    """A completion that the old engine gives while it is buried must not come beside the new engine's."""
    hospital, engine = supervised()
    (future,) = engine.generate(requests(1))
    first = hospital.engines[0]
    (late,) = [pair[1] for pair in first.waiting]
    first.waiting = []
    first.dead = True
    with pytest.raises(EngineDied):
        first._live("anything")
    assert engine.score([[1]]) == [[1.0]]  # finds it dead
    late.set_result(Completion([99], [0.0], [0], "stop"))
    hospital.wait_for(1).answer(1)
    assert future.result(PATIENCE).ids == [6, 0]


@pytest.mark.parametrize("again", ["load_weights", None])
def test_death_in_load_weights(again):
    hospital = Hospital("load_weights", again)
    engine = Supervised(hospital)
    engine.load_weights(WeightStream(lambda: [("w", WEIGHTS)]), version=3)
    assert [one.version for one in hospital.engines] == [None] * (len(hospital.engines) - 1) + [3]
    assert len(hospital.engines) == (3 if again else 2)


def test_the_newest_weights_come_back():
    hospital, engine = supervised()
    engine.load_weights(WeightStream(lambda: [("w", WEIGHTS + 1)]), version=8)
    hospital.engines[0].kill()
    assert engine.score([[1, 2]]) == [[2.0]]
    assert hospital.engines[1].version == 8 and torch.equal(hospital.engines[1].weights, WEIGHTS + 1)


def test_weights_that_cannot_be_read_again():
    hospital = Hospital()
    engine = Supervised(hospital)
    engine.load_weights(iter([("w", WEIGHTS)]), version=1)
    (future,) = engine.generate(requests(1))
    hospital.engines[0].kill()
    with pytest.raises(RuntimeError, match="a second time"):
        future.result(PATIENCE)


def test_a_stream_that_is_refused_is_not_remembered():
    hospital, engine = supervised()
    with pytest.raises(KeyError):
        engine.load_weights([("v", WEIGHTS)], version=8)
    hospital.engines[0].kill()
    engine.stats()
    assert hospital.engines[1].version == 7


def test_sessions_end_in_the_engine_of_now():
    hospital, engine = supervised()
    engine.end_session("a")
    hospital.engines[0].kill()
    engine.end_session("b")
    assert [one.ended for one in hospital.engines] == [["a"], ["b"]]


def test_pause_and_sleep_outlive_it():
    hospital, engine = supervised()
    engine.pause()
    hospital.engines[0].kill()
    futures = engine.generate(requests(2))
    second = hospital.wait_for(1)
    assert second.paused and second.version == 7
    engine.resume()
    assert not second.paused
    second.answer(2)
    answered_once(hospital, futures)
    engine.sleep(1)
    second.kill()
    engine.stats()
    assert (hospital.engines[2].asleep, hospital.engines[2].version) == (1, 7)
    engine.wake()
    assert hospital.engines[2].asleep == 0


def test_after_a_deep_sleep_the_next_weights_are_the_first():
    hospital, engine = supervised()
    engine.sleep(2)
    hospital.engines[0].kill()
    engine.stats()
    assert (hospital.engines[1].asleep, hospital.engines[1].version) == (2, None)
    hospital.engines[1].kill()
    engine.load_weights(WeightStream(lambda: [("w", WEIGHTS)]), version=9)
    assert (hospital.engines[2].asleep, hospital.engines[2].version) == (1, 9)  # filled, its cache still asleep


def test_abort_of_what_a_dead_engine_had():
    hospital, engine = supervised()
    futures = engine.generate(requests(3))
    hospital.engines[0].dead = hospital.engines[0].silent = True
    engine.abort(futures[:1])
    assert futures[0].result(PATIENCE).finish_reason == "abort"
    hospital.engines[1].answer(2)
    assert [future.result(PATIENCE).ids[1] for future in futures[1:]] == [1, 2]


def test_an_engine_that_dies_again_and_again():
    hospital, engine = supervised(None, "generate", "generate", "generate", restarts=2)
    futures = engine.generate(requests(2))
    hospital.engines[0].kill()
    for future in futures:
        with pytest.raises(EngineDied, match="engine 0 died in its sleep"):
            future.result(PATIENCE)
    assert len(hospital.engines) == 3
    for call in (engine.pause, engine.stats, lambda: engine.generate(requests(1))):
        with pytest.raises(EngineDied, match="engine 0 died"):
            call()


def test_new_weights_give_new_lives():
    """The bound is on deaths of one step: a long run may lose an engine now and then."""
    hospital, engine = supervised(restarts=1)
    for version in range(8, 12):
        hospital.engines[-1].kill()
        engine.stats()
        engine.load_weights(WeightStream(lambda: [("w", WEIGHTS)]), version)
    assert len(hospital.engines) == 5
    hospital.engines[-1].kill()
    engine.stats()
    hospital.engines[-1].kill()
    with pytest.raises(EngineDied):
        engine.stats()


def test_an_engine_that_cannot_be_made_again():
    hospital, engine = supervised()
    (future,) = engine.generate(requests(1))
    engine._make = lambda: (_ for _ in ()).throw(ValueError("no such GPU"))
    hospital.engines[0].kill()
    with pytest.raises(ValueError, match="no such GPU"):
        future.result(PATIENCE)


def test_a_bad_request_is_the_callers():
    hospital, engine = supervised()
    hospital.engines[0].generate = lambda requests: (_ for _ in ()).throw(ValueError("too long"))
    with pytest.raises(ValueError, match="too long"):
        engine.generate(requests(1))
    assert len(hospital.engines) == 1 and not engine._pending


def test_close():
    hospital, engine = supervised()
    (future,) = engine.generate(requests(1))
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        future.result(PATIENCE)
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate(requests(1))
    assert len(hospital.engines) == 1


def test_askers_from_many_threads_during_deaths():
    hospital, engine = supervised(restarts=100)
    stop = threading.Event()

    def live():
        while not stop.is_set():
            one = hospital.engines[-1]
            with one.lock:
                if one.waiting and not one.dead:
                    one.answer(1)
            time.sleep(0.001)

    def ask(salt, found):
        for turn in range(20):
            wanted = [Request(ModelInput((1,)), Sampling(1), salt * 1000 + turn * 10 + number) for number in range(3)]
            found += [future.result(PATIENCE).ids[1] for future in engine.generate(wanted)]

    worker = threading.Thread(target=live)
    worker.start()
    found = [[] for _ in range(4)]
    askers = [threading.Thread(target=ask, args=(salt, found[salt])) for salt in range(4)]
    for asker in askers:
        asker.start()
    for _ in range(5):
        time.sleep(0.01)
        hospital.engines[-1].dead = True
        engine.score([[1]])
    for asker in askers:
        asker.join(PATIENCE)
    stop.set()
    worker.join()
    for salt in range(4):
        assert found[salt] == [(salt * 1000 + turn * 10 + number) % 97 for turn in range(20) for number in range(3)]
