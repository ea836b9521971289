import threading
import time

from burnish.log.clock import Clock
from burnish.loop.watchdog import HUNG, Watchdog, watching


def hangs_in_here(clock, ended):
    with clock("step"), clock("update_actor"):
        assert ended.wait(20), "the watchdog never barked"


def test_a_phase_that_never_ends_is_named_with_all_stacks(tmp_path, capfd):
    clock, ended, statuses = Clock(), threading.Event(), []
    watchdog = Watchdog(clock, 0.2, tmp_path, rank=3, end=lambda status: (statuses.append(status), ended.set()))
    watchdog.start()
    hangs_in_here(clock, ended)
    watchdog.stop()
    assert statuses == [HUNG]
    for told in (capfd.readouterr().err, (tmp_path / "hang_rank_3.txt").read_text()):
        assert "rank 3 hangs in step, update_actor: no phase has begun or ended for 0.2 s" in told
        assert "hangs_in_here" in told and "burnish-watchdog" not in told.split("hangs_in_here")[0].split("\n")[0]


def test_a_run_that_makes_progress_is_not_killed(tmp_path):
    clock, statuses = Clock(), []
    watchdog = Watchdog(clock, 0.3, tmp_path, end=statuses.append)
    watchdog.start()
    with clock("step"):
        for _ in range(12):
            with clock("gen"):
                time.sleep(0.05)
    watchdog.stop()
    assert statuses == [] and not list(tmp_path.iterdir())


def test_between_phases_it_says_so(tmp_path, capfd):
    ended = threading.Event()
    watchdog = Watchdog(Clock(), 0.05, tmp_path / "no such folder", end=lambda status: ended.set())
    watchdog.start()
    assert ended.wait(20)
    watchdog.stop()
    assert "rank 0 hangs in no phase" in capfd.readouterr().err


def test_no_patience_is_no_watchdog(tmp_path):
    def threads():
        return [thread.name for thread in threading.enumerate()]

    with watching(Clock(), 0, tmp_path):
        assert "burnish-watchdog" not in threads()
    with watching(Clock(), 60, tmp_path):
        assert "burnish-watchdog" in threads()
    assert "burnish-watchdog" not in threads()
