from __future__ import annotations

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from burnish.log.logger import RunInfo
from burnish.log.tensorboard import TensorboardLogger


def test_tensorboard_dir_and_markdown_tables(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "elsewhere"))
    logger = TensorboardLogger()
    logger.start(RunInfo("p", "n", tmp_path / "run", {"lr": 1e-6}, 3))
    logger.table("val", 2, ["input", "output"], [["a|b", "c\nd"]])
    logger.close()
    events = EventAccumulator(str(tmp_path / "elsewhere")).Reload()
    (table,) = events.Tensors("val/text_summary")
    text = table.tensor_proto.string_val[0].decode()
    assert table.step == 2
    assert text == "| input | output |\n| --- | --- |\n| a\\|b | c<br>d |"
    config = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"lr": 1e-06' in config
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_points_of_repeated_steps_are_hidden(tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    run = RunInfo("p", "n", tmp_path, {}, 3)
    for resume_step, steps in ((None, (1, 2, 3)), (1, (2,))):
        logger = TensorboardLogger()
        logger.start(run, resume_step=resume_step)
        for step in steps:
            logger.log(step, {"a": step + (resume_step or 0) / 2})
        logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("a")] == [(1, 1.0), (2, 2.5)]
