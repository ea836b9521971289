"""Mirror: copies of the checkpoints in remote storage (trainer.default_hdfs_dir)."""

from __future__ import annotations

from pathlib import Path

from burnish.errors import UserError
from burnish.folders import remove_tree
from burnish.storage import STEP, RemoteFolder
from burnish.training.checkpoint import BEST, LATEST, MANIFEST, PREFIX, Checkpoints, damage, replace_text

KEY = "trainer.default_hdfs_dir"


class Mirror:
    """Uploads every checkpoint, its manifest last: a copy without a manifest is incomplete."""

    def __init__(self, url: str) -> None:
        self.remote = RemoteFolder(url, KEY)
        self.pending: set[int] = set()  # steps to upload
        self.compared = False  # whether checkpoints of an earlier run were checked for missing copies

    def upload(self, checkpoints: Checkpoints, step: int) -> str | None:
        """Upload this checkpoint, and those whose upload failed before. Returns a notice on failure, else None."""
        self.pending.add(step)
        try:
            if not self.compared:
                steps = checkpoints.own_steps()
                self.pending |= {other for other in steps if self._manifest(checkpoints.path(other)) is None}
                self.compared = True
            for other in sorted(self.pending & set(checkpoints.steps())):
                self.remote.put(checkpoints.path(other), last=MANIFEST)
                self.pending.discard(other)
            self.remote.write(LATEST, str(checkpoints.own_steps()[-1]).encode())
            if (best := checkpoints.best()) is not None:
                self.remote.write(BEST, str(best).encode())
        except UserError as error:
            return f"the checkpoint of step {step} was not uploaded, and will be retried with the next one: {error}"
        return None

    def fetch_latest(self, checkpoints: Checkpoints) -> tuple[Path | None, list[str]]:
        """Download the newest intact checkpoint to the run folder; also returns a line for each damaged one."""
        damaged = []
        for step in reversed(self._steps()):
            folder = checkpoints.path(step)
            self.remote.fetch(folder.name, folder)
            problem = damage(folder)
            if problem is None:
                replace_text(checkpoints.folder / LATEST, str(step))
                return folder, damaged
            remove_tree(folder)
            damaged.append(
                f"checkpoint {self.remote.url}/{folder.name} is damaged ({problem}); trying the one before it"
            )
        return None, damaged

    def holds(self, folder: Path) -> bool:
        """Whether the copy of this checkpoint is the same."""
        return self._manifest(folder) == (folder / MANIFEST).read_bytes()

    def _steps(self) -> list[int]:
        """Steps of complete copies, oldest first; those after the last upload belong to an earlier run."""
        names = [name.removeprefix(PREFIX) for name in self.remote.names() if name.startswith(PREFIX)]
        steps = sorted(int(name) for name in names if STEP.fullmatch(name))
        complete = [step for step in steps if self.remote.read(f"{PREFIX}{step}/{MANIFEST}") is not None]
        last = (self.remote.read(LATEST) or b"").decode("ascii", "replace").strip()
        return [step for step in complete if not STEP.fullmatch(last) or step <= int(last)]

    def _manifest(self, folder: Path) -> bytes | None:
        return self.remote.read(f"{folder.name}/{MANIFEST}")
