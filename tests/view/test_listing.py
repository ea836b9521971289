"""burnish runs: states, steps, time left and validations of many run folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from burnish.cli.main import main
from burnish.errors import UserError
from burnish.log.folder import FAILURE, RunFolder, lock_state
from burnish.view.listing import list_runs, summarize

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
SCORE = "val-core/gsm8k/acc/mean@1"


def make_run(folder: Path, steps: int = 3, total: int | None = 10, **validations: float) -> Path:
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    total_text = "null" if total is None else str(total)
    (folder / "config.yaml").write_text(f"trainer:\n  total_epochs: 1\n  total_training_steps: {total_text}\n")
    rows = []
    for step in range(1, steps + 1):
        row = {"critic/score/mean": 0.5, "timing_s/step": 3.0}
        row |= {SCORE: validations[f"at{step}"], "timing_s/testing": 1.5} if f"at{step}" in validations else {}
        rows.append(json.dumps({"step": step, "data": row}) + "\n")
    (folder / "metrics.jsonl").write_text("".join(rows))
    return folder


def states(folder: Path) -> dict[str, str]:
    return {run.path.name: run.state for run in list_runs(folder)[0]}


def test_a_run_of_another_process_is_running_and_has_a_time_left(tmp_path):
    run = make_run(tmp_path / "a", at2=0.5, at3=0.25)
    command = [sys.executable, "-S", "-c", HOLD, str(run / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        now = os.stat(run / "metrics.jsonl").st_mtime
        os.utime(run / "metrics.jsonl", (now + 3600, now + 3600))  # no time has passed since
        summary = summarize(run)
        with pytest.raises(UserError, match="another run is using"), RunFolder(run).locked():
            pass
        os.utime(run / "metrics.jsonl", (now - 3600, now - 3600))
        os.utime(run / ".lock", (now - 3600, now - 3600))
        assert summarize(run).problem.startswith("no sign of life for 1:00")
        process.stdin.close()
        process.wait()
    assert (summary.state, summary.step, summary.total_steps) == ("running", 3, 10)
    assert summary.seconds_left == pytest.approx(7 * 4.0)  # the mean of 3, 4.5 and 4.5
    assert summary.validation == (3, 0.25, 2, 0.5)
    assert summarize(run).state == "stopped"


def test_looking_does_not_release_the_lock_of_this_process(tmp_path):
    make_run(tmp_path / "a")
    folder = RunFolder(tmp_path / "a")
    with folder.locked():
        assert lock_state(folder.path) and states(tmp_path) == {"a": "running"}
        code = "import sys, pathlib, burnish.log.folder as f; print(f.lock_state(pathlib.Path(sys.argv[1])))"
        command = [sys.executable, "-c", code, str(folder.path)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    assert not lock_state(folder.path)


def test_finished_stopped_and_crashed_runs_are_told_apart(tmp_path):
    for name in ("finished", "stopped", "failed", "killed"):
        make_run(tmp_path / "runs" / "project" / name)
    runs = tmp_path / "runs" / "project"
    record = {"step": 12, "total_steps": 12, "validation": {"0": {SCORE: 0.1}, "12": {SCORE: 0.9}}}
    (runs / "finished" / "finished.json").write_text(json.dumps(record))
    with pytest.raises(ValueError), RunFolder(runs / "failed").locked():
        raise ValueError("out of range\nwith a second line")
    with pytest.raises(KeyboardInterrupt), RunFolder(runs / "stopped").locked():
        raise KeyboardInterrupt
    (runs / "killed" / ".lock.json").write_text('{"pid": 1}')
    make_run(runs / "hung")
    (runs / "hung" / "hang_rank_0.txt").write_text("2026-01-01T00:00 rank 0 hangs in gen\nThread 0x1\n")
    assert states(tmp_path) == {
        "finished": "finished",
        "stopped": "stopped",
        "failed": "crashed",
        "killed": "crashed",
        "hung": "hung",
    }
    assert summarize(runs / "hung").problem == "2026-01-01T00:00 rank 0 hangs in gen"
    assert summarize(runs / "failed").problem == "ValueError: out of range"
    assert summarize(runs / "finished").validation == (12, 0.9, 12, 0.9)
    with RunFolder(runs / "failed").locked():  # the next start
        assert not (runs / "failed" / FAILURE).exists()
    assert summarize(runs / "failed").state == "stopped"


def test_broken_and_hostile_folders_are_named_and_harmless(tmp_path, capsys):
    make_run(tmp_path / "good")
    hostile = make_run(tmp_path / "\x1b[2Jevil\u202e")
    (hostile / FAILURE).write_text(json.dumps({"error": "\x1b[31mred " + "x" * 300}))
    garbage = make_run(tmp_path / "garbage")
    (garbage / "metrics.jsonl").write_bytes(b"\xff\x00 not json\n" * 10)
    (garbage / "finished.json").write_text("[" * 10_000)
    (garbage / "config.yaml").unlink()
    (garbage / "config.yaml").mkdir()
    pipe = make_run(tmp_path / "pipe")
    (pipe / "metrics.jsonl").unlink()
    os.mkfifo(pipe / "metrics.jsonl")  # nobody writes to it
    (tmp_path / "loop").symlink_to(tmp_path)
    long = make_run(tmp_path / "long")
    with open(long / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 9, "data": {"x" * 600_000: 1.0}}) + "\n" + '{"step": 10, "da')
    assert main(["runs", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text and "\u202e" not in text and "\\u001b[2Jevil" in text
    assert "metrics.jsonl has no readable line" in text
    assert "unreadable" in next(line for line in text.splitlines() if line.endswith("pipe"))
    assert "9/10" in next(line for line in text.splitlines() if line.endswith("long"))
    assert text.count("good") == 1


def test_a_table_fits_80_columns_and_json_is_complete(tmp_path, monkeypatch, capsys):
    for number in range(30):
        make_run(tmp_path / ("deep" * 15) / f"词 {number}", at1=0.5)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 31 and max(map(cell_len, lines)) <= 80
    assert lines[1].endswith(tuple("0123456789")) and "0.5 (step 1)" in lines[1]
    assert main(["runs", str(tmp_path), "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert len(entries) == 30 and all(Path(entry["path"]).is_dir() for entry in entries)
    assert entries[0]["best_validation"] == {"step": 1, "score": 0.5} and entries[0]["total_steps"] == 10


def test_an_empty_or_missing_folder(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "missing")]) == 1
    assert "no such folder" in capsys.readouterr().err


def test_steps_are_unknown_where_nothing_says_them(tmp_path, capsys):
    run = make_run(tmp_path / "a", total=None)
    assert summarize(run).total_steps is None
    (run / "timeline.jsonl").write_text('{"step": 3, "time": 1, "total_steps": 40, "spans": []}\n')
    assert summarize(run).total_steps == 40
