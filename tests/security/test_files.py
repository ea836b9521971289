"""Checkpoints, model folders, datasets, configs and listings from elsewhere: nothing in them runs, leaves its folder,
blocks, or fills the memory, and each gets an error that names it."""

from __future__ import annotations

import ast
import base64
import io
import itertools
import json
import os
import pickle
import struct
import time
from pathlib import Path

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata

import burnish.storage
from burnish.cli.main import main
from burnish.config import load
from burnish.data.files import read_file, write_parquet
from burnish.data.indexed import IndexedColumn
from burnish.data.user_state import restore_state
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.dialects.translate import translate_yaml
from burnish.doctor.shapes import find_shape
from burnish.errors import UserError
from burnish.folders import remove_tree
from burnish.log.folder import RunFolder, dump_rollouts
from burnish.loop.finish import Result
from burnish.loop.state import reading
from burnish.models.load import ModelSource, load_causal_lm, load_config, load_tokenizer
from burnish.models.reward_model import load_reward_model
from burnish.storage import RemoteFolder, local_path
from burnish.training.checkpoint import Checkpoints, damage, read_manifest, read_trainer
from burnish.training.export import ExportOptions, export
from burnish.training.external_checkpoints import find_external_checkpoint, join_verl_shards
from burnish.training.legacy_shards import LegacyLoadPlanner, LegacyReader
from burnish.training.mirror import Mirror
from burnish.training.shards import INDEX, ShardLoadPlanner, ShardReader, ShardSavePlanner, ShardWriter
from burnish.training.state import quiet_dcp, read_shards, read_weights

from ..data.packed import write_field
from .attacks import attack

KIND = "checkpoints and files"
DEEP = "[" * 100_000 + "]" * 100_000
PACKAGE = Path(burnish.storage.__file__).parent


@pytest.fixture
def marker(tmp_path):
    """A file that the code of an attack writes."""
    return tmp_path / "marker"


class Code:
    """Pickles as a call that writes the marker."""

    def __init__(self, marker: Path, function: object = os.system) -> None:
        self.call = (function, (f"touch {marker}",))

    def __reduce__(self) -> tuple:
        return self.call


STATE = {
    "model": {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(2)},
    "optimizer": {"lr": 0.5, "betas": (0.9, 0.99)},
}


@pytest.fixture
def role(tmp_path):
    """A role's folder with shards."""
    folder = tmp_path / "role"
    with quiet_dcp():
        dcp.save(STATE, storage_writer=ShardWriter(folder), planner=ShardSavePlanner(), no_dist=True)
    return folder


@pytest.fixture
def legacy(tmp_path):
    """The same in the format of earlier versions, whose index is a pickle."""
    folder = tmp_path / "legacy"
    with quiet_dcp():
        dcp.save(STATE, checkpoint_id=folder, no_dist=True)
    return folder


def change(file, edit):
    content = json.loads(file.read_text())
    changed = edit(content)
    file.write_text(json.dumps(content if changed is None else changed))


# Shards


@attack(KIND, "a pickle inside our own checkpoints")
def test_our_checkpoints_hold_no_pickle(role):
    assert sorted(path.name for path in role.iterdir()) == ["shards-00000-000.safetensors", INDEX]
    for path in role.iterdir():
        content = path.read_bytes()
        assert not content.startswith((b"PK", b"\x80")) and b"pickle" not in content
    state = {"model": {"w": torch.zeros(2, 3), "b": torch.zeros(2)}, "optimizer": {"lr": 0.0, "betas": None}}
    with quiet_dcp():
        dcp.load(state, storage_reader=ShardReader(role), planner=ShardLoadPlanner(), no_dist=True)
    assert torch.equal(state["model"]["w"], STATE["model"]["w"]) and state["optimizer"] == STATE["optimizer"]


