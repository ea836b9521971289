"""burnish generate: prompts in, the same rows with responses out."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from burnish.cli.main import main
from burnish.config import load
from burnish.config.status import status_of
from burnish.config.tree import tree
from burnish.errors import UserError
from burnish.jobs.generate import generate

QUESTIONS = ["1+1", "7", "3+4+5", "9?", "10+2"]


@pytest.fixture
def rows():
    return [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"ground_truth": str(number), "style": "rule"},
            "extra_info": {"index": number},
        }
        for number, question in enumerate(QUESTIONS)
    ]


@pytest.fixture
def prompts(tmp_path, rows):
    """A parquet file whose number column is narrow: types must survive."""
    table = pa.Table.from_pylist(rows).append_column("small", pa.array(range(len(rows)), pa.int8()))
    pq.write_table(table, tmp_path / "prompts.parquet")
    return tmp_path / "prompts.parquet"


@pytest.fixture
def settings(tiny_folder, prompts, tmp_path):
    def make(*more, out="out.parquet"):
        return [
            f"model.path={tiny_folder}",
            f"data.path={prompts}",
            f"data.output_path={tmp_path / out}",
            "data.n_samples=2",
            "rollout.prompt_length=20",
            "rollout.response_length=6",
            "rollout.top_k=-1",
            "rollout.top_p=1",
            "rollout.max_num_seqs=16",
            "trainer.device=cpu",
            *more,
        ]

    return make


@pytest.fixture
def responses(settings):
    """responses(*overrides): the responses that were written."""
    return lambda *more: pq.read_table(generate(settings(*more))).column("responses").to_pylist()


def test_the_same_rows_with_responses(settings, prompts):
    out = generate(settings())
    table, before = pq.read_table(out), pq.read_table(prompts)
    assert table.column_names == [*before.column_names, "responses"]
    assert table.select(before.column_names).equals(before)
    texts = table.column("responses").to_pylist()
    assert [len(group) for group in texts] == [2] * 5
    assert len({text for group in texts for text in group}) > 5
    assert all(len(text) <= 6 and "<" not in text for group in texts for text in group)


def test_json_lines_and_plain_strings(settings, tmp_path, rows):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({**row, "prompt": row["prompt"][0]["content"]}) + "\n" for row in rows))
    table = pq.read_table(generate(settings(f"data.path={file}")))
    assert table.column("prompt").to_pylist() == QUESTIONS
    assert table.column("reward_model").to_pylist() == [row["reward_model"] for row in rows]
    assert [len(group) for group in table.column("responses").to_pylist()] == [2] * 5


def test_batch_size_does_not_change_responses(responses):
    whole = responses()
    assert responses("data.batch_size=2") == whole
    assert responses("data.n_samples=3") != whole
    assert [group[:2] for group in responses("data.n_samples=3")] == whole


def test_engines_agree(responses):
    greedy = ("data.n_samples=1", "rollout.do_sample=false")
    assert responses(*greedy, "rollout.name=hf") == responses(*greedy)


@pytest.mark.parametrize(
    "override",
    [
        "trainer.seed=2",
        "rollout.seed=2",
        "rollout.temperature=9",
        "rollout.top_k=1",
        "rollout.top_p=0.1",
        "rollout.min_p=0.9",
        "rollout.ignore_eos=true",
        "rollout.stop=['7','1']",
        "rollout.stop_token_ids=[4,5,6]",
        "rollout.min_tokens=6",
        "rollout.bad_words=['1','7']",
        "rollout.repetition_penalty=9",
        "rollout.presence_penalty=2",
        "rollout.frequency_penalty=2",
        "rollout.use_fire_sampling=true",
        "rollout.response_length=2",
        "data.apply_chat_template_kwargs.add_generation_prompt=false",
        "data.prompt_key=other",
        "model.override_config.rms_norm_eps=100.5",
    ],
)
def test_keys_that_change_the_responses(responses, prompts, override):
    table = pq.read_table(prompts)
    pq.write_table(table.append_column("other", [["4"] * len(table)]), prompts)
    assert responses(override) != responses()


def test_long_prompts(responses, settings):
    with pytest.raises(UserError, match="row 2 has 12 tokens") as caught:
        generate(settings("rollout.prompt_length=11"))
    assert caught.value.key == "rollout.prompt_length" and "data.truncation=left" in caught.value.hint
    cuts = [responses("rollout.prompt_length=4", f"data.truncation={side}") for side in ("left", "right", "middle")]
    assert cuts[0] != cuts[1] and all(len(group) == 2 for cut in cuts for group in cut)


def test_max_model_len_limits_the_responses(responses):
    """Longer prompts leave fewer tokens for the response."""
    texts = responses("rollout.max_model_len=21", "rollout.ignore_eos=true", "rollout.response_length=20")
    assert len({max(map(len, group)) for group in texts}) > 1


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["model.path=null"], "model.path"),
        (["data.path=null"], "data.path"),
        (["data.path=nowhere.parquet"], "data.path"),
        (["model.path=/nowhere/model"], "model.path"),
        (["data.prompt_key=question"], "data.prompt_key"),
        (["data.output_path=out.csv"], "data.output_path"),
        (["rollout.temperature=0"], "data.n_samples"),
        (["rollout.do_sample=false"], "data.n_samples"),
        (["rollout.max_model_len=20"], "rollout.max_model_len"),
        (["rollout.min_tokens=7"], "rollout.min_tokens"),
        (["rollout.name=vllm"], "rollout.name"),
        (["trainer.nnodes=2", "trainer.launcher=processes"], "trainer.launcher"),
        (["rollout.load_format=dumy"], "rollout.load_format"),
        (["rollout.stop_token_ids=[4000]"], "rollout.stop_token_ids"),
    ],
)
def test_errors_are_reported_before_a_model_is_loaded(settings, monkeypatch, overrides, key):
    monkeypatch.setattr("burnish.jobs.generate.load_causal_lm", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(UserError) as caught:
        generate(settings(*overrides))
    assert caught.value.key == key


def test_an_existing_responses_column_is_refused(settings):
    out = generate(settings())
    with pytest.raises(UserError, match="already"):
        generate(settings(f"data.path={out}", out="again.parquet"))


def test_a_failure_keeps_the_old_file(settings, monkeypatch):
    out = generate(settings())
    before = out.read_bytes()
    monkeypatch.setattr("burnish.jobs.generate.respond", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate(settings())
    assert out.read_bytes() == before and [file.name for file in out.parent.glob(".*")] == []


def test_the_command(settings, capsys, tmp_path):
    assert (
        main(["generate", *settings("data.batch_size=2", "actor.strategy=fsdp2", "rollout.disable_log_stats=false")])
        == 0
    )
    output = capsys.readouterr().out
    assert "4/5 prompts" in output and f"wrote 5 rows with 2 responses each to {tmp_path / 'out.parquet'}" in output
    assert "actor.strategy=fsdp2 has no effect here" in output and "prefill_tokens" in output
    assert main(["generate", "--cfg", *settings()]) == 0
    assert "output_path" in capsys.readouterr().out
    assert main(["generate", "model.path=m"]) == 1
    assert "data.path" in capsys.readouterr().err


def test_json_is_all_of_standard_output(settings, capsys, tmp_path):
    assert main(["generate", *settings()[:3], "--json", *settings()[3:]]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"path": str(tmp_path / "out.parquet"), "rows": 5, "n_samples": 2}
    assert "5/5 prompts" in printed.err


def test_status_of_every_key():
    kinds = {key: status_of(key, job="generate").kind for key in tree("generate").leaves}
    assert kinds["data.path"] == kinds["rollout.temperature"] == kinds["trainer.seed"] == "acts"
    assert kinds["trainer.nnodes"] == kinds["trainer.launcher"] == kinds["ray_init.num_cpus"] == "acts"
    assert kinds["actor.strategy"] == kinds["ray_init.reward_nodes"] == kinds["rollout.n"] == "inert"
    notices = load(["model.path=m", "data.path=p", "rollout.name=hf", "rollout.invariant=true"], job="generate").notices
    assert any("paged KV cache" in notice for notice in notices)
