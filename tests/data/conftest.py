"""A byte-level tokenizer, the data section, and tiny files."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from burnish.config.data import DataConfig
from burnish.demo.tiny_vision import make_vision_model
from burnish.models.load import ModelSource, load_tokenizer
from burnish.models.vision.encoder import load_vision_encoder

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'narrator' %}{{ raise_exception('no narrators') }}{% endif %}"
    "<s>{{ m['role'] }}\n{{ m['content'] }}{{ tail or '' }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def byte_tokenizer(template=TEMPLATE):
    specials = ["<pad>", "<s>", "</s>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(specials + letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def bare_tokenizer():
    return byte_tokenizer(template=None)


@pytest.fixture
def config():
    """DataConfig with changes: config(truncation="left")."""
    return lambda **changes: replace(DataConfig(), **changes)


def sum_row(number, text=None):
    text = f"{number}+{number}=" if text is None else text
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": text}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * number)},
        "extra_info": {"split": "train", "index": 100 + number},
    }


@pytest.fixture
def sums():
    """sums(n): n rows of verl's schema; sums(n, text=...) all with one text."""
    return lambda count, text=None: [sum_row(number, text) for number in range(count)]


@pytest.fixture
def write(tmp_path):
    """write(name, rows) -> path, by the file's ending."""

    def write(name, rows):
        path = tmp_path / name
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=4)
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            path.write_text(json.dumps(rows))
        return str(path)

    return write


@pytest.fixture(scope="session")
def encoder_of(tmp_path_factory):
    """The encoder of a family's tiny model."""
    made = {}

    def encoder_of(family="qwen2_5_vl"):
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            make_vision_model(folder, family, hidden=32, layers=1)
            tokenizer = load_tokenizer(str(folder), key="data.tokenizer")
            made[family] = load_vision_encoder(ModelSource(str(folder)), tokenizer)
        return made[family]

    return encoder_of


@pytest.fixture
def vision(encoder_of):
    return encoder_of()
