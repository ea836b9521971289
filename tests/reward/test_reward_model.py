"""RewardModel: scores equal those of transformers, for any packing, truncation and template."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from burnish.batch import Batch, Ragged
from burnish.demo.tiny import CHAT_TEMPLATE, make_tokenizer
from burnish.errors import UserError
from burnish.models.load import ModelSource
from burnish.models.reward_model import load_reward_model
from burnish.reward.reward_model import CustomRewardModel, RewardModel
from burnish.reward.reward_model_input import PolicyTokens, RewardModelTemplate, decoder_for
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import MicroBatchSize

from ..conftest import FAMILIES, sharpen

CPU = torch.device("cpu")
LENGTHS = [(3, 5), (1, 1), (7, 0), (4, 12), (2, 5), (9, 9)]
# The other side's template: longer role names, a line after each turn, no header for an answer.
THEIR_TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}</s>\n{% endfor %}"


@pytest.fixture(scope="module", params=["llama", "qwen2", "mistral", "gemma2", "gemma3"])
def scorer_folder(request, tmp_path_factory):
    config = FAMILIES[request.param]()
    config.num_labels = 1
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(config)
    sharpen(model, seed=1)
    folder = tmp_path_factory.mktemp(f"scorer_{request.param}")
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def rows():
    """Prompts and responses of many lengths, one response empty; ids above the special ones."""
    generator = torch.Generator().manual_seed(5)

    def ids(lengths):
        return Ragged.of([torch.randint(3, 53, (n,), generator=generator) for n in lengths], torch.int64)

    return Batch(prompt_ids=ids([a for a, _ in LENGTHS]), responses=ids([b for _, b in LENGTHS]))


SIZE = MicroBatchSize(tokens=64)


def reward_model(folder, micro_batch=SIZE, inputs=None, **options):
    model = load_reward_model(ModelSource(folder), torch.float32)
    return RewardModel(SingleBackend(model, CPU, torch.float32), inputs or PolicyTokens(), micro_batch, **options)


def padded_scores(folder, rows):
    """Scores of transformers, one padded and masked row at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    scores = []
    for prompt, response in zip(rows["prompt_ids"].lists(), rows["responses"].lists(), strict=True):
        ids = [*prompt, *response]
        padded, mask = torch.tensor([[*ids, 0, 0, 0]]), torch.tensor([[1] * len(ids) + [0] * 3])
        with torch.no_grad():
            scores.append(model(padded, attention_mask=mask).logits.item())
    return scores


def test_scores_are_those_of_transformers(scorer_folder, rows):
    scores, expected = reward_model(scorer_folder).compute_scores(rows), padded_scores(scorer_folder, rows)
    assert scores == pytest.approx(expected, abs=1e-5)
    assert np.std(expected) > 0.01, "equal scores would show nothing"


@pytest.mark.parametrize(
    "cut",
    [
        MicroBatchSize(rows=1),
        MicroBatchSize(rows=4),
        MicroBatchSize(tokens=1),
        MicroBatchSize(tokens=20),
        MicroBatchSize(tokens=10_000),
    ],
)
def test_scores_do_not_depend_on_packing(scorer_folder, rows, cut):
    scores = reward_model(scorer_folder, cut).compute_scores(rows)
    assert scores == pytest.approx(reward_model(scorer_folder).compute_scores(rows), abs=1e-5)
    backwards = list(reversed(range(len(rows))))
    assert reward_model(scorer_folder, cut).compute_scores(rows.select(backwards)) == pytest.approx(
        scores[::-1], abs=1e-5
    )


@pytest.fixture(scope="module")
def tiny_scorer(tmp_path_factory):
    config = FAMILIES["qwen2"]()
    config.num_labels = 1
    torch.manual_seed(2)
    model = AutoModelForSequenceClassification.from_config(config)
    sharpen(model, seed=2)
    folder = tmp_path_factory.mktemp("scorer")
    model.save_pretrained(folder)
    return str(folder)


def test_normalization(tiny_scorer, rows):
    raw = reward_model(tiny_scorer).compute_scores(rows)
    normal = reward_model(tiny_scorer, mean=0.5, std=4.0).compute_scores(rows)
    assert normal == pytest.approx([(score - 0.5) / 4.0 for score in raw], abs=1e-6)