GADGETS = {
    "a command": lambda marker: Code(marker),
    "exec": lambda marker: Code(marker, exec),
    "an import": lambda marker: Code(marker, __import__),
    "torch's own loader": lambda marker: Code(marker, torch.load),
    "inside an index": lambda marker: Metadata({"model.w": Code(marker)}),
    "as a path": lambda marker: Metadata({}, storage_data={"x": Code(marker, Path.unlink)}),
}


@pytest.mark.parametrize("make", GADGETS.values(), ids=GADGETS)
@attack(KIND, "a pickled index of an old checkpoint runs code")
def test_the_index_of_an_old_checkpoint_runs_no_code(legacy, marker, make):
    (legacy / ".metadata").write_bytes(pickle.dumps(make(marker)))
    with pytest.raises(UserError, match="not an index of shards"):
        read_shards(legacy)
    assert not marker.exists()


@attack(KIND, "a pickled value in a file of an old checkpoint runs code")
def test_values_of_an_old_checkpoint_run_no_code(legacy, marker):
    class Hostile(DefaultSavePlanner):
        def transform_object(self, write_item, object):
            return super().transform_object(write_item, Code(marker) if write_item.index.fqn.endswith("lr") else object)

    remove_tree(legacy)
    with quiet_dcp():
        dcp.save(STATE, checkpoint_id=legacy, planner=Hostile(), no_dist=True)
    state = {"optimizer": {"lr": 0.0}}
    with pytest.raises(CheckpointException, match=r"posix\.system"), quiet_dcp():
        dcp.load(state, storage_reader=LegacyReader(legacy), planner=LegacyLoadPlanner(), no_dist=True)
    assert not marker.exists() and read_weights(legacy)["w"].sum() == 15


def set_place(**changes):
    def edit(index):
        for place in index.storage_data.values():
            for name, value in changes.items():
                object.__setattr__(place, name, value)

    return edit


def set_size(index):
    index.state_dict_metadata["model.w"].size = torch.Size([2**40, 2**10])


