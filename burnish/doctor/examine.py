"""Examine: a translated command, looked at from all sides without loading a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.config import Loaded, SftConfig, TrainConfig, load
from burnish.config.jobs import GenerateConfig
from burnish.config.rules import check_rules
from burnish.dialects.report import PENDING, REFUSED, STATUSES, Translation, source_names
from burnish.doctor import files, rules
from burnish.doctor.arithmetic import sft_arithmetic, train_arithmetic
from burnish.doctor.cures import Cure, cures
from burnish.doctor.machine import missing_for
from burnish.doctor.memory import Plan, Shapes, generate_plan, sft_plan, train_plan
from burnish.doctor.rules import Case, Finding
from burnish.doctor.shapes import Found, find_shape, known_name
from burnish.errors import UserError

SETTING = "refused_setting"
POLICY, REF, CRITIC, JUDGE = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.ref.model.path",
    "critic.model.path",
    "reward_model.model.path",
)


@dataclass
class Examination:
    """What the doctor found. Sizes are absent where a model's shape is not known."""

    translation: Translation
    arithmetic: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, Found] = field(default_factory=dict)
    plan: Plan | None = None
    cures: list[Cure] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0 fine, 3 when something is refused or will not fit."""
        refused = self.translation.exit_status or any(one.severity == rules.REFUSED for one in self.findings)
        return 3 if refused or (self.plan is not None and self.plan.too_big) else 0

    def plain(self) -> dict[str, Any]:
        """As `doctor --json` prints it, less the machine."""
        translation = self.translation
        memory = None if self.plan is None else self.plan.plain()
        if memory is not None:
            memory["shapes"] = {role: found.source for role, found in self.shapes.items()}
            memory["cures"] = [
                {"type": cure.typed, "price": cure.price, "bytes": cure.bytes, "fits": cure.fits} for cure in self.cures
            ]
        return {
            "understood": {
                "dialect": translation.dialect,
                "job": translation.job,
                **{status: translation.count(status) for status in STATUSES},
            },
            "arithmetic": self.arithmetic,
            "memory": memory,
            "findings": [finding.plain() for finding in self.findings],
        }


def examine(translation: Translation, *, capacity: int, shape: str | None = None, look: bool = True) -> Examination:
    """`shape` stands in for the policy's model; without `look` no file is opened but a config.json."""
    found = Examination(translation)
    loaded = load(translation.overrides(), job=translation.job, check=False)
    found.findings += _refused_items(translation)
    EXAMINERS.get(translation.job, _only_read)(found, loaded, capacity, shape, look)
    found.findings = _spoken(_once(found.findings), translation)
    return found


def _refused_items(translation: Translation) -> Iterator[Finding]:
    for item in translation.items:
        if item.status == REFUSED:
            text = f"{item.theirs}={item.value}: {item.why}"
            yield Finding(SETTING, rules.REFUSED, text, keys=(item.ours or item.theirs,))
    waiting = [item.theirs for item in translation.items if item.status == PENDING and item.explicit]
    if waiting:
        text = f"understood, but `burnish {translation.job}` waits for later work: {', '.join(waiting)}"
        yield Finding("pending", rules.NOTE, text, "burnish rehearse leaves them out")


def _train(found: Examination, loaded: Loaded, capacity: int, shape: str | None, look: bool) -> None:
    cfg: TrainConfig = loaded.cfg
    on_cpu = cfg.trainer.device == "cpu"
    num_rows = _look_at_files(found, cfg) if look else None
    found.arithmetic = train_arithmetic(cfg, on_cpu, num_rows)
    shapes = _train_shapes(found, cfg, shape)
    if shapes is not None:
        found.plan = train_plan(cfg, shapes, capacity)
        found.cures = cures(cfg, lambda changed: train_plan(changed, shapes, capacity))
    case = Case(cfg, shapes, frozenset(loaded.settings), _families(cfg))
    found.findings += rules.find_all(case)
    found.findings += _missing(cfg)
    known = {key for finding in found.findings for key in finding.keys}
    errors, _ = check_rules(cfg, "train")
    found.findings += [
        Finding("rule", rules.REFUSED, error.text(), keys=(error.key or "",))
        for error in errors
        if error.key not in known
    ]


def _missing(cfg: TrainConfig) -> Iterator[Finding]:
    for setting, library in missing_for(cfg):
        how = f"burnish[{library.extra}]" if library.extra else library.distribution
        text = f"{setting} needs {library.distribution}, which is not installed on this machine"
        yield Finding("not_installed", rules.NOTE, text, f"pip install '{how}', on the machine of the run")


def _look_at_files(found: Examination, cfg: TrainConfig) -> int | None:
    """Data and Python files; the number of training rows where it is known."""
    train = files.look_at_data(cfg.data, "data.train_files", cfg.data.train_files)
    val = files.look_at_data(cfg.data, "data.val_files", cfg.data.val_files)
    found.findings += [*train.findings, *val.findings]
    found.findings += [one for file in files.user_files(cfg) if (one := files.check_user_file(file)) is not None]
    broken = any(finding.severity == rules.REFUSED for finding in train.findings)
    if train.first is not None and not broken and cfg.data.handler.name is None:
        template = files.check_template(cfg, train.first)
        found.findings += [] if template is None else [template]
    return train.num_rows


