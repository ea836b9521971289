"""The step that a run is in, from its journal."""

import json
import os

from burnish.log.folder import RunFolder
from burnish.view.api import ViewApi
from burnish.view.runs import RunReader


def turn(id, number, ids):
    return {"key": f"{id}.turn{number}.aa", "value": {"ids": ids, "finish_reason": "stop"}}


def test_conversations_of_a_step_that_is_not_over(run_folder):
    path = run_folder / "journal" / "5.jsonl"
    path.parent.mkdir()
    answer = {"value": {"text": "Error: no <b>", "failed": True}, "seconds": 1}
    lines = [
        {"experiment": {"job": "train"}},
        turn("a", 0, [5, 6, 7]),
        turn("b", 0, [8, 9]),
        {"key": "a.call0.bb"},
        {"key": "b.act0"},
        {"key": "b.act0", "value": answer},
        turn("b", 1, [5, "x", 6]),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    api = ViewApi([RunReader(run_folder)])
    assert api.answer("progress", {}) == {"name": None}, "the run is not running"
    with RunFolder(run_folder).locked():
        first = api.answer("progress", {})
        with open(path, "a") as file:
            file.write('{"key": "a.call0.bb", "value": {"value": {"text": "7"}}}\n{"key": "c.turn0", "va')
        second = api.answer("progress", {})
        later = path.stat().st_mtime + 10
        os.utime(run_folder / "metrics.jsonl", (later, later))
        assert api.answer("progress", {}) == {"name": None}, "the step is over"
    assert [first[name] for name in ("name", "conversations", "turns", "calls", "tokens", "waiting")] == [
        *("5", 2, 3, 2, 7, 1)
    ]
    assert [(row["id"], row["is_waiting"], row["failed"]) for row in first["rows"]] == [("b", False, 1), ("a", True, 0)]
    assert len(first["rows"][0]["last"]) == 2
    newest = second["rows"][0]
    assert (newest["id"], newest["is_waiting"], newest["last"]) == ("a", False, "7")
    assert second["turns"] == 3 and second["waiting"] == 0