@pytest.mark.parametrize(
    "edit",
    [
        set_place(relative_path="../../x.distcp"),
        set_place(relative_path="/etc/passwd"),
        set_place(offset=-1),
        set_place(length=2**60),
        set_place(transform_descriptors=["zstd"]),
        set_size,
    ],
)
@attack(KIND, "an index of an old checkpoint names other files, or tensors larger than its files")
def test_the_index_of_an_old_checkpoint_is_checked(legacy, edit):
    index = pickle.loads((legacy / ".metadata").read_bytes())
    edit(index)
    (legacy / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(UserError, match="not an index of shards"):
        read_shards(legacy)


def entry(**changes):
    return lambda index: index["tensors"]["model.w"].update(changes)


INDEXES = {
    "a file elsewhere": entry(chunks=[[[0, 0], [2, 3], "../shards-00000-000.safetensors"]]),
    "an absolute file": entry(chunks=[[[0, 0], [2, 3], "/etc/passwd"]]),
    "a huge tensor": entry(shape=[2**40, 2**40], chunks=[[[0, 0], [2**40, 2**40], "shards-00000-000.safetensors"]]),
    "a huge number": entry(shape=[10**400]),
    "a negative size": entry(shape=[-2, -3]),
    "a negative offset": entry(chunks=[[[-1, 0], [2, 3], "shards-00000-000.safetensors"]]),
    "half a tensor": entry(chunks=[[[0, 0], [1, 3], "shards-00000-000.safetensors"]]),
    "the same twice": entry(shape=[4, 3], chunks=[[[n, 0], [2, 3], "shards-00000-000.safetensors"] for n in (0, 2)]),
    "no dtype": entry(dtype="float31"),
    "an attribute as dtype": entry(dtype="__class__"),
    "no chunks": entry(chunks=None),
    "text": lambda index: index["tensors"].update(x="y"),
    "another format": lambda index: index.update(format="x"),
    "a newer version": lambda index: index.update(version=2),
    "no object": lambda index: [index],
    "nothing": lambda index: {},
}


@pytest.mark.parametrize("edit", INDEXES.values(), ids=INDEXES)
@attack(KIND, "an index of shards that names other files, impossible sizes or wrong types")
def test_an_odd_index_of_shards_is_refused(role, edit):
    change(role / INDEX, edit)
    with pytest.raises(UserError):
        read_weights(role)


@pytest.mark.parametrize("text", [DEEP, "{", "\xff", '{"tensors": ' + "9" * 5000 + "}", "null"])
@attack(KIND, "an index of shards that is no JSON, or nested without end")
def test_a_broken_index_of_shards_is_refused(role, text):
    (role / INDEX).write_text(text, encoding="latin-1")
    with pytest.raises(UserError):
        read_weights(role)


@attack(KIND, "shards that are links, pipes, cut off, or of another shape than the index says")
def test_odd_shards_are_refused(role, tmp_path):
    file, copy = role / "shards-00000-000.safetensors", tmp_path / "copy"
    content = file.read_bytes()
    copy.write_bytes(content)

    def link():
        file.symlink_to(copy)

    def other():
        from safetensors.torch import save_file

        save_file({"model.w": torch.zeros(9, 9), "model.b": torch.zeros(9)}, file)

    for harm in (link, lambda: os.mkfifo(file), lambda: file.write_bytes(content[:-8]), other, lambda: None):
        file.unlink(missing_ok=True)
        harm()
        with pytest.raises(UserError):
            read_weights(role)


# The manifest, and what is beside it


@pytest.fixture
def checkpoints(tmp_path):
    def write(folder):
        (folder / "weights").write_text("weights")

    checkpoints = Checkpoints(tmp_path / "run")
    for step in (1, 2, 3):
        checkpoints.save(step, {"actor": write, "critic": write}, {"step": step})
    return checkpoints


HASH = "0" * 64
MANIFESTS = {
    "a name above": lambda m: m["files"].update({"../../x": {"bytes": 1, "sha256": HASH}}),
    "an absolute name": lambda m: m["files"].update({"/etc/passwd": {"bytes": 1, "sha256": HASH}}),
    "an empty name": lambda m: m["files"].update({"": {"bytes": 1, "sha256": HASH}}),
    "control characters": lambda m: m["files"].update({"a\x1b[2J": {"bytes": 1, "sha256": HASH}}),
    "NaN": lambda m: m["files"]["actor/weights"].update(bytes=float("nan")),
    "a truth value": lambda m: m["files"]["actor/weights"].update(bytes=True),
    "a negative size": lambda m: m["files"]["actor/weights"].update(bytes=-7),
    "a huge size": lambda m: m["files"]["actor/weights"].update(bytes=10**100),
    "text for an entry": lambda m: m["files"].update({"actor/weights": "x"}),
    "a number for a hash": lambda m: m["files"]["actor/weights"].update(sha256=1),
    "a list of files": lambda m: m.update(files=[]),
    "no files": lambda m: {},
    "a list": lambda m: [],
}


@pytest.mark.parametrize("edit", MANIFESTS.values(), ids=MANIFESTS)
@attack(KIND, "a manifest with names outside the folder, or values of wrong types")
def test_an_odd_manifest_is_damage(checkpoints, edit):
    change(checkpoints.path(3) / "manifest.json", edit)
    assert "manifest.json cannot be read" in (damage(checkpoints.path(3)) or "")
    with pytest.raises(UserError):
        read_manifest(checkpoints.path(3))
    assert checkpoints.latest_good()[0] == checkpoints.path(2)


@attack(KIND, "a manifest with a key twice, nested without end, endless, or a pipe")
def test_a_manifest_that_is_no_sane_json(checkpoints, monkeypatch):
    file = checkpoints.path(3) / "manifest.json"
    text = file.read_text()
    for odd in (text.replace('"files"', '"files": {}, "files"'), DEEP, '{"files": {"a": ', "\0" * 100):
        file.write_text(odd)
        assert "cannot be read" in (damage(checkpoints.path(3)) or "")
    os.truncate(file, 2**40)
    assert "cannot be read" in (damage(checkpoints.path(3)) or "")
    file.unlink()
    os.mkfifo(file)
    assert damage(checkpoints.path(3)) == "no manifest.json"


@attack(KIND, "files in a checkpoint that its manifest does not name: more of them, links, pipes, devices")
def test_files_beside_the_manifest_are_damage(checkpoints, tmp_path):
    folder = checkpoints.path(3)
    (tmp_path / "secret").write_text("weights")
    extra = folder / "actor" / "extra"
    for make, problem in (
        (lambda: extra.write_text("x"), "'actor/extra' is not named in manifest.json"),
        (lambda: extra.symlink_to(tmp_path / "secret"), "'actor/extra' is not a regular file"),
        (lambda: extra.symlink_to(tmp_path), "'actor/extra' is not a regular file"),
        (lambda: os.mkfifo(extra), "'actor/extra' is not a regular file"),
    ):
        make()
        assert damage(folder) == problem
        extra.unlink()
    assert damage(folder) is None
    (folder / "actor" / "weights").unlink()
    (folder / "actor" / "weights").symlink_to(tmp_path / "secret")  # the same content
    assert damage(folder) == "'actor/weights' is not a regular file"


@attack(KIND, "retention follows links and deletes what they name")
def test_retention_does_not_follow_links(checkpoints, tmp_path):
    precious = tmp_path / "precious"
    (precious / "critic").mkdir(parents=True)
    for name in ("gold", "critic/gold"):
        (precious / name).write_text("gold")
    remove_tree(checkpoints.path(1))
    checkpoints.path(1).symlink_to(precious)
    (checkpoints.folder / ".global_step_4.partial").symlink_to(precious)
    remove_tree(checkpoints.path(2) / "critic")
    (checkpoints.path(2) / "critic").symlink_to(precious / "critic")
    checkpoints.keep(actor=None, critic=1)
    checkpoints.keep(actor=1, critic=1)
    checkpoints.save(4, {"actor": lambda folder: None}, {"step": 4})
    assert checkpoints.steps() == [3, 4] and not checkpoints.path(1).is_symlink()
    assert (precious / "gold").read_text() == (precious / "critic" / "gold").read_text() == "gold"


@pytest.mark.parametrize("text", ["[]", "{}", '{"step": "1"}', '{"step": -1}', '{"step": 1.5}', DEEP, '{"step": true}'])
@attack(KIND, "a trainer state of wrong types")
def test_an_odd_trainer_state_is_refused(checkpoints, text):
    (checkpoints.path(3) / "trainer.json").write_text(text)
    with pytest.raises(UserError):
        read_trainer(checkpoints.path(3))
    for error in (KeyError("sampler"), TypeError("x"), ValueError("y"), OverflowError("z")):
        with pytest.raises(UserError, match="no state of such a run"), reading(checkpoints.path(3)):
            raise error


@attack(KIND, "odd names and trackers in a run folder: other digits, huge numbers, pipes")
def test_odd_names_in_a_run_folder(checkpoints):
    for name in ("global_step_²", "global_step_٣", f"global_step_{'9' * 200}", "global_step_-1", "global_step_0x1"):
        (checkpoints.folder / name).mkdir()
    (checkpoints.folder / "latest_checkpointed_iteration.txt").unlink()
    os.mkfifo(checkpoints.folder / "latest_checkpointed_iteration.txt")
    assert checkpoints.steps() == [1, 2, 3] and checkpoints.latest_good()[0] == checkpoints.path(3)
    assert burnish.storage.model_folder(checkpoints.folder) is None


class Stateful:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        self.state = state


@attack(KIND, "a pickle in the state of a user's sampler runs code")
def test_the_state_of_a_sampler_runs_no_code(marker):
    content = io.BytesIO()
    torch.save(Code(marker), content)
    for state in (
        base64.b64encode(content.getvalue()).decode(),
        "no base64",
        {"values": {"$object": "os.system"}, "tensors": ""},
        {"values": {"$tensor": "7"}, "tensors": base64.b64encode(b"x" * 20).decode()},
        {"values": 1},
    ):
        with pytest.raises(UserError, match="cannot be read"):
            restore_state(Stateful(), state, "data.sampler.class_name")
    assert not marker.exists()


# Checkpoints of other systems, and export


@attack(KIND, "a pickle in a checkpoint of another system runs code")
def test_shards_of_verl_run_no_code(tmp_path, marker):
    file = tmp_path / "model_world_size_1_rank_0.pt"
    torch.save({"w": Code(marker)}, file)
    with pytest.raises(UserError, match="plain tensors"):
        join_verl_shards([file], {})
    assert not marker.exists()


@pytest.mark.parametrize("name", [".", "..", "/", "a/../../..", "latest", "x" * 500, "\0"])
@attack(KIND, "the tracker of a DeepSpeed checkpoint names itself or other folders")
def test_the_tracker_of_deepspeed_stays_inside(tmp_path, name):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "mp_rank_00_model_states.pt").touch()
    (folder / "latest").write_text(name)
    assert find_external_checkpoint(folder, key="trainer.resume_from_path") is None


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, make_tokenizer("0123456789+"), hidden=16, layers=2, seed=0)
    return folder


