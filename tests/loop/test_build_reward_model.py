"""From reward_model.* to a judge, or to an error before any model is loaded."""

import json
import shutil

import pytest
from transformers import AutoModelForCausalLM

from burnish.config import load
from burnish.demo.tiny import make_tokenizer
from burnish.errors import UserError
from burnish.loop.build import build
from burnish.loop.build_reward_model import build_reward_model_scorer
from burnish.models.device import pick_device
from burnish.reward.reward_model import CustomRewardModel
from burnish.reward.reward_model_input import PolicyTokens, RewardModelTemplate
from burnish.sizing import CPU_MICRO_BATCH_TOKENS
from burnish.training.packing import MicroBatchSize

from ..reward_models import make_reward_model

CHARACTERS = "0123456789+"


@pytest.fixture(scope="session")
def scorer_folder(tmp_path_factory):
    return make_reward_model(tmp_path_factory.mktemp("scorer"), make_tokenizer(CHARACTERS))


@pytest.fixture
def made(settings, scorer_folder):
    """made(*overrides): the judge that these build."""

    def make(*more, path=scorer_folder, reward=None):
        given = ("reward_model.enable=true", f"reward_model.model.path={path}", *more)
        cfg = load(settings(*given), given=["data.train_files"]).cfg
        return build_reward_model_scorer(cfg, pick_device("cpu"), make_tokenizer(CHARACTERS), reward)

    return make


def test_without_enable_there_is_none(settings):
    cfg = load(settings(), given=["data.train_files"]).cfg
    assert build_reward_model_scorer(cfg, pick_device("cpu"), None, None) is None


def test_by_default_the_models_own_template_is_used(made):
    assert isinstance(made().model.inputs, RewardModelTemplate)
    assert isinstance(made("reward_model.model.input_tokenizer=null").model.inputs, PolicyTokens)


def test_the_tokenizer_of_the_reward_model_itself_may_be_named(made, tmp_path):
    """Read as the seeds mean it: the policy's tokenizer decodes, the reward model's writes."""
    other = make_reward_model(tmp_path, make_tokenizer("abcdefghijklmnopqrstuvwxyz 0123456789"))
    judge = made(f"reward_model.model.input_tokenizer={other}", path=other)
    assert judge.model.inputs.decoder.get_vocab() == make_tokenizer(CHARACTERS).get_vocab()
    assert "a vocabulary other than the policy's" in judge.notices[1]


@pytest.mark.parametrize(
    ("overrides", "cut"),
    [
        (("reward_model.micro_batch_size_per_gpu=3",), MicroBatchSize(rows=3)),
        (("reward_model.micro_batch_size=2",), MicroBatchSize(rows=2)),
        (
            ("reward_model.micro_batch_size_per_gpu=3", "reward_model.use_dynamic_bsz=true"),
            MicroBatchSize(tokens=CPU_MICRO_BATCH_TOKENS),
        ),
        (("reward_model.forward_max_token_len_per_gpu=40",), MicroBatchSize(tokens=40)),
        (("critic.forward_max_token_len_per_gpu=50",), MicroBatchSize(tokens=50)),
    ],
)
def test_how_scoring_is_split_into_micro_batches(made, overrides, cut):
    assert made(*overrides).model.micro_batch == cut


def test_precedence_is_reported(made):
    assert "the reward model's alone: reward functions and rules are not called" in made().notices[0]
    assert "mine.py are not called" in made("custom_reward_function.path=mine.py").notices[0]
    mixed = made("reward.function_weight=0.5", "custom_reward_function.path=mine.py").notices[0]
    assert mixed == "scores are 1 x the reward model's + 0.5 x that of mine.py"


