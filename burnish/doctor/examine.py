"""Examine a translated command without loading a model: arithmetic, memory plan, files and rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from burnish.config import Loaded, SftConfig, TrainConfig, load
from burnish.config.jobs import GenerateConfig
from burnish.config.rules import check_rules
from burnish.dialects.report import PENDING, REFUSED, STATUSES, Translation, source_names
from burnish.doctor import files, rules
from burnish.doctor.arithmetic import sft_arithmetic, train_arithmetic
from burnish.doctor.fixes import MemoryFix, memory_fixes
from burnish.doctor.machine import missing_for
from burnish.doctor.memory import Plan, Shapes, generate_plan, sft_plan, train_plan
from burnish.doctor.rules import Case, Finding
from burnish.doctor.shapes import Shape, ShapeSource, find_shape, known_name
from burnish.errors import UserError

REFUSED_SETTING = "refused_setting"
POLICY, REF, CRITIC, REWARD_MODEL = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.ref.model.path",
    "critic.model.path",
    "reward_model.model.path",
)


@dataclass
class Examination:
    """The result. There is no plan where the model's shape is unknown."""

    translation: Translation
    arithmetic: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, ShapeSource] = field(default_factory=dict)
    plan: Plan | None = None
    fixes: list[MemoryFix] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0 without problems, 3 where a setting is refused or a phase does not fit."""
        refused = self.translation.exit_status or any(f.severity == rules.REFUSED for f in self.findings)
        return 3 if refused or (self.plan is not None and self.plan.too_big) else 0

    def to_json(self) -> dict[str, Any]:
        """As `doctor --json` prints it, without the machine."""
        translation = self.translation
        memory = None if self.plan is None else self.plan.to_json()
        if memory is not None:
            memory["shapes"] = {role: shape.source for role, shape in self.shapes.items()}
            memory["cures"] = [
                {"type": fix.typed, "price": fix.price, "bytes": fix.bytes, "fits": fix.fits} for fix in self.fixes
            ]
        return {
            "understood": {
                "dialect": translation.dialect,
                "job": translation.job,
                **{status: translation.count(status) for status in STATUSES},
            },
            "arithmetic": self.arithmetic,
            "memory": memory,
            "findings": [finding.to_json() for finding in self.findings],
        }


def examine(
    translation: Translation, *, capacity: int, shape: str | None = None, check_files: bool = True
) -> Examination:
    """Examine a command for a GPU of `capacity` bytes.

    `shape` replaces the policy's model in the memory plan. Without `check_files`, only config.json files are opened.
    """
    result = Examination(translation)
    loaded = load(translation.overrides(), job=translation.job, check=False)
    result.findings += _translation_findings(translation)
    examiner = EXAMINERS.get(translation.job)
    if examiner is None:
        _check_config(result, loaded.cfg, translation.job)
    else:
        examiner(result, loaded, capacity, shape, check_files)
    result.findings = _with_user_names(_deduplicated(result.findings), translation)
    return result


def _translation_findings(translation: Translation) -> Iterator[Finding]:
    for item in translation.items:
        if item.status == REFUSED:
            text = f"{item.theirs}={item.value}: {item.why}"
            yield Finding(REFUSED_SETTING, rules.REFUSED, text, keys=(item.ours or item.theirs,))
    pending = [item.theirs for item in translation.items if item.status == PENDING and item.explicit]
    if pending:
        text = f"not supported yet by `burnish {translation.job}`: {', '.join(pending)}"
        yield Finding("pending", rules.NOTE, text, "burnish rehearse ignores these keys")


def _train(result: Examination, loaded: Loaded, capacity: int, shape: str | None, check_files: bool) -> None:
    cfg: TrainConfig = loaded.cfg
    on_cpu = cfg.trainer.device == "cpu"
    num_rows = _check_files(result, cfg) if check_files else None
    result.arithmetic = train_arithmetic(cfg, on_cpu, num_rows)
    shapes = _train_shapes(result, cfg, shape)
    if shapes is not None:
        result.plan = train_plan(cfg, shapes, capacity)
        result.fixes = memory_fixes(cfg, lambda changed: train_plan(changed, shapes, capacity))
    case = Case(cfg, shapes, frozenset(loaded.settings), _families(cfg))
    result.findings += rules.find_all(case)
    result.findings += _missing_libraries(cfg)
    _check_config(result, cfg, "train", known={key for finding in result.findings for key in finding.keys})


def _missing_libraries(cfg: TrainConfig) -> Iterator[Finding]:
    for setting, library in missing_for(cfg):
        package = f"burnish[{library.extra}]" if library.extra else library.distribution
        text = f"{setting} requires {library.distribution}, which is not installed on this machine"
        yield Finding("not_installed", rules.NOTE, text, f"pip install '{package}' on the machine that runs it")


def _check_files(result: Examination, cfg: TrainConfig) -> int | None:
    """Check data and Python files; returns the number of training rows where it is known."""
    train = files.check_data(cfg.data, "data.train_files", cfg.data.train_files)
    val = files.check_data(cfg.data, "data.val_files", cfg.data.val_files)
    result.findings += [*train.findings, *val.findings]
    result.findings += [
        finding for file in files.user_files(cfg) if (finding := files.check_user_file(file)) is not None
    ]
    broken = any(finding.severity == rules.REFUSED for finding in train.findings)
    if train.first is not None and not broken and cfg.data.handler.name is None:
        finding = files.check_template(cfg, train.first)
        result.findings += [] if finding is None else [finding]
    return train.num_rows


def _train_shapes(result: Examination, cfg: TrainConfig, shape: str | None) -> Shapes | None:
    model = cfg.actor_rollout_ref.model
    path = shape or _model_name(result.translation, model.path)
    policy = _shape(result, "policy", path, POLICY, model.override_config)
    if policy is None:
        return None
    ref, critic, reward_model = cfg.actor_rollout_ref.ref.model, cfg.critic.model, cfg.reward_model
    same = (None, model.path)
    return Shapes(
        policy,
        None if ref.path in same else _shape(result, "reference", ref.path, REF, ref.override_config),
        None if critic.path in same else _shape(result, "critic", critic.path, CRITIC, critic.override_config),
        _shape(result, "reward model", reward_model.model.path, REWARD_MODEL) if reward_model.enable else None,
    )


def _model_name(translation: Translation, path: str | None) -> str | None:
    """The path; where it names no known model, the model entry of a MindSpeed RL YAML (`defaults: - model: NAME`)."""
    entries = [item.value for item in translation.items if item.theirs.endswith(".model")]
    known = [value for value in entries if isinstance(value, str) and known_name(value)]
    if path and (known_name(path) or (Path(path).expanduser() / "config.json").is_file()):
        return path
    return known[-1] if known else path


def _shape(result: Examination, role: str, path: str | None, key: str, overrides: dict | None = None) -> Shape | None:
    """The shape, recorded with its source; None and a finding where it is unknown."""
    if not path:
        return None
    try:
        result.shapes[role] = find_shape(path, overrides, key)
    except (UserError, ValueError, OSError) as error:
        text = error.text() if isinstance(error, UserError) else f"{key}={path}: {error}"
        result.findings.append(Finding("shape", rules.NOTE, f"no memory plan for the {role}: {text}", keys=(key,)))
        return None
    return result.shapes[role].shape


def _families(cfg: TrainConfig) -> dict[str, str]:
    """model_type of the policy and the reward model, where their config.json is local."""
    families = {}
    for role, path in (("policy", cfg.actor_rollout_ref.model.path), ("reward model", cfg.reward_model.model.path)):
        config = Path(path or "").expanduser() / "config.json"
        if path and config.is_file():
            families[role] = str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))
    return families


def _sft(result: Examination, loaded: Loaded, capacity: int, shape: str | None, check_files: bool) -> None:
    cfg: SftConfig = loaded.cfg
    data = files.DataCheck()
    if check_files:
        data = files.check_examples(cfg, "data.train_files", cfg.data.train_files)
    result.findings += data.findings
    result.arithmetic = sft_arithmetic(cfg, cfg.trainer.device == "cpu", data.num_rows)
    model = _shape(
        result, "model", shape or cfg.model.partial_pretrain, "model.partial_pretrain", cfg.model.override_config
    )
    if model is not None:
        result.plan = sft_plan(cfg, model, capacity)
    _check_config(result, cfg, "sft")


def _generate(result: Examination, loaded: Loaded, capacity: int, shape: str | None, check_files: bool) -> None:
    cfg: GenerateConfig = loaded.cfg
    result.arithmetic = {
        "prompts_at_once": cfg.data.batch_size,
        "responses_per_prompt": cfg.data.n_samples,
        "responses_at_once": cfg.data.batch_size * cfg.data.n_samples,
        "tokens_per_response_at_most": cfg.rollout.prompt_length + cfg.rollout.response_length,
    }
    model = _shape(result, "model", shape or cfg.model.path, "model.path", cfg.model.override_config)
    if model is not None:
        result.plan = generate_plan(cfg, model, capacity)
    _check_config(result, cfg, "generate")


def _check_config(result: Examination, cfg: Any, job: str, known: set[str] | None = None) -> None:
    """Add what the config's own rules refuse, except for keys that already have a finding."""
    errors, _ = check_rules(cfg, job)
    result.findings += [
        Finding("rule", rules.REFUSED, error.text(), keys=(error.key or "",))
        for error in errors
        if error.key not in (known or ())
    ]