def copy_of(model, folder):
    import shutil

    return Path(shutil.copytree(model, folder))


@attack(KIND, "a link in a checkpoint copies a private file into an exported model")
def test_export_copies_no_links(model, tmp_path):
    (tmp_path / "id_rsa").write_text("secret")
    role = tmp_path / "role"
    copy_of(model, role / "huggingface")
    (role / "huggingface" / "notes.txt").symlink_to(tmp_path / "id_rsa")
    with pytest.raises(UserError, match=r"notes\.txt is a link"):
        export(role, tmp_path / "out")
    (role / "adapter").mkdir()
    (role / "adapter" / "adapter_config.json").symlink_to(tmp_path / "id_rsa")
    with pytest.raises(UserError, match="is a link"):
        export(role, tmp_path / "out", ExportOptions(adapter=True))
    assert not (tmp_path / "out").exists()


# Model folders


def own_code(model, folder, marker):
    """A model folder that needs Python code of its own for config, model and tokenizer."""
    copy_of(model, folder)
    auto = {"AutoConfig": "mine.Mine", "AutoTokenizer": ["mine.T", None]}
    auto |= {f"AutoModelFor{kind}": "mine.M" for kind in ("CausalLM", "TokenClassification", "SequenceClassification")}
    change(folder / "config.json", lambda config: config.update(model_type="mine", auto_map=auto))
    change(folder / "tokenizer_config.json", lambda config: config.update(tokenizer_class="T", auto_map=auto))
    (folder / "mine.py").write_text(
        f"open({str(marker)!r}, 'w')\nfrom transformers import PretrainedConfig as Mine, PreTrainedModel as M\n"
        "from transformers import PreTrainedTokenizerFast as T\n"
    )
    return str(folder)


