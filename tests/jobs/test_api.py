"""The Python API: docs/python.md runs as written, results are plain data, and a running event loop is no obstacle."""

import asyncio
import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest

import burnish
from burnish.errors import UserError
from burnish.jobs.generate import Generated

from ..laws.source import ROOT, blocks

SMALL = {"data.n_samples": 2, "rollout": {"prompt_length": 20, "response_length": 4}, "trainer.device": "cpu"}
CHAT = [{"role": "user", "content": "7"}]


def reward(solution_str, ground_truth=None):
    return float(len(solution_str))


@pytest.fixture
def settings(tiny_folder):
    return {"model.path": Path(tiny_folder), **SMALL}


def test_the_page_runs_as_written(tiny_folder, tmp_path, monkeypatch):
    shutil.copytree(tiny_folder, tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    shown = [block for block in blocks(ROOT / "docs" / "python.md") if block.language == "python"]
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in shown:
            exec(compile(block.text, f"python.md:{block.line}", "exec"), names)
    assert len(shown) == 5 and "runs/rl" in printed.getvalue()
    assert isinstance(names["answers"], Generated) and Path("answers.parquet").is_file()
    assert json.loads(json.dumps(names["report"].as_dict()))["sources"].keys() == {"sums"}


def test_prompts_of_python_are_written_to_no_file(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generated = burnish.generate(settings, prompts=["1+1", CHAT, {"prompt": "7", "id": 5}])
    assert generated.path is None and list(tmp_path.iterdir()) == []
    assert [len(texts) for texts in generated.responses] == [2, 2, 2]
    assert generated.rows[2] == {"prompt": "7", "id": 5, "responses": generated.responses[2]}
    assert str(generated).startswith("Generated(")
    with pytest.raises(UserError, match=r"data\.output_path"):
        generated.read_bytes()


def test_a_file_is_written_where_it_is_asked_for_and_stands_for_its_path(settings, tmp_path):
    settings = {**settings, "data.output_path": tmp_path / "out.parquet"}
    generated = burnish.generate(settings, prompts=["1+1"])
    assert generated.path == tmp_path / "out.parquet" and generated.path.is_file()
    assert Path(generated) == Path(str(generated)) == generated.path and generated.name == "out.parquet"
    with pytest.raises(AttributeError):
        _ = generated.no_such_name


@pytest.mark.parametrize("prompts", ["1+1", CHAT, {"prompt": "7"}, [], [3], ["7", {"question": "7"}]])
def test_prompts_of_another_form_are_refused(settings, prompts, monkeypatch):
    monkeypatch.setattr("burnish.jobs.generate.load_causal_lm", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(UserError):
        burnish.generate(settings, prompts=prompts)


def test_a_notebook_has_a_running_loop(settings):
    async def cell():
        generated = burnish.generate(settings, prompts=["1+1"])
        rows = [{**row, "data_source": "sums", "reward_model": {"ground_truth": "2"}} for row in generated.rows]
        return generated, burnish.evaluate("reward.num_workers=0", rows=rows, reward=reward)

    generated, report = asyncio.run(cell())
    assert report.scored[0].scores == [float(len(text)) for text in generated.responses[0]]


def test_all_functions_take_all_forms_of_settings():
    """An error shows that the settings were read, before anything is loaded."""
    for function in (burnish.train, burnish.sft, burnish.generate, burnish.evaluate):
        for form in (["trainer.sed=1"], "trainer.sed=1", {"trainer.sed": 1}, {"trainer": {"sed": 1}}):
            with pytest.raises(UserError, match=r"trainer\.sed"):
                function(form)


def test_the_module_lists_its_functions():
    assert set(burnish.__all__) <= set(dir(burnish))
    with pytest.raises(AttributeError, match="no_such"):
        _ = burnish.no_such
