"""Run a command with fewer rights than root, also where root's Python lies in a folder that only root can enter."""

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path

from burnish.isolation import linux
from burnish.isolation.spawn import interpreter_folders

REPO = Path(__file__).parents[2]
UID = 60999  # of no account


@contextlib.contextmanager
def as_user(*, mask_proc=False):
    """Options of subprocess.Popen for a command of an ordinary user, who can enter the folders of this Python.

    With `mask_proc` part of /proc is hidden, as containers do: no user can then mount /proc in a new namespace.
    """
    if os.geteuid() != 0:
        yield {"cwd": REPO}
        return

    def give_up_rights():
        if mask_proc:
            linux.mount("tmpfs", "/proc/irq", "tmpfs", linux.MS_RDONLY)
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)

    with _opened(give_up_rights) as options:
        yield options


@contextlib.contextmanager
def as_limited_root():
    """Options of subprocess.Popen for a command of root without CAP_SYS_ADMIN, as in most containers."""

    def give_up_rights():
        status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
        linux.drop_capabilities(int(status["CapPrm"], 16) & (2**32 - 1) & ~(1 << linux.CAP_SYS_ADMIN))

    with _opened(give_up_rights) as options:
        yield options


@contextlib.contextmanager
def _opened(give_up_rights):
    with tempfile.TemporaryDirectory() as stage, tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o777)
        paths = (sys.executable, os.path.realpath(sys.executable), str(REPO), *interpreter_folders())

        def start():
            linux.unshare(linux.CLONE_NEWNS)
            linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
            for path in paths:
                _open(path, stage)
            give_up_rights()

        yield {"cwd": REPO, "preexec_fn": start, "env": os.environ | {"HOME": home, "TMPDIR": home}}


def _open(path, stage):
    """Replace each folder above `path` that others cannot enter by one that has only the next folder."""
    while closed := [folder for folder in Path(path).parents if not folder.stat().st_mode & stat.S_IXOTH]:
        folder = closed[-1]
        child = folder / Path(path).relative_to(folder).parts[0]
        linux.mount(str(child), stage, None, linux.MS_BIND | linux.MS_REC)
        linux.mount("tmpfs", str(folder), "tmpfs", 0, "size=1m,mode=755")
        child.mkdir()
        linux.mount(stage, str(child), None, linux.MS_MOVE)