LOADERS = {
    "config": lambda path: load_config(ModelSource(path)),
    "tokenizer": lambda path: load_tokenizer(path, key="actor_rollout_ref.model.path"),
    "model": lambda path: load_causal_lm(ModelSource(path), None, torch.float32),
    "reward model": lambda path: load_reward_model(ModelSource(path, key="reward_model.model.path"), torch.float32),
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
@attack(KIND, "a model folder with code of its own runs it, or asks on stdin to run it")
def test_code_of_a_model_folder_is_refused(model, tmp_path, marker, monkeypatch, loader):
    monkeypatch.setattr("builtins.input", lambda *words: pytest.fail("it must not ask"))
    with pytest.raises(UserError) as caught:
        loader(own_code(model, tmp_path / "own", marker))
    assert "needs Python code" in caught.value.problem and "trust_remote_code=true" in (caught.value.hint or "")
    assert not marker.exists()


@attack(KIND, "a trained model with code of its own is loaded by Result.load or exported")
def test_code_of_a_trained_model_is_refused(model, tmp_path, marker, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *words: pytest.fail("it must not ask"))
    own = own_code(model, tmp_path / "role" / "huggingface", marker)
    with pytest.raises(ValueError, match="trust_remote_code"):
        Result(tmp_path, 1, model_path=Path(own)).load()
    with pytest.raises(UserError, match="needs Python code"):
        export(tmp_path / "role", tmp_path / "out")
    assert not marker.exists()


@attack(KIND, "a call of transformers that would ask on stdin whether to run code")
def test_every_automatic_class_is_told_whether_to_trust():
    """transformers asks on a terminal where the argument is missing."""
    missing = []
    files = [file for file in PACKAGE.rglob("*.py") if ".from_" in file.read_text()]
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in ("from_pretrained", "from_config"):
                continue
            owner = ast.unparse(node.func.value)
            # Configs of generation and peft, and classes that are given, have no code of their own.
            known = owner in ("GenerationConfig", "peft.PeftConfig") or (owner == "family" and file.name == "state.py")
            names = {keyword.arg for keyword in node.keywords}
            if not known and not names & {"trust_remote_code", None}:
                missing.append(f"{file.name}:{node.lineno}")
    assert not missing


def fifo(file):
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def huge(file):
    file.write_text("{}")
    os.truncate(file, 2**31)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]
)
@pytest.mark.parametrize(
    "harm", [fifo, huge, lambda file: file.symlink_to("/dev/zero") if not file.exists() else fifo(file)]
)
@attack(KIND, "files of a model folder that block, are endless, or have gigabytes")
def test_odd_files_of_a_model_folder_are_refused(model, tmp_path, name, harm):
    folder = copy_of(model, tmp_path / "odd")
    harm(folder / name)
    began = time.monotonic()
    for loader in (LOADERS["config"], LOADERS["tokenizer"]):
        with pytest.raises(UserError):
            loader(str(folder))
    assert time.monotonic() - began < 60, "it must not wait for a writer"


