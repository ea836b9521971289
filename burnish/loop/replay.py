"""Responses kept on disk: written by the first run that generates them, read by later ones instead of generating.

{rollout.skip_dump_dir}/{step}.jsonl has one line per response, named by how it was sampled and by its request's random
address (run seed, step, prompt, sample). Validation is always generated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.log.jsonl import encode, plain, read, write_atomically
from burnish.rollout.engine import Completion, Engine, Request

if TYPE_CHECKING:
    from burnish.loop.run import Run

KEY = "actor_rollout_ref.rollout.skip_dump_dir"
Found = tuple[list[int], Completion]  # prompt and response
Name = tuple[str, int]  # sampling and address


@contextmanager
def replayed(run: Run, step: int) -> Iterator[Engine]:
    """The run's engine, or one that reads the step's responses where they were kept, and keeps them if not."""
    rollout = run.cfg.actor_rollout_ref.rollout
    if not rollout.skip_rollout:
        yield run.engine
        return
    path = Path(rollout.skip_dump_dir).expanduser() / f"{step}.jsonl"
    if path.is_file():
        yield Replay(run.engine, path)
        return
    recorder = Recorder(run.engine)
    yield recorder
    recorder.write(path)


class _Wrapped:
    """An engine that does everything but generating as the one it stands for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


class Recorder(_Wrapped):
    """Generates, and remembers."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.made: list[tuple[Request, Future[Completion]]] = []

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        futures = self.engine.generate(requests)
        self.made += zip(requests, futures, strict=True)
        return futures

    def write(self, path: Path) -> None:
        """All at once, so that a killed run leaves no half of a step."""
        lines = [
            {"sampling": _sampling(request), "seed": request.seed, "prompt": request.ids, **asdict(future.result())}
            for request, future in self.made
            if not future.cancelled() and future.result().finish_reason != "abort"
        ]
        try:
            write_atomically(path, "".join(encode(line) + "\n" for line in lines))
        except OSError as error:
            problem = f"responses cannot be kept there: {error.strerror or error}"
            raise UserError(problem, key=KEY, value=str(path.parent), hint=f"{KEY}=/a/folder/with/room") from error


class Replay(_Wrapped):
    """Gives what was kept. A request that was not kept fails, once somebody waits for its response."""

    def __init__(self, engine: Engine, path: Path) -> None:
        super().__init__(engine)
        self.path = path
        self.samplings: set[str] = set()
        self.found: dict[Name, Found] = {}
        try:
            self._read()
        except (ValueError, KeyError, TypeError) as error:
            raise self._misfit(f"{path} cannot be read as kept responses: {error}") from error

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        return [self._answered(request) for request in requests]

    def abort(self, futures: Sequence[Future[Completion]]) -> None:
        """Nothing is on its way."""

    def step(self) -> bool:
        return False

    def _read(self) -> None:
        for line in read(self.path):
            sampling, seed, prompt = encode(line.pop("sampling")), line.pop("seed"), line.pop("prompt")
            self.samplings.add(sampling)
            self.found[sampling, seed] = (prompt, Completion(**line))

    def _answered(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        sampling = encode(_sampling(request))
        prompt, completion = self.found.get((sampling, request.seed), (None, None))
        if completion is not None and prompt == list(request.ids):
            future.set_result(completion)
        elif sampling not in self.samplings:
            future.set_exception(self._misfit(f"{self.path} was sampled otherwise than this run samples: {sampling}"))
        else:
            what = "other prompts, another trainer.seed or a smaller rollout.n"
            future.set_exception(self._misfit(f"{self.path} does not have a response that is asked for: it has {what}"))
        return future

    def _misfit(self, problem: str) -> UserError:
        hint = f"{KEY}=/another/folder, or delete this one"
        return UserError(problem, key=KEY, value=str(self.path.parent), hint=hint)


def _sampling(request: Request) -> dict[str, Any]:
    return plain(asdict(request.sampling))
