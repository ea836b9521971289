from __future__ import annotations

import math

import matplotlib.image
import matplotlib.pyplot
import pytest

from burnish.log.curves import draw_curves, smoothed, sparkline, terminal_curve
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
    assert draw_curves(metrics, out) == ["Score", "Time per step"]  # a loss of NaN has no curve
    picture = matplotlib.image.imread(out)
    assert picture.shape[0] > 200 and picture.shape[1] > 600
    assert picture.std() > 0.01  # something is drawn
    assert matplotlib.pyplot.get_fignums() == before


def draw_figure(tmp_path, monkeypatch, steps):
    """The figure that would be saved."""
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *args, **kwargs: figures.append(self))
    draw_curves(write_metrics(tmp_path / "metrics.jsonl", *steps), tmp_path / "curves.png")
    (figure,) = figures
    figure.canvas.draw()
    return figure


def test_no_panel_is_empty_and_titles_are_readable(tmp_path, monkeypatch):
    steps = [
        {"critic/score/mean": 0.0, "actor/ppo_kl": 0.0, "actor/entropy": 1.0, "actor/pg_loss": 0.1, "timing_s/gen": 1.0}
        | {"response_length/mean": 5.0, "critic/vf_loss": math.inf}
        for _ in range(3)
    ]
    figure = draw_figure(tmp_path, monkeypatch, steps)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["Score", "Response length", "Entropy of the policy", "Loss", "Time per step"]  # no KL: all zero
    assert all(axis.lines for axis in figure.axes)
    labels = [text.get_text() for axis in figure.axes if (legend := axis.get_legend()) for text in legend.get_texts()]
    assert labels == ["training", "mean", "policy", "generation"]
    left, right = figure.axes[3].get_position(), figure.axes[4].get_position()
    assert right.x1 - left.x0 > 0.8  # two panels share the last row


def test_curves_are_smoothed_over_the_faint_raw_values(tmp_path, monkeypatch):
    steps = [{"critic/score/mean": float(step % 2)} for step in range(60)] + [{"val-core/x/acc/mean@1": 0.5}]
    (axis,) = draw_figure(tmp_path, monkeypatch, steps).axes
    raw, strong, validation = axis.lines
    assert raw.get_alpha() < 0.5 and list(raw.get_ydata()) == [step["critic/score/mean"] for step in steps[:60]]
    assert max(strong.get_ydata()[5:-5]) < 0.6
    assert validation.get_marker() == "o"


def test_the_legend_is_outside(tmp_path, monkeypatch):
    steps = [{"timing_s/gen": 1.0, "timing_s/step": 2.0, "timing_s/update_actor": 1.0, "timing_s/sleep": 1e-3}] * 3
    (axis,) = draw_figure(tmp_path, monkeypatch, steps).axes
    legend = axis.get_legend()
    assert legend.get_window_extent().y1 <= axis.get_window_extent().y0
    assert [text.get_text() for text in legend.get_texts()] == ["generation", "whole step", "policy update"]


def test_smoothing_keeps_a_constant_and_the_length():
    assert smoothed([2.0] * 40) == pytest.approx([2.0] * 40)
    assert smoothed([1.0]) == [1.0]


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
