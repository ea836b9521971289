from __future__ import annotations

import pytest

from burnish.redact import HIDDEN, is_secret, redact, redact_command, redact_text

HEX = "0123456789abcdef0123456789abcdef01234567"
HF = "hf_" + "abcDEFghiJKLmnoPQRst"
SK = "sk-" + "proj-A1b2C3d4E5f6G7h8"


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "wandb_api_key",
        "apiKey",
        "api-key",
        "OPENAI_API_KEY",
        "reward.reward_kwargs.api_key",
        "token",
        "hf_token",
        "HF_TOKEN",
        "hub_token",
        "auth_token",
        "accessToken",
        "password",
        "db_password",
        "client_secret",
        "aws_secret_access_key",
        "AWS_ACCESS_KEY_ID",
        "private_key",
        "Authorization",
        "credentials",
    ],
)
def test_secret_names(name):
    assert is_secret(name, "whatever")
    assert redact({name: "whatever"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_token_len", "16384"),
        ("ppo_max_token_len_per_gpu", 16384),
        ("max_token", 512),
        ("tokenizer", "Qwen/Qwen2.5-0.5B"),
        ("stop_token_ids", [1, 2]),
        ("pad_token", "<pad>"),
        ("eos_token", "</s>"),
        ("loss_agg_mode", "seq-mean-token-sum"),
        ("prompt_key", "prompt"),
        ("reward_fn_key", "data_source"),
        ("image_key", "images"),
        ("key", "value"),
        ("api_key", None),
        ("api_key", ""),
        ("token", True),
        ("revision", HEX),
        ("path", "/models/task-force-alpha-beta-gamma-1"),
        ("experiment_name", "hf_rollout_with_a_long_name"),
        ("url", "http://localhost:8000/v1"),
    ],
)
def test_other_values_are_kept(name, value):
    assert redact({name: value}) == {name: value}


@pytest.mark.parametrize(
    "secret", [HF, SK, HEX, "ghp_" + "a1B2" * 9, "AKIA" + "ABCDEFGH12345678", "wandb_v1_" + "aB3" * 20]
)
def test_values_that_look_like_secrets(secret):
    config = {"a": {"b": [f"x {secret} y", {"c": secret}]}, "n": 1}
    cleaned = redact(config)
    assert secret not in str(cleaned)
    assert cleaned["n"] == 1 and cleaned["a"]["b"][0] == f"x {HIDDEN} y"
    assert config["a"]["b"][1]["c"] == secret  # the config itself is not touched


def test_redaction_is_idempotent():
    once = redact({"api_key": "x", "url": f"https://u:p@host/?token={HF}", "header": "Bearer abcdefghijk"})
    assert redact(once) == once
    assert "u:p" not in once["url"] and "host" in once["url"]
    assert once["header"] == f"Bearer {HIDDEN}"


def test_command_lines():
    command = ["burnish", "train", "a.api_key=hunter2", "+b={token: hunter2, n: 3}", "--api-key", "hunter2", "lr=1e-6"]
    command += ["data.max_token_len=5", f"x={SK}", "--password=hunter2", f"model.revision={HEX}", f"y={HEX}"]
    shown = redact_command(command)
    assert "hunter2" not in str(shown) and SK not in str(shown)
    assert shown[0:2] == ["burnish", "train"]
    assert f"+b={{token: {HIDDEN}, n: 3}}" in shown
    assert {"lr=1e-6", "data.max_token_len=5", f"model.revision={HEX}", f"y={HIDDEN}"} <= set(shown)
    assert redact_command(["burnish", "train", "lr=1e-6"]) == ["burnish", "train", "lr=1e-6"]


def test_yaml_text():
    text = "a:\n  password: three word secret\n  - token: 'x y'\n  lr: 1.0e-06\n  headers:\n"
    text += "    Authorization: Bearer abcdefghijk\n"
    cleaned = redact_text(text)
    assert "three" not in cleaned and "x y" not in cleaned and "abcdefghijk" not in cleaned
    assert "  lr: 1.0e-06\n" in cleaned and cleaned.count("\n") == text.count("\n")


def test_values_of_secret_environment_variables(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "local-0123-unusual-form")
    monkeypatch.setenv("SHORT_TOKEN", "on")
    assert redact({"a": "key is local-0123-unusual-form"}) == {"a": f"key is {HIDDEN}"}
    assert redact_text("turned on: local-0123-unusual-form") == f"turned on: {HIDDEN}"
