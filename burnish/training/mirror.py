"""Mirror: copies of the checkpoints in another place (trainer.default_hdfs_dir), and the way back."""

from __future__ import annotations

import shutil
from pathlib import Path

from burnish.errors import UserError
from burnish.storage import RemoteFolder
from burnish.training.checkpoint import BEST, LATEST, MANIFEST, PREFIX, Checkpoints, damage, replace_text

KEY = "trainer.default_hdfs_dir"


class Mirror:
    """Every checkpoint is copied whole, its manifest last: one without a manifest was never finished."""

    def __init__(self, url: str) -> None:
        self.place = RemoteFolder(url, KEY)
        self.unsent: set[int] = set()
        self.knows = False  # what an earlier run left behind

    def send(self, checkpoints: Checkpoints, step: int) -> str | None:
        """Copy this checkpoint, and those that could not be copied before. What went wrong, in words, or None."""
        self.unsent.add(step)
        try:
            if not self.knows:
                self.unsent |= {one for one in checkpoints.own_steps() if self._manifest(checkpoints.path(one)) is None}
                self.knows = True
            for one in sorted(self.unsent & set(checkpoints.steps())):
                self.place.put(checkpoints.path(one), last=MANIFEST)
                self.unsent.discard(one)
            self.place.write(LATEST, str(checkpoints.own_steps()[-1]).encode())
            if (best := checkpoints.best()) is not None:
                self.place.write(BEST, str(best).encode())
        except UserError as error:
            return f"the checkpoint of step {step} is not copied, and will be with the next one: {error}"
        return None

    def fetch_latest(self, checkpoints: Checkpoints) -> tuple[Path | None, list[str]]:
        """The newest whole checkpoint there, copied to the run folder; and a line for each damaged one."""
        damaged = []
        for step in reversed(self._steps()):
            folder = checkpoints.path(step)
            self.place.fetch(folder.name, folder)
            problem = damage(folder)
            if problem is None:
                replace_text(checkpoints.folder / LATEST, str(step))
                return folder, damaged
            shutil.rmtree(folder)
            where = f"{self.place.url}/{folder.name}"
            damaged.append(f"checkpoint {where} is damaged ({problem}); going back to the one before it")
        return None, damaged

    def holds(self, folder: Path) -> bool:
        """Is the copy of this checkpoint the same?"""
        return self._manifest(folder) == (folder / MANIFEST).read_bytes()

    def _steps(self) -> list[int]:
        """Finished copies, oldest first; later ones than the last written are of another run."""
        names = [name.removeprefix(PREFIX) for name in self.place.names() if name.startswith(PREFIX)]
        steps = sorted(int(name) for name in names if name.isdigit())
        finished = [step for step in steps if self.place.read(f"{PREFIX}{step}/{MANIFEST}") is not None]
        last = (self.place.read(LATEST) or b"").strip()
        return [step for step in finished if not last.isdigit() or step <= int(last)]

    def _manifest(self, folder: Path) -> bytes | None:
        return self.place.read(f"{folder.name}/{MANIFEST}")
