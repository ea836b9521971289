"""RunReader: what it finds in a run folder, also while the run still writes to it."""

import json
import os
import socket

import numpy as np
import pytest

from burnish.errors import UserError
from burnish.log.tokens import SAMPLED, TRAINED, TokenWriter, recorded_steps, token_path
from burnish.view.api import ViewApi
from burnish.view.runs import RunReader, find_runs, unique_names


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


def test_metrics_grow_are_merged_and_forgotten_after_a_resume(run_folder):
    reader, path = RunReader(run_folder), run_folder / "metrics.jsonl"
    assert reader.metrics().curve("critic/score/mean")[-1] == (4, 1.0)
    append(path, '{"step": 5, "data": {"a": 1}}\nnot json\n{"step": 6, "data": {"a": "NaN"}}\n{"step": 7, "da')
    metrics = reader.metrics()
    assert metrics.last_step == 6 and np.isnan(metrics.latest("a"))
    append(path, 'ta": {"a": 2}}\n')
    assert reader.metrics().latest("a") == 2
    lines = path.read_text().splitlines(keepends=True)[:2]
    path.unlink()
    path.write_text("".join(lines))
    assert sorted(reader.metrics().steps) == [1, 2] and "a" not in reader.metrics().names


def test_the_state_of_a_run(run_folder):
    reader = RunReader(run_folder)
    state = reader.state()
    assert (state.state, state.step, state.total_steps, state.seconds_per_step) == ("finished", 4, 4, 2.0)
    (run_folder / "finished.json").unlink()
    assert reader.state().state == "stopped"
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": "now"}
    (run_folder / ".lock.json").write_text(json.dumps(holder))
    append(run_folder / "config.yaml", "  total_epochs: 3\n")
    assert reader.state().state == "running" and reader.state().seconds_left == 0.0
    (run_folder / ".lock.json").write_text(json.dumps(holder | {"pid": 2**22 + 1}))
    (run_folder / "hang_rank_0.txt").write_text("2026-01-01 gen\nstacks\n")
    assert reader.state().state == "hung" and reader.state().problem == "2026-01-01 gen"
    later = (run_folder / "hang_rank_0.txt").stat().st_mtime + 1
    os.utime(run_folder / "metrics.jsonl", (later, later))
    assert reader.state().state == "crashed" and reader.state().problem == "the process was killed"


def test_files_of_a_run(run_folder):
    reader = RunReader(run_folder)
    assert reader.config()["trainer"]["seed"] == 7
    assert reader.notes() == ["a note"] and reader.command() == ["burnish train"]
    assert [(c.step, c.is_latest, c.is_best) for c in reader.checkpoints()] == [(4, True, False)]
    assert reader.timeline()[4]["spans"][0][0] == "gen"


def test_trajectories_are_summarized_and_found(run_folder):
    reader = RunReader(run_folder)
    assert reader.steps() == [1, 2, 3, 4] and reader.token_steps() == [2, 3, 4]
    samples = reader.step_file(4).samples
    assert [(s.uid, s.score, s.finish_reason) for s in samples[:2]] == [
        ("group-0", 0.0, "length"),
        ("group-0", 1.0, "stop"),
    ]
    assert samples[0].tools == ("add",) and samples[0].tool_seconds == 0.25 and samples[0].num_turns == 2
    assert reader.step_file(4).record(3)["gts"] == "7"
    found = reader.search("ANSWER is 5")
    assert [(m.step, m.row, m.match) for m in found.matches] == [
        (4, 1, "answer is 5"),
        (3, 2, "answer is 5"),
        (2, 3, "answer is 5"),
    ]
    assert found.next_step is None


def test_tokens_are_what_the_batch_had(run_folder, tools):
    batch, tokens = tools.make_batch(4), RunReader(run_folder).token_file(4)
    assert len(tokens) == len(batch) and tokens.version == 3
    for row in range(len(batch)):
        columns = tokens.row(row)
        assert columns["ids"].tolist() == batch["responses"][row].tolist()
        assert np.array_equal(columns["old_log_probs"], batch["old_log_probs"][row].numpy())
        assert np.allclose(columns["advantages"], batch["advantages"][row].numpy(), rtol=1e-3)
        flags = [SAMPLED | TRAINED if sampled else 0 for sampled in batch["response_mask"][row].bool()]
        assert columns["flags"].tolist() == flags
        assert tokens.prompt(row) == [5, 6, 7]
    assert tokens.row(1, 2, 5)["ids"].tolist() == batch["responses"][1].tolist()[2:5]
    start, end = tokens.times()[2]
    assert end - start == pytest.approx(0.5)


