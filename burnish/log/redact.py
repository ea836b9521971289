"""Remove secrets from what is logged or written to the run folder, by key name and by the format of values."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "<hidden>"

ALWAYS_SECRET = {"password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "apikey"}
ALWAYS_SECRET |= {"authorization", "authtoken", "accesstoken"}
# `key` and `token` are secrets only after one of these words: prompt_key, pad_token and max_token_len are not.
KEY_OWNERS = {"api", "access", "private", "auth", "encryption", "signing", "subscription", "account"}
TOKEN_OWNERS = KEY_OWNERS | {"hf", "hub", "huggingface", "wandb", "github", "bearer", "refresh", "session", "bot", "id"}
# A 40-digit hexadecimal value under these names is a commit hash, not a wandb key.
HASH_NAMES = {"revision", "commit", "sha", "sha1", "hash", "fingerprint", "digest", "checksum", "ref"}

HEX_KEY = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
VALUES = re.compile(
    r"""(?<![0-9A-Za-z])(?:
      hf_[A-Za-z0-9]{16,}
    | sk-(?=[A-Za-z0-9_-]*\d)[A-Za-z0-9_-]{16,}
    | (?:gh[pousr]|github_pat)_[A-Za-z0-9_]{16,}
    | glpat-[A-Za-z0-9_-]{16,}
    | wandb_v\d_[A-Za-z0-9_]{16,}
    | xox[abprs]-[A-Za-z0-9-]{10,}
    | A(?:KIA|SIA)[0-9A-Z]{16}
    | AIza[0-9A-Za-z_-]{30,}
    | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+
    | (?<=[Bb]earer\s)[A-Za-z0-9._~+/=-]{8,}
    | (?<=://)[^/\s:@]+:[^/\s:@]+(?=@)
    )""",
    re.VERBOSE,
)
NAMED_VALUE = re.compile(
    r"""(?P<name>[A-Za-z][\w.-]*)(?P<between>["']?\s*(?:=|:(?!//))\s*)(?P<value>"[^"]*"|'[^']*'|[^\s"',;&{}()\[\]]+)"""
)
YAML_LINE = re.compile(r"(?m)^(?P<name>[ -]*[A-Za-z][\w.-]*)(?P<between>[\"']?:[ ]+)(?P<value>\S.*)$")


def redact(config: dict) -> dict:
    """A copy of a config tree without its secrets."""
    return {key: _redact_entry(str(key), value) for key, value in config.items()}


def redact_text(text: str) -> str:
    """Free text (YAML, a command line, a message) without its secrets."""
    return _hide_by_name(_hide_values(text, hide_hex=False))


def redact_command(arguments: Sequence[str]) -> list[str]:
    """A command line without its secrets: `x.api_key=...`, `--api-key ...` and values that look like keys."""
    shown: list[str] = []
    for argument in arguments:
        before = shown[-1] if shown else ""
        if before.startswith("-") and "=" not in before and is_secret(before.lstrip("-"), argument):
            shown.append(HIDDEN)
        else:
            shown.append(redact_text(argument))
    return shown


def is_secret(name: str, value: object) -> bool:
    """Whether the value of this key is a secret. Only text can be one: max_token=512 and api_key=null are not."""
    if not isinstance(value, str) or value.strip().lower() in {"", "null", "none", "true", "false"}:
        return False
    words = _words(name)
    last, owner = words[-1:], words[-2:-1]
    if ALWAYS_SECRET.intersection(words):
        return True
    if "key" in words[1:] and any(a in KEY_OWNERS for a, b in itertools.pairwise(words) if b == "key"):
        return True
    return last == ["token"] and (not owner or owner[0] in TOKEN_OWNERS)


def _words(name: str) -> list[str]:
    """The words of the last part of a dotted name: `reward.apiKey` -> api, key."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.rpartition(".")[2])
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def _redact_entry(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return redact(value)
    if isinstance(value, list | tuple):
        return type(value)(_redact_entry(name, entry) for entry in value)
    if not isinstance(value, str):
        return value
    if is_secret(name, value):
        return HIDDEN
    return _hide_by_name(_hide_values(value, hide_hex=not HASH_NAMES.intersection(_words(name))))


def _hide_by_name(text: str) -> str:
    """Hide values after names of secrets. YAML lines first, because their values may contain spaces."""
    return NAMED_VALUE.sub(_hide_named, YAML_LINE.sub(_hide_named, text))


def _hide_named(match: re.Match) -> str:
    name, between, value = match["name"], match["between"], match["value"]
    bare = value.strip("\"'")
    if is_secret(name, bare) or (HEX_KEY.fullmatch(bare) and not HASH_NAMES.intersection(_words(name))):
        return f"{name}{between}{HIDDEN}"
    return match[0]


def _hide_values(text: str, *, hide_hex: bool) -> str:
    for secret in _environment_secrets():
        text = text.replace(secret, HIDDEN)
    text = VALUES.sub(HIDDEN, text)
    return HEX_KEY.sub(HIDDEN, text) if hide_hex else text


def _environment_secrets() -> list[str]:
    """Values of environment variables named like secrets (WANDB_API_KEY, HF_TOKEN)."""
    # Not short values, which could be ordinary words.
    return [value for name, value in os.environ.items() if len(value) >= 8 and is_secret(name, value)]
