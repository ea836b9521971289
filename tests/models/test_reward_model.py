"""Loading reward models: which checkpoints have a score, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Qwen2Config,
)

from burnish.errors import UserError
from burnish.models.load import ModelSource
from burnish.models.reward_model import check_score, last_token_scores, load_reward_model

SIZES = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}
KINDS = {
    "sequence": AutoModelForSequenceClassification,
    "token": AutoModelForTokenClassification,
    "language": AutoModelForCausalLM,
}


@pytest.fixture
def saved(tmp_path):
    """saved(kind, **config): the folder of a fresh model; its score head is far from zero."""

    def save(kind, **config):
        torch.manual_seed(0)
        model = KINDS[kind].from_config(Qwen2Config(**SIZES, **config))
        if hasattr(model, "score"):
            torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(tmp_path)
        return tmp_path

    return save


def loaded(folder):
    source = ModelSource(str(folder), key="reward_model.model.path")
    model = load_reward_model(source, torch.float32)
    check_score(model, source)
    return model


def score(model, ids):
    places = torch.arange(len(ids))[None]
    inputs = {"input_ids": torch.tensor([ids]), "position_ids": places, "attention_mask": None, "segments": [len(ids)]}
    return float(last_token_scores(model, inputs, torch.tensor([len(ids) - 1])))


def test_a_sequence_classifier_gives_its_own_score(saved):
    folder = saved("sequence", num_labels=1)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    assert score(loaded(folder), [5, 7, 9]) == pytest.approx(theirs(torch.tensor([[5, 7, 9]])).logits.item(), abs=1e-5)


def test_a_token_classifier_gives_that_of_its_last_token(saved):
    folder = saved("token", num_labels=1)
    theirs = AutoModelForTokenClassification.from_pretrained(folder).eval()
    expected = theirs(torch.tensor([[5, 7, 9]])).logits[0, -1].item()
    assert score(loaded(folder), [5, 7, 9]) == pytest.approx(expected, abs=1e-5)


def test_a_checkpoint_of_another_trainer_that_only_names_its_tensor_is_read(saved):
    """OpenRLHF's own class: another architecture's name, no number of labels, the tensor score.weight."""
    folder = saved("sequence", num_labels=1)
    expected = score(loaded(folder), [5, 7, 9])
    config = json.loads((folder / "config.json").read_text())
    for name in ("id2label", "label2id", "num_labels"):
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["RewardModel"]}))
    assert score(loaded(folder), [5, 7, 9]) == expected


def test_the_model_is_frozen(saved):
    model = loaded(saved("sequence", num_labels=1))
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_language_model_is_refused(saved):
    with pytest.raises(UserError, match="no trained score head") as caught:
        loaded(saved("language"))
    assert caught.value.key == "reward_model.model.path"
    assert "custom_cls" in caught.value.hint


def test_two_labels_are_refused(saved):
    with pytest.raises(UserError, match="2 labels"):
        loaded(saved("sequence", num_labels=2))


def test_a_head_that_was_not_saved_is_refused(saved):
    folder = saved("sequence", num_labels=1)
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k != "score.weight"}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="no trained score head"):
        loaded(folder)


def test_rope_that_depends_on_the_batch_is_refused(saved):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(UserError, match="longest sequence"):
        loaded(saved("sequence", num_labels=1, rope_parameters=rope))


def test_a_model_that_transforms_its_score_is_refused(saved, monkeypatch):
    folder = saved("sequence", num_labels=1)
    forward = type(loaded(folder)).forward

    def bent(self, *arguments, **more):
        output = forward(self, *arguments, **more)
        output.logits = output.logits * 3 + 1
        return output

    monkeypatch.setattr(type(loaded(folder)), "forward", bent)
    with pytest.raises(UserError, match="more than a linear head"):
        loaded(folder)
