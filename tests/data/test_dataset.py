import pytest
import torch

from burnish.data import dataset as dataset_module
from burnish.data.dataset import PromptDataset
from burnish.data.encode import PromptEncoder
from burnish.data.files import ListRows, join_rows, read_files
from burnish.data.measure import measure
from burnish.data.prompt import Prompt
from burnish.errors import UserError


def length_of(tokenizer, text):
    return len(
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
    )


def test_a_batch_has_the_prompt_columns(tokenizer, config, sums, write):
    dataset = PromptDataset(read_files([write("a.parquet", sums(6))]), tokenizer, config())
    batch = dataset.batch([4, 1], epoch=2)
    assert list(batch) == ["prompt_ids", "uid", "data_source", "ground_truth", "extra_info", "raw_prompt"]
    assert batch["prompt_ids"].flat.dtype == torch.int64
    texts = [tokenizer.decode(ids) for ids in batch["prompt_ids"].lists()]
    assert texts == ["<s>user\n4+4=</s><s>assistant\n", "<s>user\n1+1=</s><s>assistant\n"]
    assert batch["uid"] == [f"{dataset.fingerprint}-4-2", f"{dataset.fingerprint}-1-2"]
    assert batch["data_source"] == ["sums", "sums"]
    assert batch["ground_truth"] == ["8", "2"]
    assert batch["extra_info"] == [{"split": "train", "index": 104}, {"split": "train", "index": 101}]
    assert batch["raw_prompt"][0] == [{"role": "user", "content": "4+4="}]


def test_a_batch_twice_is_equal(tokenizer, config, sums):
    dataset = PromptDataset(sums(4), tokenizer, config())
    first, second = dataset.batch([0, 3], 0), dataset.batch([3, 0], 0)
    assert first["prompt_ids"].lists() == second["prompt_ids"].lists()[::-1]


def test_the_cache_is_bounded(tokenizer, config, sums, monkeypatch):
    monkeypatch.setattr(dataset_module, "CACHED_TOKENS", 50)
    dataset = PromptDataset(sums(8), tokenizer, config())
    ids = dataset.batch(range(8), 0)["prompt_ids"].lists()
    assert 0 < sum(map(len, dataset._cache.values())) <= 50
    assert dataset.batch(range(8), 0)["prompt_ids"].lists() == ids


def test_one_epoch_for_all_or_one_for_each(tokenizer, config, sums):
    dataset = PromptDataset(sums(3), tokenizer, config())
    assert [uid.rsplit("-", 1)[1] for uid in dataset.batch([0, 1], [3, 4])["uid"]] == ["3", "4"]


def test_optional_columns(tokenizer, config, sums):
    cfg = config(return_full_prompt=True, return_raw_input_ids=True, return_raw_chat=False)
    batch = PromptDataset(sums(3), tokenizer, cfg).batch([2], 0)
    assert batch["full_prompts"] == ["<s>user\n2+2=</s><s>assistant\n"]
    assert tokenizer.decode(batch["raw_input_ids"].lists()[0]) == "2+2="
    assert "raw_prompt" not in batch


def test_other_column_names(tokenizer, config):
    rows = [{"chat": "1+1=", "task": "sums"}]
    batch = PromptDataset(rows, tokenizer, config(prompt_key="chat", reward_fn_key="task")).batch([0], 0)
    assert batch["data_source"] == ["sums"]
    assert batch["ground_truth"] == [None]
    assert batch["extra_info"] == [{"index": 0}]
    assert batch["raw_prompt"] == [[{"role": "user", "content": "1+1="}]]


def test_strings_without_a_template(bare_tokenizer, config):
    batch = PromptDataset([{"prompt": "1+1=", "data_source": "sums"}], bare_tokenizer, config()).batch([0], 0)
    assert bare_tokenizer.decode(batch["prompt_ids"].lists()[0]) == "1+1="


def test_messages_without_a_template_fail_at_once(bare_tokenizer, config, sums):
    with pytest.raises(UserError, match="the tokenizer has no chat template"):
        PromptDataset(sums(1), bare_tokenizer, config(truncation="left"))


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
def test_long_prompts_are_cut(truncation, tokenizer, config, sums):
    whole = PromptEncoder(tokenizer, {}).ids(PromptDataset(sums(1), tokenizer, config()).prompt(0))
    cut = PromptDataset(sums(1), tokenizer, config(truncation=truncation, max_prompt_length=8)).batch([0], 0)
    expected = {"left": whole[-8:], "right": whole[:8], "middle": whole[:4] + whole[-4:]}
    assert cut["prompt_ids"].lists() == [expected[truncation]]