@pytest.mark.parametrize(
    "text", [DEEP, "[]", '{"model_type": 1}', '{"model_type": "qwen2", "vocab_size": "x"}', "{", '{"text_config": 7}']
)
@attack(KIND, "a config.json that is no config")
def test_an_odd_config_is_refused(model, tmp_path, text):
    folder = copy_of(model, tmp_path / "odd")
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError):
        load_causal_lm(ModelSource(str(folder)), None, torch.float32)
    with pytest.raises(UserError):
        find_shape(str(folder))


@pytest.mark.parametrize("value", [10**4000, -1, "7", 1.5, [1], True, float("inf")])
@attack(KIND, "sizes in a config.json that are no sizes break the memory plan of doctor")
def test_odd_sizes_are_refused(model, tmp_path, value):
    folder = copy_of(model, tmp_path / "odd")
    for name in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "intermediate_size"):
        (folder / "config.json").write_bytes((model / "config.json").read_bytes())
        change(folder / "config.json", lambda config, name=name: config.update({name: value}))
        with pytest.raises(UserError):
            find_shape(str(folder))


# Data and configs


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize(
    "text", [DEEP, '{"prompt": ' + DEEP + "}", '{"a": ' * 150 + "1" + "}" * 150, '{"a": ' + "9" * 5000 + "}"]
)
@attack(KIND, "a dataset nested without end, or with endless numbers")
def test_odd_rows_are_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text + "\n")
    with pytest.raises(UserError) as caught:
        read_file(str(tmp_path / name))
    assert caught.value.key == "data.train_files"


