"""Writers of roles that live on ranks: several at once, tried again, forgotten when nobody holds them."""

import gc

import pytest

from burnish.loop.handles import TrainedRoleHandle
from burnish.loop.worker import Worker
from burnish.loop.worker_clock import WorkerClock


class Role:
    """Writes the number it had when it was asked for a writer; its disk may be full."""

    def __init__(self):
        self.number = 0
        self.full = False

    def writer(self, contents, tokenizer, *, copy):
        number = self.number

        def write(folder):
            if self.full:
                raise OSError(28, "No space left on device")
            (folder / "number").write_text(str(number))

        return write


class Here:
    """A group of one worker in this process."""

    size = 1

    def __init__(self, worker):
        self.worker = worker

    def call(self, method, *args):
        return [getattr(self.worker, method)(*args)]

    def submit(self, rank, method, *args):
        self.call(method, *args)


@pytest.fixture
def worker():
    made = Worker.__new__(Worker)
    made.tokenizer, made.roles, made._writers, made.clock = None, {"policy": Role()}, {}, WorkerClock()
    return made


def test_each_writer_has_the_state_of_its_own_time(worker, tmp_path):
    handle = TrainedRoleHandle(Here(worker), "policy")
    writers = []
    for number in (1, 2):
        worker.roles["policy"].number = number
        writers.append(handle.writer(["model"], copy=True))
    for number, write in enumerate(writers, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder)
        assert (folder / "number").read_text() == str(number)


def test_what_nobody_will_write_is_forgotten(worker):
    handle = TrainedRoleHandle(Here(worker), "policy")
    kept, given_up = handle.writer(["model"], copy=True), handle.writer(["model"], copy=True)
    assert len(worker._writers) == 2
    del given_up
    gc.collect()
    assert list(worker._writers) == [kept.id]


def test_a_full_disk_is_reported_and_saving_can_be_retried(worker, tmp_path):
    write = TrainedRoleHandle(Here(worker), "policy").writer(["model"], copy=True)
    worker.roles["policy"].full = True
    with pytest.raises(OSError, match="No space left on device"):
        write(tmp_path)
    worker.roles["policy"].full = False
    write(tmp_path)
    assert (tmp_path / "number").read_text() == "0"