def test_long_inputs_are_truncated_and_counted(tiny_scorer, rows):
    model = reward_model(tiny_scorer, max_length=10)
    ends = [[*p, *r][-10:] for p, r in zip(rows["prompt_ids"].lists(), rows["responses"].lists(), strict=True)]
    empty = Ragged.of([[] for _ in ends], torch.int64)
    expected = reward_model(tiny_scorer).compute_scores(Batch(prompt_ids=Ragged.of(ends), responses=empty))
    assert model.compute_scores(rows) == pytest.approx(expected, abs=1e-5)
    # 16 and 18 tokens are too many; the response of twelve does not even fit by itself.
    assert model.take() == {"reward_model/overlong_inputs": 2.0, "reward_model/overlong_responses": 1.0}
    assert model.take() == {"reward_model/overlong_inputs": 0.0, "reward_model/overlong_responses": 0.0}


def test_without_a_limit_nothing_is_counted(tiny_scorer, rows):
    model = reward_model(tiny_scorer)
    model.compute_scores(rows)
    assert model.take() == {}


# templates


@pytest.fixture(scope="module")
def policy_tokenizer():
    return make_tokenizer("0123456789+=?")


@pytest.fixture(scope="module")
def their_tokenizer():
    """Other characters, so other numbers, and another template."""
    tokenizer = make_tokenizer("0123456789+=?[]</>\nabcdefghijklmnopqrstuvwxyz")
    tokenizer.chat_template = THEIR_TEMPLATE
    return tokenizer


def conversation(tokenizer, answers):
    """Rows as the loop has them: prompts templated for the policy, responses in its tokens, with or without an end."""
    chats = [[{"role": "user", "content": f"{number}+{number}=?"}] for number in range(len(answers))]
    prompts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
    return Batch(
        prompt_ids=Ragged.of([tokenizer(text)["input_ids"] for text in prompts], torch.int64),
        responses=Ragged.of([tokenizer(text)["input_ids"] for text in answers], torch.int64),
        raw_prompt=chats,
        uid=[f"prompt {number}" for number in range(len(answers))],
        data_source=["sums"] * len(answers),
        ground_truth=[str(2 * number) for number in range(len(answers))],
        extra_info=[{} for _ in answers],
    )


def test_the_response_is_rendered_with_the_reward_models_template(policy_tokenizer, their_tokenizer):
    """From the policy's tokens to text to the reward model's tokens."""
    batch = conversation(policy_tokenizer, ["0", "2<|im_end|>"])
    inputs = RewardModelTemplate(policy_tokenizer, their_tokenizer)
    written = [their_tokenizer.decode(ids) for ids in inputs.ids(batch)]
    assert written == ["[user]0+0=?</s>\n[assistant]0</s>\n", "[user]1+1=?</s>\n[assistant]2</s>\n"]
    direct = PolicyTokens().ids(batch)
    assert direct != inputs.ids(batch)
    assert their_tokenizer.decode(direct[1]) != written[1], "fed as they are, the tokens mean something else there"


def test_equal_templates_differ_only_at_the_end(policy_tokenizer):
    """An answer that ended is the same either way; one that was cut off gets the end that the template writes."""
    assert policy_tokenizer.chat_template == CHAT_TEMPLATE
    batch = conversation(policy_tokenizer, ["0<|im_end|>", "22"])
    templated, direct = RewardModelTemplate(policy_tokenizer, policy_tokenizer).ids(batch), PolicyTokens().ids(batch)
    assert templated[0] == direct[0]
    assert templated[1] == [*direct[1], policy_tokenizer.eos_token_id]


def test_only_the_policys_eos_is_removed(policy_tokenizer):
    inputs = RewardModelTemplate(policy_tokenizer, policy_tokenizer)
    ids = policy_tokenizer("1<|im_start|>2<|im_end|>")["input_ids"]
    assert inputs.answer(ids) == "1<|im_start|>2"


def test_response_length_is_in_reward_model_tokens(policy_tokenizer, their_tokenizer):
    batch = conversation(policy_tokenizer, ["123<|im_end|>"])
    assert RewardModelTemplate(policy_tokenizer, their_tokenizer).response_length(batch, 0) == 3
    assert PolicyTokens().response_length(batch, 0) == 4