def edited(folder, target, **entries):
    """A copy of a model folder with other entries in its config.json."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | entries))
    return target


def test_normalising_takes_mean_and_std_from_the_models_config(made, scorer_folder, tmp_path):
    folder = edited(scorer_folder, tmp_path / "moments", mean=0.25, std=2.0)
    model = made("reward_model.normalize=true", path=folder).model
    assert (model.mean, model.std) == (0.25, 2.0)
    plain = made(path=folder).model
    assert (plain.mean, plain.std) == (0.0, 1.0)


@pytest.mark.parametrize("moments", [{}, {"mean": 0.5}, {"mean": 0.5, "std": 0.0}, {"mean": "a", "std": 1.0}])
def test_normalising_without_usable_moments_is_refused(made, scorer_folder, tmp_path, moments):
    folder = edited(scorer_folder, tmp_path / "moments", **moments)
    with pytest.raises(UserError, match="no usable mean and std") as caught:
        made("reward_model.normalize=true", path=folder)
    assert caught.value.key == "reward_model.normalize"


def test_a_path_is_needed(made):
    with pytest.raises(UserError, match="needs a reward model") as caught:
        made(path="null")
    assert caught.value.key == "reward_model.model.path"


def test_a_folder_that_is_not_there(made, tmp_path):
    with pytest.raises(UserError, match="no such folder") as caught:
        made(path=tmp_path / "nowhere")
    assert caught.value.key == "reward_model.model.path"


def test_a_missing_template_is_reported_before_the_model_is_loaded(made, tmp_path, monkeypatch):
    bare = make_tokenizer(CHARACTERS)
    bare.chat_template = None
    folder = make_reward_model(tmp_path / "bare", bare)
    monkeypatch.setattr("burnish.loop.build_reward_model.load_reward_model", None)
    with pytest.raises(UserError, match="no chat template"):
        made(path=folder)


def test_a_model_without_a_score_stops_a_run_before_the_policy_is_loaded(settings, rows, model_folder, monkeypatch):
    monkeypatch.setattr("burnish.loop.roles.build_policy", None)
    assert AutoModelForCausalLM.from_pretrained(model_folder)
    overrides = settings("reward_model.enable=true", f"reward_model.model.path={model_folder}")
    cfg = load(overrides, given=["data.train_files"]).cfg
    with pytest.raises(UserError, match="no trained score head"):
        build(cfg, dataset=rows())


CLASS = """
class Length:
    def __init__(self, path, device):
        self.path = path
    def score(self, rows):
        return [len(row["response"]) for row in rows]
function = len
"""


@pytest.fixture
def class_file(tmp_path):
    (tmp_path / "mine.py").write_text(CLASS)
    return f"reward_model.model.custom_cls.path={tmp_path / 'mine.py'}"


def test_a_class_of_ones_own(made, class_file):
    judge = made(class_file, "reward_model.model.custom_cls.name=Length", path="null")
    assert isinstance(judge.model, CustomRewardModel)
    assert judge.model.model.path is None
    named = made(class_file, "reward_model.model.custom_cls.name=Length", path="some/name")
    assert named.model.model.path == "some/name"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ((), "the name of the class is missing"),
        (("reward_model.model.custom_cls.name=Width",), "has no 'Width'"),
        (("reward_model.model.custom_cls.name=function",), "is not a class"),
        (
            ("reward_model.model.custom_cls.name=Length", "reward_model.normalize=true"),
            "not supported with reward_model.model.custom_cls",
        ),
    ],
)
def test_a_class_that_cannot_be(made, class_file, more, problem):
    with pytest.raises(UserError, match=problem):
        made(class_file, *more)


def test_keys_that_a_custom_class_overrides_are_reported(settings, class_file):
    given = ("reward_model.enable=true", class_file, "reward_model.model.custom_cls.name=Length")
    loaded = load(settings(*given, "reward_model.max_length=9"), given=["data.train_files"])
    assert any("reward_model.max_length=9 has no effect here: the class" in line for line in loaded.notices)


def test_messages_are_kept_where_the_template_needs_them(settings, scorer_folder):
    given = ("reward_model.enable=true", f"reward_model.model.path={scorer_folder}", "data.return_raw_chat=false")
    loaded = load(settings(*given), given=["data.train_files"])
    assert loaded.cfg.data.return_raw_chat
    assert any("data.return_raw_chat=true" in line for line in loaded.notices)
    direct = load(settings(*given, "reward_model.model.input_tokenizer=null"), given=["data.train_files"])
    assert not direct.cfg.data.return_raw_chat


def test_both_micro_batch_sizes_are_one_too_many(made):
    with pytest.raises(UserError, match="are both set"):
        made("reward_model.micro_batch_size=2", "reward_model.micro_batch_size_per_gpu=2")