@attack(KIND, "a dataset with objects where a name is expected")
def test_columns_of_names_hold_names(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"data_source": ["x"]}\n{"data_source": {"y": 1}}\n')
    (tmp_path / "a.json").write_text('[{"data_source": [1]}]')
    write_parquet([{"data_source": [{"a": 1}]}], tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.json", "a.parquet"):
        with pytest.raises(UserError, match="must be text or numbers"):
            read_file(str(tmp_path / name)).values("data_source")


@attack(KIND, "a dataset that is a pipe or a device")
def test_data_must_be_regular_files(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("/dev/zero")
    for name in ("a.jsonl", "b.jsonl"):
        with pytest.raises(UserError, match="no such file"):
            read_file(str(tmp_path / name))


@pytest.mark.parametrize("at", [18, 26, 34, 42, 50, 58], ids=lambda at: f"byte {at}")
@attack(KIND, "a packed dataset whose index points outside of its file")
def test_an_odd_packed_index_is_refused_or_bounded(tmp_path, at):
    index = Path(write_field(str(tmp_path / "rows"), "input_ids", [[1, 2, 3], [4, 5]]))
    content = index.read_bytes()
    for number in (0, 7, 2**31, 2**62, 2**64 - 1):
        index.write_bytes(content[:at] + struct.pack("<Q", number) + content[at + 8 :])
        try:
            column = IndexedColumn.open(str(tmp_path / "rows"), "input_ids", key="data.train_files")
        except UserError:
            continue
        assert number < 10 and sum(len(column.row(row)) for row in range(len(column))) <= 10


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in itertools.pairwise("abcdefghi")
)
MERGES = "a: &a {x: 1}\n" + "\n".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 12)}], {new}: 1}}" for old, new in itertools.pairwise("abcdefgh")
)
YAMLS = {
    "aliases that expand to billions": LAUGHS,
    "merges that expand to millions": MERGES,
    "an alias of itself": "a: &a [*a]",
    "a chain of aliases": "a0: &a0 [x]\n" + "\n".join(f"a{n + 1}: &a{n + 1} [*a{n}]" for n in range(500)),
    "nesting": "[" * 10_000,
    "a Python object": "a: !!python/object/apply:os.system ['touch marker']",
    "a Python name": "a: !!python/name:os.system",
}


@attack(KIND, "a YAML with alias bombs, tags or endless nesting")
def test_an_impossible_date_is_text(tmp_path, monkeypatch):
    """YAML's own dates would raise an error that no reader expects."""
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("a: 2024-13-77")
    with pytest.raises(UserError, match="sections found: a"):
        translate_yaml("a.yaml")


@pytest.mark.parametrize("text", YAMLS.values(), ids=YAMLS)
@attack(KIND, "a YAML with alias bombs, tags or endless nesting")
def test_odd_yaml_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(text)
    with pytest.raises(UserError, match="invalid YAML"):
        translate_yaml("a.yaml")
    assert not Path("marker").exists()