def test_truncation_error_stops_before_the_start_and_names_the_row(tokenizer, config, sums, write):
    rows = sums(5) + sums(1, text="x" * 50) + sums(1, text="x" * 60)
    file = write("a.parquet", rows)
    long, longest = (length_of(tokenizer, "x" * n) for n in (50, 60))
    with pytest.raises(UserError) as caught:
        PromptDataset(read_files([file]), tokenizer, config(max_prompt_length=40))
    text = str(caught.value)
    for part in (
        f"{file}, row 5 has {long} tokens",
        "first of 2 such rows",
        "=40",
        f"data.max_prompt_length={longest} ",
    ):
        assert part in text


def test_the_filter_drops_long_prompts_and_keeps_row_numbers(tokenizer, config, sums):
    rows = sums(2) + sums(1, text="x" * 50) + sums(5)[2:]
    limit = length_of(tokenizer, "0+0=")
    dataset = PromptDataset(rows, tokenizer, config(filter_overlong_prompts=True, max_prompt_length=limit))
    assert dataset.kept == [0, 1, 3, 4, 5]
    assert (dataset.report.kept, dataset.report.overlong, dataset.report.failed) == (5, 1, 0)
    dropped = f"kept 5 of 6 prompts; dropped 1 longer than data.max_prompt_length={limit}"
    assert dataset.notices == [f"data.train_files: data.filter_overlong_prompts {dropped}"]
    assert dataset.uid(2, 0) == f"{dataset.fingerprint}-3-0"
    assert dataset.batch([2], 0)["ground_truth"] == ["4"]


def test_a_filter_that_drops_nothing_says_so(tokenizer, config, sums):
    dataset = PromptDataset(sums(3), tokenizer, config(filter_overlong_prompts=True, max_prompt_length=50))
    assert dataset.notices == ["data.train_files: data.filter_overlong_prompts kept 3 of 3 prompts"]


def test_what_is_left_out_or_cut_is_counted_by_file(tokenizer, config, sums):
    parts = [ListRows(sums(2) + sums(1, text="x" * 50), "a.parquet"), ListRows(sums(3), "b.parquet")]
    rows = join_rows(parts, "data.val_files")
    limit = length_of(tokenizer, "0+0=")
    arguments = {"selected": [0, 1, 2, 4], "key": "data.val_files"}
    filtered = PromptDataset(
        rows, tokenizer, config(filter_overlong_prompts=True, max_prompt_length=limit), **arguments
    )
    selected = "data.val_files: data.val_max_samples selects 4 of 6 rows"
    assert filtered.notices[0] == selected
    assert filtered.notices[1].endswith(f"data.max_prompt_length={limit}; a.parquet: 2 of 3, b.parquet: 1 of 1")
    cut = PromptDataset(rows, tokenizer, config(truncation="left", max_prompt_length=limit), **arguments)
    truncated = f"1 of 4 prompts are longer than data.max_prompt_length={limit} and truncated (data.truncation=left)"
    assert cut.notices == [selected, f"data.val_files: {truncated}"]
    assert PromptDataset(sums(3), tokenizer, config(truncation="left", max_prompt_length=50)).notices == []


def test_the_filter_uses_the_configured_workers(tokenizer, config, sums, monkeypatch):
    """test_measure shows that two workers give the same lengths."""
    calls = []

    def measure_here(prompts, encoder, workers):
        calls.append(workers)
        return measure(prompts, encoder, workers=1)

    monkeypatch.setattr(dataset_module, "measure", measure_here)
    rows = [row for count in range(60) for row in sums(3, text="x" * count)]
    cfg = config(filter_overlong_prompts=True, max_prompt_length=50, filter_overlong_prompts_workers=2)
    kept = PromptDataset(rows, tokenizer, cfg).kept
    assert calls == [2]
    assert 0 < len(kept) < len(rows)


def test_an_empty_dataset_says_what_was_dropped_and_why(tokenizer, config, sums):
    bad = [{**row, "prompt": [{"role": "narrator", "content": "x"}]} for row in sums(2)]
    shortest = length_of(tokenizer, "0+0=")
    with pytest.raises(UserError) as caught:
        PromptDataset(sums(3) + bad, tokenizer, config(filter_overlong_prompts=True, max_prompt_length=3))
    text = str(caught.value)
    for part in ("kept 0 of 5", "dropped 3 longer than data.max_prompt_length=3", "dropped 2", "row 3", "no narrators"):
        assert part in text
    assert f"data.max_prompt_length={shortest}" in text


