"""Users' files of agents: YAML lists, classes by name, and calls that pass only the arguments a function takes."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from burnish.errors import UserError
from burnish.untrusted import BoundedLoader
from burnish.user_code import load_user_attribute


def read_entries(path: str, section: str | None, *, key: str, example: str) -> list[dict[str, Any]]:
    """The mappings in a YAML file: a list under `section`, or at the top."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError("no such file", key=key, value=path, hint=f"{key}=/path/to/a/file.yaml")
    try:
        content = yaml.load(file.read_text("utf-8"), Loader=BoundedLoader)
    except yaml.YAMLError as error:
        raise UserError(f"not valid YAML: {error}", key=key, value=path) from error
    if section is not None:
        content = content.get(section) if isinstance(content, Mapping) else None
    if not isinstance(content, list) or not content or not all(isinstance(entry, Mapping) for entry in content):
        where = "at the top of the file" if section is None else f"under `{section}:`"
        raise UserError(f"expected a list of entries {where}", key=key, value=path, allowed=example)
    return [dict(entry) for entry in content]


def load_class(name: object, *, key: str, where: str) -> Any:
    """A class by dotted name, `package.module:Class`, or `path/to/file.py:Class`."""
    text = str(name)
    path, separator, attribute = text.rpartition(":" if ":" in text else ".")
    if not isinstance(name, str) or not separator or not attribute.isidentifier():
        raise UserError(f"{where}: expected package.module.Class or path/to/file.py:Class", key=key, value=text)
    return load_user_attribute(path if path.endswith(".py") else f"pkg://{path}", attribute, key=key, value=text)


def accepted(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the keyword arguments that the function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(kwargs)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = {parameter.name for parameter in parameters if parameter.kind in by_name}
    return {name: value for name, value in kwargs.items() if name in names}


def with_ids_by_default(tokenizer: Any) -> Any:
    """A copy whose apply_chat_template returns a list of ids unless told otherwise, as users' agents expect.

    transformers 5 returns a dict.
    """
    own = copy.copy(tokenizer)
    own.apply_chat_template = functools.partial(tokenizer.apply_chat_template, return_dict=False)
    return own
