"""A hash of a function that was passed in Python: of its source, and of the values that are bound to it."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

from burnish.storage import short_hash

_LAMBDA = "<lambda>"


def function_hash(function: Callable[..., Any]) -> str:
    """The same in every process and for every place of the function. Of bound values (arguments of a partial, variables
    of a closure, attributes of an object) only plain ones count: others have no stable text."""
    bound: list[Any] = []
    while isinstance(function, functools.partial):
        bound.append([list(function.args), function.keywords])
        function = function.func
    function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None)
    target = function if inspect.isroutine(function) else type(function)
    for instance in (owner, function):
        if instance is not None and not inspect.isroutine(instance) and not inspect.isclass(instance):
            bound.append(getattr(instance, "__dict__", {}))
    bound.append(_closure(function))
    return short_hash(f"{_source(target)}\n{_plain(bound)!r}")


def _source(target: Any) -> str:
    """The text of a function or class; of a lambda, without the rest of its line; its byte code without a source."""
    code: CodeType | None = getattr(target, "__code__", None)
    if code is not None and code.co_name == _LAMBDA:
        return _lambda_source(code) or repr(_code(code))
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        return repr(target) if code is None else repr(_code(code))


def _lambda_source(code: CodeType) -> str | None:
    """None unless it is the only lambda that starts on its line."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return None
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    return ast.unparse(nodes[0]) if len(nodes) == 1 else None


def _code(code: CodeType) -> tuple[Any, ...]:
    """Byte code, names and constants. The text of a nested code object would have its address in it."""
    constants = [_code(value) if isinstance(value, CodeType) else value for value in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    names = () if code is None else code.co_freevars
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=False) if _is_filled(cell)}


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that is not assigned yet
        return False


def _plain(value: Any) -> Any:
    """Numbers, texts, and lists and dicts of them; the source of a function; anything else is its type."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return sorted((str(name), _plain(entry)) for name, entry in value.items())
    return _source(value) if isinstance(value, FunctionType) else type(value).__qualname__