def _deduplicated(findings: list[Finding]) -> list[Finding]:
    """Without refused settings that another finding explains in more detail."""
    refused = [finding for finding in findings if finding.severity == rules.REFUSED]
    explained = {key for finding in refused if finding.rule != REFUSED_SETTING for key in finding.keys}
    return [finding for finding in findings if finding.rule != REFUSED_SETTING or not explained & set(finding.keys)]


def _with_user_names(findings: list[Finding], translation: Translation) -> list[Finding]:
    """Append the user's own name of a key where it differs from ours; sorts by severity."""
    user_names = {ours: theirs for ours, theirs in source_names(translation.items).items() if ours != theirs}
    renamed = []
    for finding in findings:
        words = " ".join((finding.text, finding.type, *finding.keys)).replace("=", " ").replace(":", " ").split()
        names = sorted({name for key, name in user_names.items() if key in words})
        text = f"{finding.text} (you wrote {', '.join(names)})" if names else finding.text
        renamed.append(replace(finding, text=text))
    return sorted(renamed, key=lambda finding: rules.SEVERITIES.index(finding.severity))


EXAMINERS: dict[str, Callable[[Examination, Loaded, int, str | None, bool], None]] = {
    "train": _train,
    "sft": _sft,
    "generate": _generate,
}
