"""`burnish doctor --plan`: from the command line to a search, and its result in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from burnish.config import Loaded, Overrides
from burnish.config.rules import has_critic
from burnish.doctor.gpus import Cluster, parse_cluster
from burnish.doctor.known_shapes import KNOWN
from burnish.doctor.memory import Shapes
from burnish.doctor.planner.calibration import Calibration, shipped
from burnish.doctor.planner.links import LINE_SHARE, LINK_LATENCY, NETWORK_LATENCY, OVERLAP
from burnish.doctor.planner.search import DOES_NOT_FIT, Base, Candidate, Found, Search
from burnish.doctor.planner.timing import ROLLOUT as ROLLOUT_PHASE
from burnish.doctor.planner.timing import Workload
from burnish.doctor.shapes import Shape, find_shape
from burnish.errors import UserError
from burnish.sizing import GIB

MEASURED_GPU = "H200"
POLICY = "actor_rollout_ref.model.path"
HINT = "burnish doctor --plan 64xH100 actor_rollout_ref.model.path=qwen2.5-7b algorithm.adv_estimator=grpo"


@dataclass
class Report:
    """What a plan is printed from."""

    found: Found
    model: str
    assumptions: list[str]

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, **self.found.to_json(), "assumptions": self.assumptions}

    def lines(self) -> Iterator[tuple[str, str]]:
        """(style, text): title, line or item."""
        found, work = self.found, self.found.work
        tokens = f"{work.prompt:,.0f} + {work.response:,.0f} tokens"
        yield "title", f"Plan for {found.cluster.text()}"
        yield (
            "line",
            f"{self.model}; a step has {work.prompts:,} prompts x {work.samples} responses of {tokens}",
        )
        if not found.best:
            yield "line", "No layout fits. Use a smaller model, LoRA, shorter responses, or more GPUs."
            if any(one.reason == f"{DOES_NOT_FIT}: {ROLLOUT_PHASE}" for one in found.rejected):
                yield "line", "More GPUs do not help the rollout: an engine has at most those of one machine here."
        for number, candidate in enumerate(found.best, 1):
            yield from _candidate(number, candidate)
        if found.slower or found.rejected:
            yield "title", "Rejected"
        for text in (*found.slower, *(rejection.text() for rejection in found.rejected)):
            yield "line", text
        yield "title", "Assumptions"
        for text in self.assumptions:
            yield "line", text


def _candidate(number: int, candidate: Candidate) -> Iterator[tuple[str, str]]:
    time, worst = candidate.time, candidate.plan.worst
    yield "title", f"{number}. {time.step:,.1f} s per step"
    yield "line", candidate.layout.text()
    yield "line", ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in time.phases.items() if seconds >= 0.05)
    traffic = {kind: seconds for kind, seconds in time.communication.items() if seconds >= 0.05}
    if traffic:
        listed = ", ".join(f"{kind} {seconds:,.1f} s" for kind, seconds in traffic.items())
        yield "line", f"communication, mostly beside computation: {listed}"
    if time.bubble > 0:
        yield "line", f"pipeline bubbles: {time.bubble:.1%} of the update"
    memory = f"{worst.bytes / GIB:.1f} of {candidate.plan.capacity / GIB:.1f} GiB ({worst.name})"
    yield "line", f"memory {memory}; MFU {time.update_mfu:.1%} in the update, {time.mfu:.1%} of the step on all GPUs"
    if candidate.plan.concurrency is not None:
        yield "line", f"{candidate.plan.concurrency.at_once:,} sequences at once on an engine"
    for override in candidate.overrides:
        yield "setting", override


def plan_run(
    text: str, overrides: Overrides, *, model: str | None = None, capacity: int | None = None, pins: bool = True
) -> Report:
    """Search layouts for the run of these overrides on a cluster such as `64xH100`.

    `model` replaces the policy's in the shape; `capacity` replaces the GPU's memory in bytes. With `pins`, layouts
    keep what the overrides say.
    """
    cluster = parse_cluster(text)
    names: list[str] = []

    def shapes_of(loaded: Loaded) -> Shapes:
        shapes, name = _shapes(loaded, model)
        names.append(name)
        return shapes

    base = Base.of(overrides, shapes_of, pins=pins)
    calibration = shipped()
    found = Search(cluster, base, calibration, capacity or cluster.gpu.memory).run()
    return Report(found, names[0], assumptions(cluster, base, found.work, calibration))


def _shapes(loaded: Loaded, model: str | None) -> tuple[Shapes, str]:
    cfg = loaded.cfg
    policy, ref, critic = cfg.actor_rollout_ref.model, cfg.actor_rollout_ref.ref.model, cfg.critic.model
    path = model or policy.hf_config_path or policy.path
    if not path:
        raise UserError("no model to plan for", key=POLICY, allowed=_models(), hint=HINT)
    shape = _shape(path, policy.override_config, "--shape" if model else POLICY)
    reward = cfg.reward_model
    return Shapes(
        shape,
        _shape(ref.path, ref.override_config, "actor_rollout_ref.ref.model.path") if _other(ref, policy) else None,
        _shape(critic.path, critic.override_config, "critic.model.path")
        if has_critic(cfg) and _other(critic, policy)
        else None,
        _shape(reward.model.path, {}, "reward_model.model.path") if reward.enable else None,
    ), f"{path} ({shape.parameters / 1e9:.2f} B parameters)"


def _other(model: Any, policy: Any) -> bool:
    return model.path not in (None, policy.path)


def _shape(path: str, changes: Any, key: str) -> Shape:
    try:
        return find_shape(path, changes, key).shape
    except (ValueError, OSError) as error:
        raise UserError(f"config.json cannot be read: {error}", key=key, value=path) from error
    except UserError as error:
        error.allowed = error.allowed or _models()
        raise


def _models() -> str:
    return f"a folder with a config.json, or a known model: {', '.join(sorted(KNOWN))}"


def assumptions(cluster: Cluster, base: Base, work: Workload, calibration: Calibration) -> list[str]:
    """What the figures rest on, and where they are extrapolated."""
    found = ["every response has full length; the plan of long-tailed lengths is in docs/scale.md"]
    gpu, policy = cluster.gpu, base.shapes.policy
    found.append(f"coefficients fitted on {calibration.origin}, with the built-in engine")
    if gpu.name != MEASURED_GPU:
        found.append(f"extrapolated to {gpu.name} by its published FLOP/s and bandwidth; nothing was measured on it")
    if cluster.size > 1:
        found.append(
            f"several GPUs are not measured: {LINE_SHARE:.0%} of the line rates ({gpu.link / 1e9:.0f} GB/s within,"
            f" {gpu.network / 1e9:.1f} between machines), {LINK_LATENCY * 1e6:.0f} and {NETWORK_LATENCY * 1e6:.0f} us"
            f" a message, {OVERLAP:.0%} of the computation hides gathers and reductions of weights"
        )
        found.append("layers are not compiled on several ranks")
        found.append(
            "engines on several GPUs are not measured: as fast per GPU as one with a part of the weights and cache"
        )
    if policy.experts:
        found.append("mixtures of experts are not measured: tokens are spread evenly over the experts")
        found.append("tensor parallelism of training ranks was not considered for a mixture of experts")
    if policy.tower is not None:
        found.append("without the vision tower's time")
    return found