def test_template_failures_in_the_filter_are_counted_and_the_first_named(tokenizer, config, sums):
    rows = sums(4)
    rows[1]["prompt"][0]["role"] = rows[3]["prompt"][0]["role"] = "narrator"
    dataset = PromptDataset(rows, tokenizer, config(filter_overlong_prompts=True))
    assert dataset.kept == [0, 2]
    [notice] = dataset.notices
    assert "kept 2 of 4 prompts; dropped 2 on which the chat template failed (first: dataset, row 1: " in notice


def test_template_failures_without_the_filter_stop(tokenizer, config, sums):
    rows = sums(3)
    rows[0]["prompt"][0]["role"] = "narrator"
    for truncation in ("error", "left"):
        with pytest.raises(UserError, match=r"failed on 1 of 3 prompts .first: dataset, row 0: .*no narrators"):
            PromptDataset(rows, tokenizer, config(truncation=truncation))


@pytest.mark.parametrize(("key", "column"), [("prompt_key", "prompt"), ("reward_fn_key", "data_source")])
def test_a_missing_column_names_those_present(key, column, tokenizer, config, sums, write):
    rows = [{name: value for name, value in row.items() if name != column} for row in sums(2)]
    present = ", ".join(sorted(rows[0]))
    with pytest.raises(
        UserError, match=rf"data\.{key}='{column}': .*no such column in .*a\.parquet\. Allowed: {present}"
    ):
        PromptDataset(read_files([write("a.parquet", rows)]), tokenizer, config())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prompt": None}, "row 1: the prompt must be a list"),
        ({"data_source": None}, "row 1: no 'data_source'"),
        ({"reward_model": "rule"}, "row 1: 'reward_model' must be an object, not str"),
        ({"extra_info": [1]}, "row 1: 'extra_info' must be an object, not list"),
        ({"images": ["x.png"]}, "row 1 has images or videos, but this model takes text only"),
    ],
)
def test_bad_rows_are_named(change, problem, tokenizer, config, sums):
    rows = sums(3)
    rows[1].update(change)
    with pytest.raises(UserError, match=problem):
        PromptDataset(rows, tokenizer, config()).batch([1], 0)


def test_a_prompt_without_tokens_is_named(tokenizer, config):
    rows = [{"prompt_ids": [], "data_source": "x"}]
    with pytest.raises(UserError, match="row 0: the prompt has no tokens"):
        PromptDataset(rows, tokenizer, config()).batch([0], 0)


def test_a_raw_string_is_the_prompt(tokenizer, config):
    rows = [{"prompt": "1+1=", "data_source": "sums"}]
    cfg = config(apply_chat_template=False)
    assert tokenizer.decode(PromptDataset(rows, tokenizer, cfg).batch([0], 0)["prompt_ids"].lists()[0]) == "1+1="
    cfg = config(apply_chat_template=False, input_template="Q: {}\nA: ")
    batch = PromptDataset(rows, tokenizer, cfg).batch([0], 0)
    assert tokenizer.decode(batch["prompt_ids"].lists()[0]) == "Q: 1+1=\nA: "
    assert batch["raw_prompt"] == [[{"role": "user", "content": "1+1="}]]


def test_braces_of_a_prompt_stay(tokenizer, config):
    rows = [{"prompt": "{x} {}", "data_source": "sums"}]
    cfg = config(apply_chat_template=False, input_template="{y} {}")
    assert PromptDataset(rows, tokenizer, cfg).encoder.text(Prompt([], plain_text="{x} {}")) == "{y} {x} {}"


def test_messages_without_the_template_that_was_switched_off_are_named(tokenizer, config, sums):
    rows = [{"prompt": "1+1=", "data_source": "sums"}, sums(1)[0]]
    with pytest.raises(UserError, match=r"apply_chat_template=False: dataset, row 1: 'prompt' is a list of messages"):
        PromptDataset(rows, tokenizer, config(apply_chat_template=False, truncation="left"))


def test_labels_are_the_ground_truth_of_rows_without_one(tokenizer, config, sums):
    rows = [{**sums(2)[1], "label": "L"}, {"prompt": "1", "data_source": "x", "label": "M"}]
    batch = PromptDataset(rows, tokenizer, config(label_key="label")).batch([0, 1], 0)
    assert batch["ground_truth"] == ["2", "M"]


