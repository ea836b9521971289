"""burnish view --text: curves and samples as lines for a terminal."""

from __future__ import annotations

import json

import pytest
from rich.cells import cell_len

from burnish.cli.main import main
from burnish.errors import UserError
from burnish.log.folder import dump_rollouts
from burnish.view import text
from burnish.view.runs import RunReader


@pytest.fixture
def run(run_folder):
    return RunReader(run_folder)


def texts(lines) -> list[str]:
    return [line.text for line in lines]


def add_metrics(folder, step: int, **metrics: float) -> None:
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(
            json.dumps({"step": step, "data": {name.replace("__", "/"): v for name, v in metrics.items()}}) + "\n"
        )


def test_the_summary_has_state_validation_and_alarms(run, run_folder):
    add_metrics(run_folder, 4, **{"val-core__sums__acc__mean@1": 0.75})
    for step in (5, 6):
        add_metrics(run_folder, step, reward__failed=2.0)
    lines = texts(text.summary(run, 80))
    assert lines[0].endswith(": finished, step 6/4")
    assert "validation: last 0.75 (step 4), best 0.75 (step 4)" in lines
    assert any(line.startswith(("warning: ", "critical: ")) and "(step 6)" in line for line in lines)


def test_curves_are_grouped_by_prefix_and_can_be_chosen(run):
    lines = texts(text.curves(run, 80, []))
    assert [line for line in lines if line and not line.startswith(" ")] == ["actor", "critic", "timing_s"]
    score = next(line for line in lines if "score/mean" in line)
    assert "▁▃▆█" in score and score.endswith("1  0.25 to 1")
    assert len(texts(text.curves(run, 80, ["critic"]))) == 3
    assert any("grad_norm" in line for line in texts(text.curves(run, 80, ["*/grad_*"])))
    with pytest.raises(UserError, match="no such metric"):
        list(text.curves(run, 80, ["citric"]))


def test_samples_of_a_step_are_listed_by_group(run):
    lines = texts(text.samples(run, None, 80))
    assert lines[0] == "step 4: 4 samples in 2 groups"
    assert lines[1].split() == ["0", "0", "1", "add", "what", "is", "0+4?"]
    assert texts(text.samples(run, 2, 80, limit=1))[2] == "  1 more groups: --limit N"
    with pytest.raises(UserError, match="no samples of this step"):
        list(text.samples(run, 99, 80))


def test_a_group_shows_prompt_scores_turns_and_tools(run):
    lines = texts(text.group(run, 3, 1, 80, full=False))
    assert lines[:5] == ["step 3, group 1: 2 samples", "prompt", "    what is 2+3?", "ground truth", "    5"]
    assert lines[6] == "sample 1  score 1  length  sums  acc true"  # the best score first
    assert lines[7:12] == ["assistant", "    let me see", "    calls add: ", "tool  reward 0.5  0.25 s", "    7"]
    with pytest.raises(UserError, match="0 to 1"):
        list(text.group(run, 3, 2, 80, full=False))


def test_a_search_says_where_to_look(run):
    lines = texts(text.matches(run, "Answer is 7", 80))
    assert lines[0] == "1 samples contain 'Answer is 7'"
    assert lines[1] == "  --step 4 --group 1  the [answer is 7]"
    assert texts(text.matches(run, "answer", 80, limit=2))[0] == "2+ samples contain 'answer'"


def test_hostile_and_long_texts_are_inert_and_bounded(run, run_folder, tools):
    hostile = "\x1b[2J\x1b]0;x\x07\u202e" + "词" * 3000 + "\nfinished: a line of ours?"
    rows = [tools.record(9, row, output=hostile, uid="\x1b[31m", turns=[], **{"\x1b[5m": "\r"}) for row in range(2)]
    dump_rollouts(run_folder / "rollouts", 9, rows)
    add_metrics(run_folder, 9, **{"\x1b[2J\n__" + "n" * 200: 1.0, "critic__score__mean": float("inf")})
    shown = [*text.samples(run, 9, 80), *text.group(run, 9, 0, 80, full=False), *text.curves(run, 80, [])]
    shown += [*text.matches(run, "词词", 80), *text.summary(run, 80)]
    for line in shown:
        assert cell_len(line.text) <= 80
        assert "\x1b" not in line.text and "\u202e" not in line.text and "\r" not in line.text and "\n" not in line.text
        assert not line.text.startswith("finished")
    assert any("more characters: --full" in line.text for line in shown)
    full = texts(text.group(run, 9, 0, 80, full=True))
    assert "".join(full).count("词") == 6000
    assert any(line.strip() == "finished: a line of ours?" for line in full)


def test_a_run_without_samples_is_explained(run, run_folder):
    for file in (run_folder / "rollouts").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="no samples on disk"):
        list(text.samples(run, None, 80))


def test_the_command_prints_what_its_flags_ask_for(run_folder, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")

    def printed(*flags: str) -> str:
        assert main(["view", str(run_folder.parent), "--text", *flags]) == 0
        return capsys.readouterr().out

    overview = printed()
    assert "finished, step 4/4" in overview and "▁▃▆█" in overview and "step 4: 4 samples" in overview
    assert max(cell_len(line) for line in overview.splitlines() if str(run_folder) not in line) <= 80
    assert "step 2: 4 samples in 2 groups" in printed("--step", "2")
    assert "let me see" in printed("--step", "2", "--group", "1")
    assert "--step 4 --group 1" in printed("--search", "answer is 7")
    assert "grad_norm" not in printed("--metrics", "critic")
