"""Examine a translated command without loading a model: arithmetic, memory plan, files and rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from burnish.config import Loaded, SftConfig, TrainConfig, load
from burnish.config.jobs import GenerateConfig
from burnish.config.rules import check_rules
from burnish.config.vision_names import unsupported_type
from burnish.config.vision_rules import check_vision, vllm_in_process
from burnish.dialects.report import PENDING, REFUSED, STATUSES, Translation, setting_text, source_names
from burnish.dialects.vision import family_problem
from burnish.doctor import files, rules
from burnish.doctor.arithmetic import max_sequence_length, sft_arithmetic, train_arithmetic
from burnish.doctor.engine import EXTERNAL_ENGINES, Concurrency
from burnish.doctor.estimate import Estimate, estimate_step
from burnish.doctor.fixes import MemoryFix, memory_fixes
from burnish.doctor.machine import missing_for
from burnish.doctor.memory import Plan, Shapes, generate_plan, sft_plan, train_plan
from burnish.doctor.rules import Case, Finding
from burnish.doctor.shapes import Shape, ShapeSource, config_file, find_shape, known_name
from burnish.doctor.turns import TurnBudget, waiting_conversations
from burnish.errors import ExitStatus, UserError, install_extra, install_package
from burnish.sizing import GIB
from burnish.untrusted import read_json_object

REFUSED_SETTING = "refused_setting"
ROLLOUT = "actor_rollout_ref.rollout"
LARGE_SHARE = 0.8  # of the memory for the engine
UNSUPPORTED = "pending"  # settings that are not supported yet
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
    trust: bool = False
    arithmetic: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, ShapeSource] = field(default_factory=dict)
    step_shapes: Shapes | None = None  # of a training step
    plan: Plan | None = None
    estimate: Estimate | None = None
    fixes: list[MemoryFix] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_status(self) -> ExitStatus:
        """3 where a setting is refused or a phase does not fit, 4 where a setting is not supported yet, else 0."""
        refused = any(f.severity == rules.REFUSED and f.rule != UNSUPPORTED for f in self.findings)
        if refused or (self.plan is not None and self.plan.too_big):
            return ExitStatus.REFUSED
        unsupported = any(finding.rule == UNSUPPORTED for finding in self.findings)
        return ExitStatus.UNSUPPORTED if unsupported else self.translation.run_status

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
            "estimate": None if self.estimate is None else self.estimate.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
        }


def examine(
    translation: Translation,
    *,
    capacity: int,
    shape: str | None = None,
    check_files: bool = True,
    device: str | None = None,
    trust: bool = False,
) -> Examination:
    """Examine a command for a GPU of `capacity` bytes.

    `shape` replaces the policy's model in the memory plan. Without `check_files`, only config.json files are opened.
    `device` is the GPU's name, for the estimate of a step's duration. `trust` allows code of the model's folder, and
    imports Python files without isolation.
    """
    result = Examination(translation, trust=trust)
    loaded = load(translation.overrides(), job=translation.job, check=False)
    result.findings += _translation_findings(translation)
    examiner = EXAMINERS.get(translation.job)
    if examiner is None:
        _check_config(result, loaded.cfg, translation.job)
    else:
        examiner(result, loaded, capacity, shape, check_files)
    _add_concurrency(result, loaded.cfg, device)
    result.findings += _memory_finding(result)
    result.findings = _with_user_names(_deduplicated(result.findings), translation)
    return result


def _translation_findings(translation: Translation) -> Iterator[Finding]:
    for item in translation.items:
        if item.status == REFUSED:
            text = f"{setting_text(item.theirs, item.value)}: {item.why}"
            yield Finding(REFUSED_SETTING, rules.REFUSED, text, keys=(item.ours or item.theirs,))
    pending = [setting_text(item.theirs, item.value) for item in translation.items if item.status == PENDING]
    if pending:
        text = f"`burnish run` does not start, because it does not support yet: {', '.join(pending)}"
        yield Finding(UNSUPPORTED, rules.REFUSED, text, "leave these settings out; burnish rehearse tries the rest")


def _add_concurrency(result: Examination, cfg: Any, device: str | None) -> None:
    """Sequences at once, the finding where they are few, and the estimate that follows."""
    plan = result.plan
    concurrency = None if plan is None else plan.concurrency
    if plan is None or concurrency is None:
        return
    result.arithmetic["sequences_at_once"] = concurrency.at_once
    finding = _concurrency_finding(concurrency, cfg)
    if finding is not None:
        result.findings.insert(0, finding)
    if isinstance(cfg, TrainConfig):
        numbers, finding = waiting_conversations(cfg, concurrency)
        result.arithmetic |= numbers
        result.findings += [] if finding is None else [finding]
    if isinstance(cfg, TrainConfig) and cfg.trainer.device != "cpu" and result.step_shapes is not None:
        at_once = concurrency.at_once
        result.estimate = estimate_step(
            cfg, result.step_shapes, concurrency.engine, at_once, device, recompute=plan.recompute
        )


def _concurrency_finding(concurrency: Concurrency, cfg: TrainConfig | GenerateConfig) -> Finding | None:
    engine = concurrency.engine
    if not concurrency.starts:
        text = f"the KV cache cannot hold one sequence of {engine.max_model_len:,} tokens: the engine does not start"
        return Finding("cache_too_small", rules.REFUSED, text, _larger_cache(cfg))
    if not concurrency.is_low:
        return None
    text = (
        f"the KV cache holds {concurrency.held:,} of {concurrency.wanted:,} sequences of"
        f" {engine.max_sequence_len:,} tokens: generation takes about"
        f" {concurrency.wanted / max(1, concurrency.held):.0f} times as many rounds"
    )
    return Finding("few_sequences", rules.WARNING, text, _larger_cache(cfg))


def _larger_cache(cfg: TrainConfig | GenerateConfig) -> str:
    """Settings that leave the KV cache more room."""
    is_training = isinstance(cfg, TrainConfig)
    rollout, section = (cfg.actor_rollout_ref.rollout, ROLLOUT) if is_training else (cfg.rollout, "rollout")
    settings = []
    if rollout.gpu_memory_utilization < LARGE_SHARE:
        settings.append(f"{section}.gpu_memory_utilization={LARGE_SHARE}")
    if is_training and rollout.name not in EXTERNAL_ENGINES:
        fsdp = "actor_rollout_ref.actor.fsdp_config"
        settings.append(f"{fsdp}.param_offload=true {fsdp}.optimizer_offload=true")
    length = "data.max_response_length" if is_training else f"{section}.response_length"
    settings.append(f"{length}={max(1, rollout.response_length // 2)}")
    return ", or ".join(settings)


def _memory_finding(result: Examination) -> Iterator[Finding]:
    plan = result.plan
    if plan is not None and plan.too_big:
        needs = ", ".join(f"{phase.name} {phase.bytes / GIB:.1f}" for phase in plan.too_big)
        text = f"out of memory: a GPU has {plan.capacity / GIB:.1f} GiB, but needs {needs}"
        yield Finding("out_of_memory", rules.REFUSED, text, result.fixes[0].typed if result.fixes else "")


def _train(result: Examination, loaded: Loaded, capacity: int, shape: str | None, check_files: bool) -> None:
    cfg: TrainConfig = loaded.cfg
    on_cpu = cfg.trainer.device == "cpu"
    num_rows = _check_files(result, cfg) if check_files else None
    budget = TurnBudget.of(cfg)
    result.arithmetic = train_arithmetic(cfg, on_cpu, num_rows) | ({} if budget is None else budget.numbers())
    shapes = result.step_shapes = _train_shapes(result, cfg, shape)
    if shapes is not None:
        cfg = _with_engines_for_pictures(result, cfg, shapes.policy)
        result.arithmetic |= {} if cfg is loaded.cfg else train_arithmetic(cfg, on_cpu, num_rows)
        result.plan = train_plan(cfg, shapes, capacity)
        result.fixes = memory_fixes(cfg, lambda changed: train_plan(changed, shapes, capacity))
        result.findings += _picture_keys(result, cfg, shapes.policy)
    case = Case(cfg, shapes, _user_keys(result.translation, loaded), _families(cfg))
    result.findings += rules.find_all(case)
    result.findings += _missing_libraries(cfg)
    _check_config(result, cfg, "train", known={key for finding in result.findings for key in finding.keys})


def _user_keys(translation: Translation, loaded: Loaded) -> frozenset[str]:
    """Keys that the user set, without those that carry defaults of the source system."""
    defaults = {item.ours for item in translation.items if not item.explicit}
    return frozenset(loaded.settings) - (defaults - set(source_names(translation.items)))


def _missing_libraries(cfg: TrainConfig) -> Iterator[Finding]:
    for setting, library in missing_for(cfg):
        install = install_extra(library.extra) if library.extra else install_package(library.distribution)
        text = f"{setting} requires {library.distribution}, which is not installed on this machine"
        yield Finding("not_installed", rules.NOTE, text, f"{install} on the machine that runs it")


def _check_files(result: Examination, cfg: TrainConfig) -> int | None:
    """Check data and Python files; returns the number of training rows where it is known."""
    train = files.check_data(cfg.data, "data.train_files", cfg.data.train_files, trust=result.trust)
    val = files.check_data(cfg.data, "data.val_files", cfg.data.val_files, trust=result.trust)
    result.findings += [*train.findings, *val.findings]
    result.findings += [
        finding
        for file in files.user_files(cfg)
        if (finding := files.check_user_file(file, trust=result.trust)) is not None
    ]
    broken = any(finding.severity == rules.REFUSED for finding in train.findings)
    if train.first is not None and not broken and cfg.data.handler.name is None:
        finding = files.check_template(cfg, train.first, trust=result.trust)
        result.findings += [] if finding is None else [finding]
    return train.num_rows


def _train_shapes(result: Examination, cfg: TrainConfig, shape: str | None) -> Shapes | None:
    model = cfg.actor_rollout_ref.model
    path = shape or _model_name(result.translation, model.hf_config_path or model.path)
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
    _check_media(result, key, path)
    return result.shapes[role].shape


def _check_media(result: Examination, key: str, path: str) -> None:
    """A finding where the local config.json is of a multimodal family that is not supported; names are checked when
    the command is translated."""
    config = config_file(path)
    family = None if config is None else unsupported_type(read_json_object(config))
    if family is not None and not any(item.ours == key for item in result.translation.blockers()):
        text = f"{key}={path}: {family_problem(family)}"
        result.findings.append(Finding("family", rules.REFUSED, text, keys=(key,)))


def _picture_keys(result: Examination, cfg: TrainConfig | SftConfig | GenerateConfig, shape: Shape) -> list[Finding]:
    """Keys about images that the model refuses. A model of an unsupported family has a finding already."""
    if any(finding.rule == "family" for finding in result.findings):
        return []
    model_type = None if shape.tower is None else shape.tower.family
    errors = check_vision(cfg, sees=shape.tower is not None, model_type=model_type)
    return [Finding("vision", rules.REFUSED, error.text(), keys=(error.key or "",)) for error in errors]


def _with_engines_for_pictures(result: Examination, cfg: TrainConfig, shape: Shape) -> TrainConfig:
    """The config that the run would use, with a finding where that is another."""
    if shape.tower is None:
        return cfg
    cfg, notices = vllm_in_process(cfg)
    for notice in notices:
        text = f"{notice}. Rows without images keep the server"
        result.findings.append(Finding("vllm_in_process", rules.NOTE, text, keys=(f"{ROLLOUT}.name",)))
    return cfg


def _families(cfg: TrainConfig) -> dict[str, str]:
    """model_type of the policy and the reward model, where their config.json is local."""
    families = {}
    for role, path in (("policy", cfg.actor_rollout_ref.model.path), ("reward model", cfg.reward_model.model.path)):
        config = Path(path or "").expanduser() / "config.json"
        if path and config.is_file():
            families[role] = str(read_json_object(config).get("model_type"))
    return families


def _sft(result: Examination, loaded: Loaded, capacity: int, shape: str | None, check_files: bool) -> None:
    cfg: SftConfig = loaded.cfg
    data = files.DataCheck()
    if check_files:
        data = files.check_examples(cfg, "data.train_files", cfg.data.train_files, trust=result.trust)
    result.findings += data.findings
    result.arithmetic = sft_arithmetic(cfg, cfg.trainer.device == "cpu", data.num_rows)
    model = _shape(
        result, "model", shape or cfg.model.partial_pretrain, "model.partial_pretrain", cfg.model.override_config
    )
    if model is not None:
        result.plan = sft_plan(cfg, model, capacity)
        result.findings += _picture_keys(result, cfg, model)
    _check_config(result, cfg, "sft")


def _generate(result: Examination, loaded: Loaded, capacity: int, shape: str | None, check_files: bool) -> None:
    cfg: GenerateConfig = loaded.cfg
    result.arithmetic = {
        "prompts_at_once": cfg.data.batch_size,
        "responses_per_prompt": cfg.data.n_samples,
        "responses_at_once": cfg.data.batch_size * cfg.data.n_samples,
        "tokens_per_response_at_most": max_sequence_length(cfg.rollout),
    }
    model = _shape(result, "model", shape or cfg.model.path, "model.path", cfg.model.override_config)
    if model is not None:
        result.plan = generate_plan(cfg, model, capacity)
        result.findings += _picture_keys(result, cfg, model)
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
