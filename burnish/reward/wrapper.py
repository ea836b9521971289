"""Programs around a model's code, for answers that are functions. They run in the sandbox.

A wrapper reads one JSON object from stdin and prints its result as the last line. The expected result stays with us: a
program cannot print what it was never shown.
"""

from __future__ import annotations

import inspect
import json
import math

_HEAD = """
import json, math, os, sys
_asked = json.loads(sys.stdin.read())
_space = {"__name__": "solution"}
exec("import bisect, collections, functools, heapq, itertools, math, re, string, sys\\n"
     "from collections import Counter, OrderedDict, defaultdict, deque\\nfrom typing import *", _space)
exec(compile(SOURCE, "solution.py", "exec"), _space)
def _say(text):
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
_name = _asked["name"]
_function = _space[_name] if callable(_space.get(_name)) else getattr(_space["Solution"](), _name)
_say(json.dumps(_function(*_asked["arguments"]), default=_plain))
"""

_CHECK = """
if "expression" in _asked:
    _say(canonical(eval(_asked["expression"], _space)))
exec(_asked["statement"], _space)
_say(_asked["word"])
"""


def calling(code: str) -> str:
    """A program that calls a function, or a method of the class Solution: {name, arguments} -> JSON."""
    return _program(code, _CALL)


def checking(code: str) -> str:
    """A program that gives the canonical text of {expression}, or the word of {statement, word} if it holds."""
    return _program(code, inspect.getsource(canonical) + _CHECK)


def _program(code: str, rest: str) -> str:
    # A JSON string in ASCII is a Python literal too; nothing in the code can end it early.
    return _HEAD.replace("SOURCE", json.dumps(code), 1) + rest


def canonical(value: object) -> str:
    """A text that is the same for equal values: 1, 1.0 and True; sets and dicts in any order.

    The wrapper holds a copy of this function, so that only texts have to be compared here.
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
