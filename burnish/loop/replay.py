"""Recorded rollouts: the first run writes its trajectories, later runs read them instead of generating.

{rollout.skip_dump_dir}/{step}.jsonl has one line per trajectory, identified by its sampling settings and its seed
(a function of run seed, step, prompt and sample). Pictures of the prompts come from the data, those that tools returned
from {step}.media. Validation always generates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from burnish.errors import UserError
from burnish.folders import make_private
from burnish.log.jsonl import encode, plain, read, write_atomically
from burnish.loop.pictures import media_records, restore_media, save_media
from burnish.models.model_input import Media, ModelInput
from burnish.models.routing import as_text, from_text
from burnish.rollout.episode import Prompt
from burnish.rollout.trajectory import Trajectory, Turn

KEY = "actor_rollout_ref.rollout.skip_dump_dir"
MEDIA = ".media"  # suffix of a step's folder of pictures
RENAMED = {"room": "max_total_tokens"}  # sampling settings by their names in recordings of 0.1


class Recording(Protocol):
    """Where trajectories come from, or go to, beside the engine."""

    def find(self, prompt: Prompt) -> list[Trajectory] | None:
        """Recorded trajectories of a sample; None to generate them."""
        ...

    def add(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> None: ...


class NoRecording:
    """Generates everything and keeps nothing."""

    def find(self, prompt: Prompt) -> None:
        return None

    def add(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> None:
        pass


NO_RECORDING = NoRecording()


@contextmanager
def recorded(folder: str | None, step: int) -> Iterator[Recording]:
    """Replay the step's file where it exists, else write it at the end. `folder` None does neither."""
    if folder is None:
        yield NO_RECORDING
        return
    path = Path(folder).expanduser() / f"{step}.jsonl"
    if path.is_file():
        yield Replay(path)
        return
    recorder = TrajectoryRecorder()
    yield recorder
    recorder.write(path)


