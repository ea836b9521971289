"""What happens to rows whose images or videos cannot be read (data.invalid_media)."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.errors import UserError
from burnish.media import InvalidMedia
from burnish.registry import Registry

INVALID_MEDIA = Registry("treatment of invalid media", key="data.invalid_media")

RowErrors = Sequence[tuple[str, UserError]]  # where the row is, and what is wrong


def at_row(error: UserError, where: str) -> UserError:
    """The same error with the row's name, if it does not have it."""
    problem = error.problem if error.problem.startswith(where) else f"{where}: {error.problem}"
    return type(error)(problem, key=error.key, value=error.value, allowed=error.allowed, hint=error.hint)


@INVALID_MEDIA.register("error")
def refuse(errors: RowErrors, key: str) -> None:
    """Raise the first one."""
    where, error = errors[0]
    first = at_row(error, where)
    more = f" (the first of {len(errors)} such rows)" if len(errors) > 1 else ""
    droppable = isinstance(first, InvalidMedia)
    hint = "; ".join(filter(None, (first.hint, "data.invalid_media=drop to drop such rows" if droppable else None)))
    raise type(first)(
        first.problem.rstrip(".") + more, key=first.key, value=first.value, allowed=first.allowed, hint=hint or None
    )


@INVALID_MEDIA.register("drop")
def drop(errors: RowErrors, key: str) -> None:
    """Raise what is not the fault of a row, such as a network that fails: rows must not depend on it."""
    for where, error in errors:
        if not isinstance(error, InvalidMedia):
            raise at_row(error, where)
