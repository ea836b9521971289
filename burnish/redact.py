"""Secrets stay out of what is printed, logged or written to a run folder: one rule for names, formats and known values.

- By name: `api_key`, `DB_PASS`, `Authorization`. The same names are withheld from reward workers.
- By format: keys of well-known services, signed URLs, webhooks, passwords in URLs.
- By value: the secrets of the environment and of the config, wherever a message repeats them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

HIDDEN = "<hidden>"

# Words that make any name one of a secret, also at the end of a longer word (dbpassword).
_SECRET = """
password passwd passphrase secret secrets credential credentials cred creds apikey apikeys accesskey secretkey
privatekey accountkey authorization auth authtoken accesstoken bearer cookie cookies pwd pat jwt dsn webhook webhooks
"""
# `key` and `token` are secrets for certain after one of these words.
_OWNERS = """
api access private auth encryption signing subscription account secret shared security hf hub huggingface wandb github
gitlab slack openai anthropic bearer refresh session bot id deploy service app client license admin
"""
# After these they name a column, a metric or a special token of a tokenizer.
_HARMLESS = """
prompt response answer question image images video videos audio message messages tool tools label labels reward fn
source data text input output chosen rejected column metric sort primary foreign cache index group dict map additional
thinking model score state info name uid best row target context system chat solution truth field eos bos pad unk sep
cls mask stop special think end start begin per max min num first last next new vision prefix suffix placeholder boi
eoi dp newline extra forward backward single multi second
"""
_SECRET_WORDS, _OWNER_WORDS, _HARMLESS_WORDS = (frozenset(words.split()) for words in (_SECRET, _OWNERS, _HARMLESS))
_SECRET_ENDS = ("password", "passwd", "passphrase", "secret", "credential", "credentials", "apikey", "authtoken")
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})
_BROAD_VARIABLE = re.compile(r"(KEY|TOKEN)S?(_|\d*$)")  # any such variable is withheld from reward workers
_NO_VALUES = frozenset({"", "null", "none", "true", "false", HIDDEN})
# What `some_key=` may be set to without being a secret: a word, a number, a path, a special token.
_PLAIN_VALUE = re.compile(r"[A-Za-z][a-z_. ]{0,31}|[-+\d.]+|[~.]{0,2}/.*|<.*>|\[.*\]|\s+", re.DOTALL)
# A 40-digit hexadecimal value under these names is a commit hash, not a wandb key.
_HASH_NAMES = {"revision", "commit", "sha", "sha1", "hash", "fingerprint", "digest", "checksum", "ref"}

_HEX_KEY = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_VALUES = re.compile(
    r"""(?<![0-9A-Za-z])(?:
      hf_[A-Za-z0-9]{16,}
    | sk-(?=[A-Za-z0-9_-]*\d)[A-Za-z0-9_-]{16,}
    | (?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}
    | (?:gh[pousr]|github_pat)_[A-Za-z0-9_]{16,}
    | (?:glpat|pypi|xapp|dapi)-?(?=[A-Za-z0-9_-]*\d)[A-Za-z0-9_-]{24,}
    | (?:npm|gsk|r8)_[A-Za-z0-9]{24,}
    | wandb_v\d_[A-Za-z0-9_]{16,}
    | xox[abprs]-[A-Za-z0-9-]{10,}
    | A(?:KIA|SIA)[0-9A-Z]{16}
    | AIza[0-9A-Za-z_-]{30,}
    | ya29\.[0-9A-Za-z_-]{20,}
    | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+
    | (?<=[Bb]earer\s)[A-Za-z0-9._~+/=-]{8,}
    | (?<=[Bb]asic\s)(?=[A-Za-z0-9+/]*[0-9=])[A-Za-z0-9+/]{8,}={0,2}
    )
    | (?<=/bot)[0-9]{6,}:[A-Za-z0-9_-]{20,}
    | (?<=://)[^\s/?#"'<>@:]*:[^\s/?#"'<>]*(?=@)          # user:password
    | (?<=https://)(?!git@)[^\s/?#"'<>@:]+(?=@)          # a token as the user
    | (?<=hooks\.slack\.com/)[^\s"'<>]+
    | (?:(?<=/hook/)|(?<=/hooks/)|(?<=/webhook/)|(?<=/webhooks/)|(?<=/webhookb2/))[^\s"'<>?]+
    | (?s:(?<=PRIVATE\ KEY-----).+?(?=-----END|\Z))
    """,
    re.VERBOSE,
)
_QUERY = re.compile(r"(?<=[?&#])(?P<name>[A-Za-z0-9_.%-]+)=(?P<value>[^&\s\"'<>#]+)")
_QUERY_WORDS = frozenset({"sig", "signature", "hmac", "key", "token", "sas", "code"})
_UP_TO_SPACE = r"[\"']?(?![{\[(])[^\s\"'&;]+?(?=[\"',)\]}]{0,9}(?:[\s\"'&;]|$))"
_NAMED_VALUE = re.compile(
    rf"""(?<![\w.])(?P<name>[A-Za-z][\w.-]{{0,199}})(?P<between>["']?\s{{0,9}}(?:=|:(?!//))\s{{0,9}})"""
    rf"""(?P<value>"(?:[^"\\]|\\.){{0,4000}}"|'(?:[^'\\]|\\.){{0,4000}}'|{_UP_TO_SPACE})"""
)
_FLAG = re.compile(
    rf"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{{0,199}})(?P<between>\s{{1,9}})(?P<value>[^\s-]{_UP_TO_SPACE})"
)
_HEADER = re.compile(
    r"(?i)(?P<name>(?:proxy-)?authorization[\"']?\s{0,9}[:=]\s{0,9}[\"']?)"
    r"(?P<value>(?:[A-Za-z]{1,20}[ \t]{1,9})?[^\s\"',;]+)"
)
_YAML_LINE = re.compile(r"(?m)^(?P<name>[ -]*[A-Za-z][\w.-]*)(?P<between>[\"']?:[ ]+)(?P<value>\S.*)$")
_VARIABLE = re.compile(r"\$\{\s*oc\.env\s*:\s*\w+\s*\}")
_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:\s*([A-Za-z_]\w*)")

_remembered: set[str] = set()
_interpolated: dict[str, tuple[Any, Any]] = {}  # key of the config -> (value, the interpolation as it was typed)


def redact(config: Mapping[str, Any], *, distinguish: bool = False) -> dict[str, Any]:
    """A copy of a config tree without its secrets. Values taken from the environment are shown as they were typed.

    With `distinguish`, these carry two bytes of a hash, so that another value of the variable is noticed.
    """
    return {key: _redact_entry(str(key), str(key), value, distinguish) for key, value in config.items()}


def redact_text(text: str) -> str:
    """Free text (YAML, a command line, a message) without its secrets."""
    text = _HEADER.sub(lambda match: f"{match['name']}{HIDDEN}", hide_values(text))
    for pattern in (_YAML_LINE, _NAMED_VALUE, _FLAG):  # YAML first, because its values may contain spaces
        text = pattern.sub(_hide_named, text)
    return text


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


def hide_values(text: str) -> str:
    """The text without known secrets (of the environment, remembered ones) and values in the format of a secret."""
    secrets = frozenset(_environment_secrets(tuple(os.environ.items()))) | _remembered
    text = _any_of(frozenset(secrets)).sub(HIDDEN, text) if secrets else text
    return _QUERY.sub(_hide_query, _VALUES.sub(HIDDEN, text))


def remember(value: object) -> None:
    """Hide this secret wherever a text repeats it. Short ordinary words are not hidden: they would be everywhere."""
    if isinstance(value, str) and _is_distinctive(value):
        _remembered.add(value)


def remember_secrets(settings: Mapping[str, Any]) -> None:
    """Remember the values of a (nested) mapping whose names are those of secrets."""
    for name, value in _leaves(settings):
        if is_secret(name, value):
            remember(str(value))


def remember_interpolation(key: str, typed: Any, value: Any) -> None:
    """Remember that a value of the config was taken from the environment."""
    variables = _ENVIRONMENT.findall(json.dumps(typed, default=str))
    if not variables:
        return
    _interpolated[key] = (value, typed)
    if any(map(looks_secret, variables)) or is_secret(key, str(value)):
        for _, entry in _leaves({key: value}):
            remember(entry)


def forget() -> None:
    """Forget what was remembered."""
    _remembered.clear()
    _interpolated.clear()


def is_secret(name: str, value: object) -> bool:
    """Whether the value of this key is a secret: not `max_token=512`, `prompt_key=question`, `api_key=null`."""
    if value is None or isinstance(value, bool) or str(value).strip().lower() in _NO_VALUES:
        return False
    if _VARIABLE.fullmatch(str(value)):  # it says where the secret is
        return False
    if _is_certain(_words(name)):
        return isinstance(value, str | int | float)
    return _is_likely(_words(name)) and isinstance(value, str) and not _PLAIN_VALUE.fullmatch(value)


def looks_secret(variable: str) -> bool:
    """Whether the name of an environment variable suggests a key, token or password."""
    words = _words(variable)
    return variable not in _NO_SECRETS and (
        _is_certain(words) or _is_likely(words) or _BROAD_VARIABLE.search(variable.upper()) is not None
    )


def _is_certain(words: tuple[str, ...]) -> bool:
    if any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words):
        return True
    if words[-1:] == ("pass",):
        return not _HARMLESS_WORDS.intersection(words)
    owned = [(a, b.removesuffix("s")) for a, b in itertools.pairwise(words)]
    return words == ("token",) or any(a in _OWNER_WORDS and b in ("key", "token") for a, b in owned)


def _is_likely(words: tuple[str, ...]) -> bool:
    """`some_key` and `some_token`. `key` alone is an entry of a mapping, `tokens` are counted."""
    if len(words) < 2 or words[-1] not in ("key", "token"):
        return False
    return not _HARMLESS_WORDS.intersection(words[:-1])


@lru_cache(maxsize=4096)
def _words(name: str) -> tuple[str, ...]:
    """The words of the last part of a dotted name: `reward.apiKey2` -> api, key."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.rpartition(".")[2])
    words = (word.lower().rstrip("0123456789") for word in re.split(r"[^A-Za-z0-9]+", spaced))
    return tuple(word for word in words if word)


def _redact_entry(path: str, name: str, value: Any, distinguish: bool) -> Any:
    resolved, typed = _interpolated.get(path, (None, None))
    if typed is not None and value == resolved:
        shown = _redact_entry("", name, typed, distinguish)
        return f"{shown} ({_two_bytes(value)})" if distinguish and not is_secret(name, value) else shown
    if isinstance(value, dict):
        hidden = _is_certain(_words(name))
        return {
            key: HIDDEN
            if hidden and isinstance(entry, str)
            else _redact_entry(f"{path}.{key}", str(key), entry, distinguish)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(_redact_entry("", name, entry, distinguish) for entry in value)
    if is_secret(name, value):
        return HIDDEN
    if not isinstance(value, str):
        return value
    return redact_text(value if _HASH_NAMES.intersection(_words(name)) else _HEX_KEY.sub(HIDDEN, value))


def _two_bytes(value: Any) -> str:
    """Enough to notice a change, too little to find the value by trying."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:4]


def _hide_named(match: re.Match[str]) -> str:
    name, between, value = match["name"], match["between"], match["value"]
    bare = value.strip("\"'")
    if is_secret(name, bare) or (_HEX_KEY.fullmatch(bare) and not _HASH_NAMES.intersection(_words(name))):
        return f"{name}{between}{HIDDEN}"
    return match[0]


def _hide_query(match: re.Match[str]) -> str:
    words = _words(match["name"])
    secret = bool(_QUERY_WORDS.intersection(words)) or is_secret(match["name"], match["value"])
    return f"{match['name']}={HIDDEN}" if secret else match[0]


@lru_cache(maxsize=4)
def _environment_secrets(variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Values of environment variables named like secrets (WANDB_API_KEY, HF_TOKEN)."""
    return tuple(
        value
        for name, value in variables
        if looks_secret(name)
        and _is_distinctive(value)
        and (_is_certain(_words(name)) or not _PLAIN_VALUE.fullmatch(value))
    )


def _is_distinctive(value: str) -> bool:
    """Whether a text is nothing that messages contain by chance."""
    return len(value) >= 8 or (len(value) >= 5 and re.fullmatch(r"[a-z]+|[A-Z]+|\d+", value) is None)


@lru_cache(maxsize=4)
def _any_of(secrets: frozenset[str]) -> re.Pattern[str]:
    """Matches each secret as it is, and as URLs, JSON and Python's repr write it; the longest first."""
    spellings = {
        spelling
        for secret in secrets
        for spelling in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1])
    }
    ordered = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(_as_word, ordered)))


def _as_word(secret: str) -> str:
    """A pattern. A short secret counts only as a word of its own."""
    return re.escape(secret) if len(secret) >= 8 else rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"


def _leaves(settings: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """(name, value) of all entries, those of lists under the list's name."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            inner = list(_leaves(value))
            yield from ((f"{name}_{key}" if _is_certain(_words(str(name))) else key, entry) for key, entry in inner)
        elif isinstance(value, list | tuple):
            yield from ((str(name), entry) for entry in value)
        else:
            yield str(name), value
