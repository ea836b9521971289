import pytest

from burnish.config.data import CustomClassConfig
from burnish.data.load import load_train, load_val
from burnish.errors import UserError

CLASSES = '''
import json
import torch
from torch.utils.data import Dataset

class Rows(Dataset):
    """Rows of verl's schema, with a custom prompt."""
    def __init__(self, data_files, tokenizer, config, processor=None):
        self.numbers = json.load(open(data_files[0]))
        self.limit = config.get("no_such_key", config.max_prompt_length)
    def __len__(self):
        return len(self.numbers)
    def __getitem__(self, i):
        n = self.numbers[i]
        truth = {"ground_truth": str(n + 1)}
        return {"prompt": f"{n}+1=", "data_source": "sums", "reward_model": truth, "limit": self.limit}

class Tokenized(Rows):
    """The items of verl's dataset: left-padded ids, a mask, the ids without padding."""
    def __init__(self, data_files, tokenizer, config, processor=None, max_samples=-1):
        super().__init__(data_files, tokenizer, config)
        self.tokenizer = tokenizer
        self.numbers = self.numbers[-max_samples:] if max_samples > 0 else self.numbers
    def __getitem__(self, i):
        row = super().__getitem__(i)
        ids = self.tokenizer(row.pop("prompt"))["input_ids"]
        pad = 10 - len(ids)
        row["input_ids"] = torch.tensor([0] * pad + ids)
        row["attention_mask"] = torch.tensor([0] * pad + [1] * len(ids))
        return row

class Broken(Rows):
    def __init__(self, data_files, tokenizer, config, processor=None):
        raise RuntimeError("no luck")

class OtherArguments(Rows):
    def __init__(self, path):
        pass

class Empty(Rows):
    def __len__(self):
        return 0

class Tuples(Rows):
    def __getitem__(self, i):
        return (1, 2)

class NotADataset:
    pass

def function(data_files, tokenizer, config, processor=None):
    return []
'''


@pytest.fixture
def custom(tmp_path, write, config):
    """custom(class name, **changes): a data section that names a class of the user's."""
    (tmp_path / "mine.py").write_text(CLASSES)
    file = write("numbers.json", [3, 5, 7, 9])

    def make(name, **changes):
        cls = CustomClassConfig(path=str(tmp_path / "mine.py"), name=name)
        return config(custom_cls=cls, train_files=[file], val_files=[file], **changes)

    return make


def test_rows_of_a_class(custom, tokenizer):
    dataset = load_train(custom("Rows"), tokenizer, run_seed=0)
    batch = dataset.batch([2, 0], 1)
    assert [tokenizer.decode(ids) for ids in batch["prompt_ids"].lists()] == [
        "<s>user\n7+1=</s><s>assistant\n",
        "<s>user\n3+1=</s><s>assistant\n",
    ]
    assert batch["ground_truth"] == ["8", "4"]
    assert batch["uid"][0] == f"{dataset.fingerprint}-2-1"
    assert dataset.rows.row(0)["limit"] == 512


def test_tokens_of_a_class_lose_their_padding(custom, tokenizer):
    batch = load_val(custom("Tokenized", return_full_prompt=True), tokenizer, run_seed=0).batch([1], 0)
    assert batch["prompt_ids"].lists() == [tokenizer("5+1=")["input_ids"]]
    assert batch["raw_prompt"] == [None]
    assert batch["full_prompts"] == ["5+1="]


def test_tokens_are_filtered_and_cut_as_others_are(custom, tokenizer):
    cut = load_train(custom("Tokenized", max_prompt_length=2, truncation="left"), tokenizer, run_seed=0)
    assert tokenizer.decode(cut.batch([0], 0)["prompt_ids"].lists()[0]) == "1="
    with pytest.raises(UserError, match="kept 0 of 4"):
        load_train(custom("Tokenized", max_prompt_length=2, filter_overlong_prompts=True), tokenizer, run_seed=0)


def test_tokens_have_no_raw_input_ids(custom, tokenizer):
    dataset = load_train(custom("Tokenized", return_raw_input_ids=True), tokenizer, run_seed=0)
    with pytest.raises(UserError, match="tokens but no messages"):
        dataset.batch([0], 0)


def test_max_samples_goes_to_the_class_that_takes_it_else_to_us(custom, tokenizer):
    limited = load_train(custom("Tokenized", train_max_samples=2, shuffle=False), tokenizer, run_seed=0)
    assert limited.batch(range(2), 0)["ground_truth"] == ["8", "10"]
    ours = load_train(custom("Rows", train_max_samples=2, shuffle=False), tokenizer, run_seed=0)
    assert ours.batch(range(2), 0)["ground_truth"] == ["4", "6"]


def test_the_fingerprint_is_of_class_and_files(custom, tokenizer, write):
    first = load_train(custom("Rows"), tokenizer, run_seed=0).fingerprint
    assert load_train(custom("Rows"), tokenizer, run_seed=0).fingerprint == first
    assert load_train(custom("Tokenized"), tokenizer, run_seed=0).fingerprint != first
    cfg = custom("Rows")
    cfg.train_files = [write("others.json", [1, 2, 3, 4])]
    assert load_train(cfg, tokenizer, run_seed=0).fingerprint != first


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("NotADataset", r"data\.custom_cls\.name='NotADataset': not a dataset class.*__len__ and __getitem__"),
        ("function", "not a dataset class"),
        ("Missing", "has no 'Missing'.*Rows"),
        (None, r"data\.custom_cls\.name: no class name for this file"),
        ("Broken", r"Broken\(data_files=.*\) raised RuntimeError: no luck"),
        ("OtherArguments", "raised TypeError"),
        ("Empty", "the dataset has no rows"),
        ("Tuples", "Tuples, item 0 is tuple, not a dict"),
    ],
)
def test_wrong_classes(name, problem, custom, tokenizer):
    with pytest.raises(UserError, match=problem):
        load_train(custom(name), tokenizer, run_seed=0)


def test_missing_file(custom, tokenizer):
    cfg = custom("Rows")
    cfg.custom_cls.path += "x"
    with pytest.raises(UserError, match=r"data\.custom_cls\.path=.*no such file"):
        load_train(cfg, tokenizer, run_seed=0)
