from __future__ import annotations

import math

import matplotlib.image
import matplotlib.pyplot
import pytest

from burnish.log.curves import draw_curves, sparkline, terminal_curve
from burnish.log.jsonl import encode


def write_metrics(path, *steps):
    path.write_text("".join(encode({"step": i, "data": data}) + "\n" for i, data in enumerate(steps, 1)))
    return path


def test_panels_with_metrics_are_plotted(tmp_path):
    before = matplotlib.pyplot.get_fignums()
    metrics = write_metrics(
        tmp_path / "metrics.jsonl",
        {"critic/score/mean": 0.1, "timing_s/gen": 1.0, "actor/pg_loss": math.nan},
        {"critic/score/mean": 0.4, "timing_s/gen": 2.0, "val-core/x/acc/mean@1": 0.5},
    )
    out = tmp_path / "pictures" / "curves.png"
    assert draw_curves(metrics, out) == ["score", "loss", "seconds"]
    picture = matplotlib.image.imread(out)
    assert picture.shape[0] > 200 and picture.shape[1] > 600
    assert picture.std() > 0.01  # something is drawn
    assert matplotlib.pyplot.get_fignums() == before


def test_no_file_without_metrics(tmp_path):
    assert draw_curves(write_metrics(tmp_path / "m.jsonl", {"other": 1.0}), tmp_path / "x.png") == []
    assert not (tmp_path / "x.png").exists()


def test_terminal_curve_rises_with_its_values():
    lines = terminal_curve([0.0, 1.0, 2.0, 3.0], width=10, height=4).splitlines()
    assert len(lines) == 4
    assert lines[0] == "3 ┤   █" and lines[-1] == "0 ┤▁███"


@pytest.mark.parametrize("count", [1, 59, 60, 61, 1000])
def test_terminal_curve_keeps_its_size(count):
    lines = terminal_curve([math.sin(i / 9) for i in range(count)], width=60, height=5).splitlines()
    label = lines[0].index("┤") + 1
    assert len(lines) == 5
    assert max(len(line) for line in lines) - label == min(count, 60)


def test_terminal_curve_edge_cases():
    assert terminal_curve([]) == "" and terminal_curve([math.nan]) == ""
    assert terminal_curve([0.5, math.nan, 0.5], height=2).splitlines() == ["0.5 ┤", "0.5 ┤▁▁"]


def test_a_sparkline_keeps_its_scale():
    assert sparkline([0, 0.4, 1], 0, 1) == "▁▄█"
    assert sparkline([-5, 9], 0, 1) == "▁█"
    assert len(sparkline(list(range(100)), 0, 100)) == 24