def _train_shapes(found: Examination, cfg: TrainConfig, shape: str | None) -> Shapes | None:
    model = cfg.actor_rollout_ref.model
    path = shape or _named_model(found.translation, model.path)
    policy = _shape(found, "policy", path, POLICY, model.override_config)
    if policy is None:
        return None
    ref, critic, judge = cfg.actor_rollout_ref.ref.model, cfg.critic.model, cfg.reward_model
    same = (None, model.path)
    return Shapes(
        policy,
        None if ref.path in same else _shape(found, "reference", ref.path, REF, ref.override_config),
        None if critic.path in same else _shape(found, "critic", critic.path, CRITIC, critic.override_config),
        _shape(found, "reward model", judge.model.path, JUDGE) if judge.enable else None,
    )


def _named_model(translation: Translation, path: str | None) -> str | None:
    """The path, or where it says nothing, the entry of a model library (MindSpeed RL's `defaults: - model: NAME`)."""
    entries = [item.value for item in translation.items if item.theirs.endswith(".model")]
    named = [value for value in entries if isinstance(value, str) and known_name(value)]
    if path and (known_name(path) or (Path(path).expanduser() / "config.json").is_file()):
        return path
    return named[-1] if named else path


def _shape(found: Examination, role: str, path: str | None, key: str, overrides: dict | None = None) -> Any:
    """The shape, noted where it came from; or None, and a finding."""
    if not path:
        return None
    try:
        found.shapes[role] = find_shape(path, overrides, key)
    except (UserError, ValueError, OSError) as error:
        text = error.text() if isinstance(error, UserError) else f"{key}={path}: {error}"
        found.findings.append(Finding("shape", rules.NOTE, f"no memory plan of the {role}: {text}", keys=(key,)))
        return None
    return found.shapes[role].shape


def _families(cfg: TrainConfig) -> dict[str, str]:
    """model_type of the policy and the reward model, where their config.json is here."""
    families = {}
    for role, path in (("policy", cfg.actor_rollout_ref.model.path), ("reward model", cfg.reward_model.model.path)):
        config = Path(path or "").expanduser() / "config.json"
        if path and config.is_file():
            families[role] = str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))
    return families


def _sft(found: Examination, loaded: Loaded, capacity: int, shape: str | None, look: bool) -> None:
    cfg: SftConfig = loaded.cfg
    seen = files.look_at_examples(cfg, "data.train_files", cfg.data.train_files) if look else files.DataLook()
    found.findings += seen.findings
    found.arithmetic = sft_arithmetic(cfg, cfg.trainer.device == "cpu", seen.num_rows)
    model = _shape(
        found, "model", shape or cfg.model.partial_pretrain, "model.partial_pretrain", cfg.model.override_config
    )
    if model is not None:
        found.plan = sft_plan(cfg, model, capacity)
    _check(found, cfg, "sft")


def _generate(found: Examination, loaded: Loaded, capacity: int, shape: str | None, look: bool) -> None:
    cfg: GenerateConfig = loaded.cfg
    found.arithmetic = {
        "prompts_at_once": cfg.data.batch_size,
        "responses_per_prompt": cfg.data.n_samples,
        "responses_at_once": cfg.data.batch_size * cfg.data.n_samples,
        "tokens_per_response_at_most": cfg.rollout.prompt_length + cfg.rollout.response_length,
    }
    model = _shape(found, "model", shape or cfg.model.path, "model.path", cfg.model.override_config)
    if model is not None:
        found.plan = generate_plan(cfg, model, capacity)
    _check(found, cfg, "generate")


def _only_read(found: Examination, loaded: Loaded, capacity: int, shape: str | None, look: bool) -> None:
    _check(found, loaded.cfg, found.translation.job)


def _check(found: Examination, cfg: Any, job: str) -> None:
    errors, _ = check_rules(cfg, job)
    found.findings += [Finding("rule", rules.REFUSED, error.text(), keys=(error.key or "",)) for error in errors]


def _once(findings: list[Finding]) -> list[Finding]:
    """Without refused settings of which another finding says more."""
    others = [one for one in findings if one.severity == rules.REFUSED and one.rule != SETTING]
    said = {key for finding in others for key in finding.keys}
    return [finding for finding in findings if finding.rule != SETTING or not said & set(finding.keys)]


def _spoken(findings: list[Finding], translation: Translation) -> list[Finding]:
    """Where the user wrote a key under another name, that name beside ours; worst first."""
    words = {ours: theirs for ours, theirs in source_names(translation.items).items() if ours != theirs}
    order = (rules.REFUSED, rules.WARNING, rules.NOTE)
    spoken = []
    for finding in findings:
        told = " ".join((finding.text, finding.type, *finding.keys))
        theirs = sorted({words[key] for key in words if key in told.replace("=", " ").replace(":", " ").split()})
        said = f"{finding.text} (you wrote {', '.join(theirs)})" if theirs else finding.text
        spoken.append(Finding(finding.rule, finding.severity, said, finding.type, finding.keys))
    return sorted(spoken, key=lambda finding: order.index(finding.severity))


EXAMINERS = {"train": _train, "sft": _sft, "generate": _generate}