def test_a_tokenizer_without_a_template_is_refused(policy_tokenizer):
    bare = make_tokenizer("01")
    bare.chat_template = None
    with pytest.raises(UserError, match="no chat template") as caught:
        RewardModelTemplate(policy_tokenizer, bare)
    assert "input_tokenizer=null" in caught.value.hint


def test_a_failing_template_is_reported_with_the_prompt(policy_tokenizer):
    strict = make_tokenizer("01")
    strict.chat_template = "{{ raise_exception('no user messages, please') }}"
    with pytest.raises(UserError, match=r"prompt 0.*no user messages"):
        RewardModelTemplate(policy_tokenizer, strict).ids(conversation(policy_tokenizer, ["1"]))


def test_prompts_without_messages_are_refused(policy_tokenizer):
    batch = conversation(policy_tokenizer, ["1"])
    tokens_only = batch.keep("prompt_ids", "responses", "uid").add(raw_prompt=[None])
    with pytest.raises(UserError, match="without messages"):
        RewardModelTemplate(policy_tokenizer, policy_tokenizer).ids(tokens_only)


def test_decoder_has_the_policys_vocabulary(policy_tokenizer, their_tokenizer):
    same = make_tokenizer("0123456789+=?")
    assert decoder_for(policy_tokenizer, same) == (same, None)
    decoder, notice = decoder_for(policy_tokenizer, their_tokenizer)
    assert decoder is policy_tokenizer
    assert "a vocabulary other than the policy's" in notice


# a user's class


class Counts:
    """Scores an answer by its length and the number of its prompt's tokens."""

    def __init__(self, path, device):
        self.path, self.device = path, device

    def score(self, rows):
        self.rows = rows
        return [len(row["response"]) + len(row["prompt_ids"]) / 100 for row in rows]


def test_custom_class(policy_tokenizer):
    batch = conversation(policy_tokenizer, ["0", "22<|im_end|>"])
    model = CustomRewardModel(Counts, "folder", CPU, policy_tokenizer)
    length = len(batch["prompt_ids"][0])
    assert model.compute_scores(batch) == [1 + length / 100, 2 + length / 100]
    assert (model.model.path, model.model.device, model.take()) == ("folder", CPU, {})
    row = model.model.rows[1]
    assert row["messages"] == [{"role": "user", "content": "1+1=?"}]
    assert (row["response"], row["ground_truth"], row["data_source"]) == ("22", "2", "sums")
    assert row["response_ids"] == batch["responses"][1].tolist()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([np.float32(1.5)], [1.5]), ([torch.tensor(2.5)], [2.5]), ([True], [1.0])],
)
def test_numbers_are_converted(policy_tokenizer, scores, expected):
    model_class = type("Given", (Counts,), {"score": lambda self, rows: scores})
    model = CustomRewardModel(model_class, None, CPU, policy_tokenizer)
    assert model.compute_scores(conversation(policy_tokenizer, ["1"])) == expected


@pytest.mark.parametrize("score", ["good", None, torch.ones(2), math.nan])
def test_invalid_scores_are_nan(policy_tokenizer, score):
    model_class = type("Given", (Counts,), {"score": lambda self, rows: [score]})
    (scores,) = CustomRewardModel(model_class, None, CPU, policy_tokenizer).compute_scores(
        conversation(policy_tokenizer, ["1"])
    )
    assert math.isnan(scores)


def raises(*_):
    raise KeyError("weights")


@pytest.mark.parametrize(
    ("methods", "problem"),
    [
        ({"__init__": raises}, r"Given\(path, device\) raised KeyError"),
        ({"score": None}, r"no method score\(rows\)"),
        ({"score": raises}, "Given.score raised KeyError"),
        ({"score": lambda self, rows: [1.0, 2.0]}, "2 scores for 1 rows"),
    ],
)
def test_errors_of_a_custom_class_are_reported(policy_tokenizer, methods, problem):
    model_class = type("Given", (Counts,), methods)
    with pytest.raises(UserError, match=problem) as caught:
        CustomRewardModel(model_class, None, CPU, policy_tokenizer).compute_scores(
            conversation(policy_tokenizer, ["1"])
        )
    assert caught.value.key == "reward_model.model.custom_cls.path"