@attack(KIND, "a YAML that is a pipe, a device, or has gigabytes")
def test_a_yaml_must_be_a_small_regular_file(tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").symlink_to("/dev/zero")
    huge(tmp_path / "c.yaml")
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        with pytest.raises(UserError):
            translate_yaml(str(tmp_path / name))


@attack(KIND, "an alias bomb in the value of an override")
def test_a_bomb_in_a_value_is_only_text():
    levels = ["&a [x, x]", *(f"&{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in itertools.pairwise("abcdefg"))]
    bomb = f"[{', '.join(levels)}]"
    loaded = load(values={"data.train_files": bomb}, check=False)
    assert all(type(name) is str for name in loaded.cfg.data.train_files)


# Listings of storage


class Listing(fsspec.AbstractFileSystem):
    """A server whose listing names whatever it likes."""

    protocol = "listing"
    cachable = False
    names: tuple[str, ...] = ()

    def exists(self, path, **kwargs):
        return True

    def isdir(self, path):
        return not path.endswith("manifest.json")

    def isfile(self, path):
        return not self.isdir(path)

    def info(self, path, **kwargs):
        return {"name": path, "size": 4, "type": "file"}

    def ls(self, path, detail=True, **kwargs):
        return [{"name": name, "size": 4, "type": "directory"} if detail else name for name in self.names]

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **kwargs):
        return {name: {"name": name, "size": 4, "type": "file"} for name in self.names}

    def get_file(self, rpath, lpath, **kwargs):
        Path(lpath).write_text("evil")

    def cat_file(self, path, start=None, end=None, **kwargs):
        return b"{}"


@pytest.fixture
def listing(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "here" / "cache"))
    fsspec.register_implementation("listing", Listing, clobber=True)
    return Listing


NAMES = [
    "data/../../../../../evil",
    "/evil",
    "data//evil",
    "data/./evil",
    "other/evil",
    "data",
    "data/a\nb",
    "data/\x1b[2Jx",
    "data/a\\..\\b",
    "data/" + "x" * 300,
    "data/a/" * 50 + "..",
    "data/\u202eevil",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@attack(KIND, "a listing of remote storage with names that lead out of the cache")
def test_a_listing_stays_in_the_cache(listing, tmp_path, monkeypatch, name):
    monkeypatch.setattr(listing, "names", ("data/good", name))
    monkeypatch.setattr(listing, "_strip_protocol", classmethod(lambda cls, path: path.removeprefix("listing://")))
    with pytest.raises(UserError, match="the listing names"):
        local_path("listing://data", key="data.train_files")
    with pytest.raises(UserError, match="the listing names"):
        RemoteFolder("listing://", "trainer.default_hdfs_dir").fetch("data", tmp_path / "here" / "copy")
    assert not list(tmp_path.rglob("*evil*")) and not list(tmp_path.rglob("good"))


@attack(KIND, "a mirror of checkpoints with odd names")
def test_odd_names_of_a_mirror_are_ignored(listing, tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "names", ("x/global_step_²", "x/global_step_../../etc", f"x/global_step_{'9' * 99}"))
    assert Mirror("listing://x").fetch_latest(Checkpoints(tmp_path)) == (None, [])


@attack(KIND, "another user's folder or link in shared memory in place of ours")
def test_shared_memory_is_this_users(tmp_path, monkeypatch):
    monkeypatch.setattr(burnish.storage, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    (tmp_path / "rows.jsonl").write_text("{}\n")
    folder = tmp_path / "shm" / f"burnish-cache-{os.geteuid()}"
    (tmp_path / "planted").mkdir()
    folder.symlink_to(tmp_path / "planted")
    with pytest.raises(UserError, match="not a folder that only this user can write to"):
        local_path(str(tmp_path / "rows.jsonl"), key="data.train_files", use_shm=True)
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UserError, match="not a folder that only this user can write to"):
        local_path(str(tmp_path / "rows.jsonl"), key="data.train_files", use_shm=True)
    folder.rmdir()
    copy = Path(local_path(str(tmp_path / "rows.jsonl"), key="data.train_files", use_shm=True))
    assert copy.read_text() == "{}\n" and folder.stat().st_mode & 0o777 == 0o700


@attack(KIND, "other users read prompts, responses and weights in run folders")
def test_run_folders_are_private(tmp_path):
    mask = os.umask(0)
    try:
        folder = RunFolder(tmp_path / "runs" / "one").path
        row = {"input": "p", "output": "r", "gts": "g", "score": 1.0}
        dumped = dump_rollouts(tmp_path / "dumps", 1, [row]).parent
        (tmp_path / "shared").mkdir(mode=0o755)
        shared = RunFolder(tmp_path / "shared").path
    finally:
        os.umask(mask)
    assert [path.stat().st_mode & 0o777 for path in (folder, dumped)] == [0o700, 0o700]
    assert shared.stat().st_mode & 0o777 == 0o755, "a folder that the user has created keeps its mode"


@attack(KIND, "odd files make the commands that read them print a traceback")
def test_commands_print_errors_and_no_traceback(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(DEEP)
    (tmp_path / "run" / "global_step_1" / "actor" / "huggingface").mkdir(parents=True)
    (tmp_path / "run" / "global_step_1" / "manifest.json").write_text(DEEP)
    for words in (
        ["data", "check", str(tmp_path / "a.jsonl")],
        ["export", str(tmp_path / "run" / "global_step_1"), str(tmp_path / "out")],
        ["train", f"actor_rollout_ref.model.path={tmp_path / 'run'}", f"data.train_files={tmp_path / 'a.jsonl'}"],
    ):
        assert main(words) in (1, 2)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