class TrajectoryRecorder:
    """Generates, and remembers finished trajectories."""

    def __init__(self) -> None:
        self.trajectories: list[tuple[Prompt, Sequence[Trajectory]]] = []

    def find(self, prompt: Prompt) -> None:
        return None

    def add(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> None:
        self.trajectories.append((prompt, trajectories))

    def write(self, path: Path) -> None:
        """All at once, so that a killed run leaves no partial step."""
        lines = [
            {"sampling": _sampling(prompt), "seed": prompt.seed, **_prompts(prompt, trajectory), **_fields(trajectory)}
            for prompt, trajectories in self.trajectories
            for trajectory in trajectories
            if all(row.finish_reason != "abort" for row in trajectories)
        ]
        shown = [media for _, rows in self.trajectories for row in rows for media in row.all_media]
        given = {media.digest for prompt, _ in self.trajectories for media in prompt.input.media}
        try:
            make_private(path.parent)
            save_media([media for media in shown if media.digest not in given], path.with_suffix(MEDIA))
            write_atomically(path, "".join(encode(line) + "\n" for line in lines))
        except OSError as error:
            problem = f"cannot write trajectories there: {error.strerror or error}"
            raise UserError(problem, key=KEY, value=str(path.parent), hint=f"{KEY}=/a/writable/folder") from error


class Replay:
    """Returns recorded trajectories. A sample that was not recorded fails when its task awaits it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.samplings: set[str] = set()
        self.trajectories: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.prompts: dict[tuple[str, int], list[int]] = {}
        try:
            self._read()
        except (ValueError, KeyError, TypeError) as error:
            raise self._mismatch(f"{path} cannot be read as recorded trajectories: {error}") from error

    def find(self, prompt: Prompt) -> list[Trajectory]:
        sampling = encode(_sampling(prompt))
        lines = self.trajectories.get((sampling, prompt.seed))
        if lines is not None and self.prompts[sampling, prompt.seed] == [list(prompt.input.ids), _media(prompt.input)]:
            known = {media.digest: media for media in prompt.input.media}
            return [_trajectory(line, known, self.path.with_suffix(MEDIA)) for line in lines]
        if sampling not in self.samplings:
            raise self._mismatch(f"{self.path} was sampled with other settings than this run's: {sampling}")
        cause = "it has other prompts, another trainer.seed or a smaller rollout.n"
        raise self._mismatch(f"{self.path} has no trajectory for a sample of this run: {cause}")

    def add(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> None:
        pass

    def _read(self) -> None:
        for line in read(self.path):
            settings, seed = line.pop("sampling"), line.pop("seed")
            sampling = encode({RENAMED.get(name, name): value for name, value in settings.items()})
            self.samplings.add(sampling)
            prompt = line.pop("row_prompt", line["prompt"])
            shown = line.pop("row_prompt_media", line.get("prompt_media", []))
            self.prompts[sampling, seed] = [prompt, shown]
            self.trajectories.setdefault((sampling, seed), []).append(line)
            if not line.get("prompt_media") and not line.get("media"):
                _trajectory(line, {}, self.path.parent)  # a file that cannot be read fails at once

    def _mismatch(self, problem: str) -> UserError:
        hint = f"{KEY}=/another/folder, or delete this one"
        return UserError(problem, key=KEY, value=str(self.path.parent), hint=hint)


def _sampling(prompt: Prompt) -> dict[str, Any]:
    return plain(asdict(prompt.sampling))


def _prompts(prompt: Prompt, trajectory: Trajectory) -> dict[str, Any]:
    """The prompt, and that of the row where an agent started from another one."""
    given, row = trajectory.prompt, prompt.input
    fields: dict[str, Any] = {"prompt": given.ids}
    if given.media:
        fields["prompt_media"] = _media(given)
    if given.ids != row.ids or given.media != row.media:
        fields |= {"row_prompt": row.ids, "row_prompt_media": _media(row)}
    return fields


def _media(input: ModelInput) -> list[dict[str, Any]]:
    return media_records(input.media)


def _fields(trajectory: Trajectory) -> dict[str, Any]:
    """What a line says about a trajectory. A single turn needs no mask and no turns."""
    fields = {
        "ids": trajectory.ids,
        "log_probs": trajectory.log_probs,
        "versions": trajectory.versions,
        "finish_reason": trajectory.finish_reason,
        "stop_reason": trajectory.stop_reason,
        "top_log_probs": trajectory.top_log_probs,
    }
    own = {"score": trajectory.score, "extras": trajectory.extras or None, "problem": trajectory.problem}
    fields |= {name: value for name, value in own.items() if value is not None}
    if trajectory.routed_experts is not None:
        fields["routed_experts"] = as_text(trajectory.routed_experts)
    if trajectory.media:
        fields["media"] = media_records(trajectory.media)
    if trajectory.futures:
        fields["futures"] = [
            {"prompt": future.prompt.ids, "prompt_media": _media(future.prompt), **_fields(future)}
            for future in trajectory.futures
        ]
    if not trajectory.is_single_turn:
        fields |= {"mask": trajectory.mask, "turns": [asdict(turn) for turn in trajectory.turns]}
    return fields


def _trajectory(line: dict[str, Any], known: Mapping[bytes, Media], folder: Path) -> Trajectory:
    """A line as a trajectory. `known`: media by digest that need no file."""
    line = dict(line)
    media, shown = (
        tuple(restore_media(record, known, folder) for record in line.pop(name, []))
        for name in ("media", "prompt_media")
    )
    experts = line.pop("routed_experts", None)
    prompt, length = ModelInput(tuple(line.pop("prompt")), shown), len(line["ids"])
    turns = [Turn(**turn) for turn in line.pop("turns", [])]
    futures = tuple(_trajectory(future, known, folder) for future in line.pop("futures", []))
    return Trajectory(
        prompt,
        mask=line.pop("mask", [True] * length),
        turns=turns or [Turn(0, length, finish_reason=line["finish_reason"])],
        futures=futures,
        media=media,
        routed_experts=None if experts is None else from_text(experts),
        **line,
    )
