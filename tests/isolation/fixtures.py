"""Fixtures to run programs in an isolation mode; imported by conftest files."""

import pytest

from burnish.isolation.plan import ROOT

from .as_user import as_user
from .modes import IS_ROOT
from .programs import UserPrograms, run_program


@pytest.fixture(scope="module")
def user_programs():
    """A process of an ordinary user that runs programs."""
    with as_user() as options:
        programs = UserPrograms(options)
        yield programs
        programs.close()


@pytest.fixture
def run_code(request):
    """run_code(code, stdin, mode=..., language=..., **settings) -> RunResult."""

    def run(code, stdin="", *, mode=None, **settings):
        if IS_ROOT and mode not in (None, ROOT):
            return request.getfixturevalue("user_programs").run(code, stdin, mode=mode, **settings)
        return run_program(code, stdin, mode=mode, **settings)

    return run
