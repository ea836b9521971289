"""Tools as functions: type hints and docstrings are the schema. Used by calculator.sh."""

from verl.tools.function_tool import function_tool


@function_tool
def multiply(a: int, b: int) -> str:
    """Multiply two integers.

    Args:
        a: the first factor
        b: the second factor
    """
    return str(a * b)