def test_a_missing_label_is_named(tokenizer, config):
    rows = [{"prompt": "1", "data_source": "x", "label": "1"}, {"prompt": "1", "data_source": "x"}]
    with pytest.raises(UserError, match=r"data\.label_key='label': dataset, row 1: no 'label'"):
        PromptDataset(rows, tokenizer, config(label_key="label")).batch([1], 0)
    with pytest.raises(UserError, match=r"data\.label_key='answer': no such column in dataset"):
        PromptDataset(rows, tokenizer, config(label_key="answer"))


def test_rows_can_be_looked_at(tokenizer, config, sums):
    data = PromptDataset(sums(5), tokenizer, config(), selected=[1, 3])
    assert data[1] == sums(5)[3] and [row["prompt"] for row in data] == [sums(5)[n]["prompt"] for n in (1, 3)]


def test_new_rows_come_after_all_others(tokenizer, config, sums):
    data = PromptDataset(sums(3), tokenizer, config(), selected=[0, 2])
    before = [data.uid(index, 0) for index in range(2)]
    new = [{"prompt": "7+7=", "data_source": "sums", "reward_model": {"ground_truth": "14"}}]
    assert data.append(new, "rows of Maker") == [0]
    assert data.append(new, "rows of Maker") == [0]
    assert len(data) == 4 and [data.uid(index, 0) for index in range(2)] == before
    assert data.batch([3], 1)["ground_truth"] == ["14"] and data.uid(3, 1).endswith("-4-1")
    assert data.rows.where(4) == "rows of Maker, row 1"


def test_new_rows_are_measured(tokenizer, config, sums):
    long = {"prompt": "9" * 500, "data_source": "sums"}
    short = {"prompt": "9", "data_source": "sums"}
    filtering = PromptDataset(sums(3), tokenizer, config(filter_overlong_prompts=True, max_prompt_length=40))
    assert filtering.append([long, short], "M") == [1] and len(filtering) == 4
    cutting = PromptDataset(sums(3), tokenizer, config(truncation="left", max_prompt_length=40))
    assert cutting.append([long, short], "M") == [0, 1]
    strict = PromptDataset(sums(3), tokenizer, config(max_prompt_length=40))
    with pytest.raises(UserError, match=r"M, row 0 has 5\d\d tokens"):
        strict.append([long], "M")
    with pytest.raises(UserError, match=r"data\.datagen\.name: M, row 0: no 'data_source'"):
        strict.append([{"prompt": "9"}], "M")


def test_rows_travel_with_their_prompts_where_a_reward_reads_them(tokenizer, config, sums):
    rows = [{**row, "answer": number} for number, row in enumerate(sums(2))]
    rows.append({**rows[0], "prompt": "plain"})
    dataset = PromptDataset(rows, tokenizer, config())
    assert "dataset_row" not in dataset.batch([0], 0)
    assert dataset.column_names() == set(rows[0]) - {"prompt"}
    dataset.with_rows = True
    (messages, columns), (plain, _) = dataset.batch([1, 2], 0)["dataset_row"]
    assert messages == rows[1]["prompt"] and plain == "plain"
    assert columns["answer"] == 1 and "prompt" not in columns


TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "sub")]
SHOWS_TOOLS = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
)


def selecting(sums, *selections):
    rows = sums(len(selections))
    return [row | {"extra_info": {"tool_selection": names}} for row, names in zip(rows, selections, strict=True)]


def test_prompts_show_the_tools_of_their_row(tokenizer, config, sums):
    cfg = config(apply_chat_template_kwargs={"chat_template": SHOWS_TOOLS})
    rows = selecting(sums, None, ["sub"], [])
    dataset = PromptDataset(rows, tokenizer, cfg, tools=TOOLS)
    texts = [tokenizer.decode(ids) for ids in dataset.batch([0, 1, 2], 0)["prompt_ids"].lists()]
    assert texts == ["add sub 0+0=", "sub 1+1=", "2+2="]
    without = PromptDataset(rows, tokenizer, cfg).batch([1], 0)  # the same data in a run without tools
    assert tokenizer.decode(without["prompt_ids"].lists()[0]) == "1+1="


@pytest.mark.parametrize("names", [["mul"], "sub"])
def test_a_selection_of_unknown_tools_is_refused_at_the_start(tokenizer, config, sums, names):
    with pytest.raises(UserError, match=r"extra_info\.tool_selection='(mul|sub)': .*row 1.*Allowed: a list of"):
        PromptDataset(selecting(sums, ["add"], names), tokenizer, config(), tools=TOOLS)
