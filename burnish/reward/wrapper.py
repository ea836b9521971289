"""Wrapper programs for test cases that call functions of the model's code. They run in the sandbox.

A wrapper reads one JSON object from stdin and prints its result as the last line. The expected result is not passed to
the sandbox, so that the program cannot print it; or it is in another process, which the program cannot look into.
"""

from __future__ import annotations

import functools
import inspect
import json
import math

from burnish.reward import assertions

_PRELUDE = (
    "import bisect, collections, functools, heapq, itertools, math, re, string, sys\n"
    "from collections import Counter, OrderedDict, defaultdict, deque\nfrom typing import *"
)

_HEAD = """
import json, math, os, sys
_request = json.loads(sys.stdin.read())
_scope = {"__name__": "solution"}
exec(PRELUDE, _scope)
exec(compile(SOURCE, "solution.py", "exec"), _scope)
def _print_result(text):
    sys.stdout.write("\\n" + text + "\\n")
    sys.stdout.flush()
    os._exit(0)
"""

_CALL = """
def _plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return list(value) if hasattr(value, "__iter__") else repr(value)
_name = _request["name"]
_function = _scope[_name] if callable(_scope.get(_name)) else getattr(_scope["Solution"](), _name)
_print_result(json.dumps(_function(*_request["arguments"]), default=_plain))
"""

_EVALUATE = """
_print_result(canonical(eval(_request["expression"], _scope)))
"""

_CHECK = """
_channel = fork_program()
_scope = {"__name__": "solution" if _channel.is_program else "test"}
exec(PRELUDE, _scope)
if _channel.is_program:
    exec(compile(SOURCE, "solution.py", "exec"), _scope)
    _channel.scope = _scope
    _channel.serve()
_request = json.loads(sys.stdin.read())
fill_scope(_channel, _scope, _request["names"])
_before = set(_scope)
exec(compile(_request["statement"], "test.py", "exec"), _scope)
run_tests(_scope, _before)
sys.stdout.write("\\n" + _request["token"] + "\\n")
sys.stdout.flush()
os._exit(0)
"""


def call_program(code: str) -> str:
    """A program that calls a function, or a method of class Solution: {name, arguments} -> JSON."""
    return _program(_HEAD + _CALL, code)


def evaluate_program(code: str) -> str:
    """A program that prints the canonical text of {expression}."""
    return _program(_HEAD + inspect.getsource(canonical) + _EVALUATE, code)


def check_program(code: str) -> str:
    """A program that prints the token of {statement, names, token} if the statement holds.

    The code runs in a process of its own; `names` are those in the statement that the code may define.
    """
    return _program(_assertions_source() + _CHECK, code)


def _program(text: str, code: str) -> str:
    # An ASCII JSON string is also a Python literal, which the code cannot terminate early.
    return text.replace("PRELUDE", json.dumps(_PRELUDE)).replace("SOURCE", json.dumps(code), 1)


@functools.cache
def _assertions_source() -> str:
    return inspect.getsource(assertions)


def canonical(value: object) -> str:
    """A text that is equal for equal values: 1, 1.0 and True; sets and dicts in any order.

    The wrapper program contains a copy of this function, so that only texts need to be compared outside the sandbox.
    """
    if isinstance(value, bool | int | float):
        return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return kind + "(" + ",".join(map(canonical, value)) + ")"
    if isinstance(value, set | frozenset):
        return "set(" + ",".join(sorted(map(canonical, value))) + ")"
    if isinstance(value, dict):
        return "dict(" + ",".join(sorted(canonical(name) + ":" + canonical(item) for name, item in value.items())) + ")"
    return ascii(value)