def test_texts_of_tokens_come_from_the_run(run_folder):
    reader = RunReader(run_folder)
    ids = reader.token_file(4).row(0)["ids"].tolist()
    text = "".join(reader.texts.texts(ids))
    assert set(text) <= set("0123456789+") and len(text) == len(ids)
    assert reader.texts.retokenized(ids) == ids
    (run_folder / "tokens" / "tokenizer.json").unlink()
    assert RunReader(run_folder).texts.text(5) == "#5"


def test_a_repeated_step_drops_later_records_and_keep_bounds_them(tmp_path, tools):
    for first, last, keep in ((1, 5, None), (3, 4, None), (5, 6, 2)):
        writer = TokenWriter(tmp_path, keep)
        for step in range(first, last + 1):
            writer.record(step, tools.make_batch(step))
        writer.close()
    assert recorded_steps(tmp_path) == [5, 6]
    off = TokenWriter(tmp_path / "none", 0)
    off.record(1, tools.make_batch())
    off.close()
    assert not (tmp_path / "none").exists()


def test_a_disk_that_refuses_tokens_stops_nothing(tmp_path, tools):
    (tmp_path / "tokens").write_text("a file, not a folder")
    writer = TokenWriter(tmp_path / "tokens", 3)
    writer.record(1, tools.make_batch())
    writer.close()
    assert "cannot record the tokens of step 1" in writer.take_problem()


@pytest.mark.parametrize("damage", [b"", b"\xff" * 64, (100).to_bytes(8, "little") + b"{}"])
def test_damaged_files_are_missing_ones(run_folder, damage):
    token_path(run_folder / "tokens", 4).write_bytes(damage)
    (run_folder / "rollouts" / "4.jsonl").write_bytes(damage + b'\n[1]\n{"score": {"a": []}, "turns": 3, "uid": 5}\n')
    (run_folder / "config.yaml").write_text("{" * 500)
    reader = RunReader(run_folder)
    assert reader.token_file(4) is None and reader.config() == {}
    assert [(s.score, s.uid) for s in reader.step_file(4).samples] == [(None, "5")]


def test_links_that_lead_out_of_the_folder_are_not_followed(run_folder, tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"input": "secret", "output": "", "gts": "", "score": 1}\n')
    (run_folder / "rollouts" / "9.jsonl").symlink_to(secret)
    (run_folder / "notes.txt").unlink()
    (run_folder / "notes.txt").symlink_to(secret)
    reader = RunReader(run_folder)
    assert reader.steps() == [1, 2, 3, 4] and reader.notes() == [] and reader.search("secret").matches == []


def test_runs_are_found_below_a_folder(run_folder, tmp_path):
    assert [run.path for run in find_runs([tmp_path])] == [run_folder]
    assert find_runs([run_folder])[0].name == f"{tmp_path.name}/run"
    with pytest.raises(UserError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])


def test_names_tell_runs_apart(tmp_path):
    paths = [tmp_path / name for name in ("a/seed_1/run", "b/seed_1/run", "b/seed_2/run", "c/x")]
    assert unique_names([RunReader(path) for path in paths]) == ["a/seed_1/run", "b/seed_1/run", "seed_2/run", "x"]


def test_runs_that_start_later_are_found_and_keep_their_numbers(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.view.api.MIN_SEARCH", 0.0)
    api = ViewApi(find_runs([tmp_path]), find=lambda: find_runs([tmp_path]))
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / ".lock").touch()
    rows = api.answer("runs", {})["runs"]
    assert [(row["id"], row["name"], row["state"]) for row in rows] == [
        (0, f"{tmp_path.name}/run", "finished"),
        (1, "later", "stopped"),
    ]


def test_a_list_of_runs_reads_no_file_again_that_did_not_change(run_folder, monkeypatch):
    reader = RunReader(run_folder)
    first = reader.summary()
    monkeypatch.setattr("burnish.view.runs.summarize_run", lambda path: pytest.fail("read again"))
    assert reader.summary() is first and reader.config() is reader.config()
    with open(run_folder / "notes.txt", "a") as file:
        file.write("another note\n")
    with pytest.raises(pytest.fail.Exception):
        reader.summary()
