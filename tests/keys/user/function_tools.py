"""Functions as tools, as in verl."""

from verl.tools.function_tool import function_tool


@function_tool
def double(number: int) -> str:
    """Double a number.

    Args:
        number: which
    """
    return f"twice {number}"
