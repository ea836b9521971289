"""The model card of an exported model, written from its run folder: README.md and curves.png.

A card is public sooner or later: it has no secrets, and of local paths only the last name.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.config.tree import tree
from burnish.errors import UserError
from burnish.escape import escape
from burnish.log.curves import draw_curves
from burnish.log.file import METRICS, read_metrics
from burnish.log.validation_score import is_validation, validation_scores
from burnish.redact import redact_command, redact_text
from burnish.storage import FINISHED, STEP_PREFIX, is_remote, looks_local
from burnish.untrusted import load_yaml, read_json_object, read_text

CARD, CURVES = "README.md", "curves.png"
MAX_VALUE = 300  # characters of a setting
MAX_SETTINGS = 200
MAX_METRICS = 50
LANGUAGE_MODEL = "ForCausalLM"  # the end of the names of such classes
WRITTEN_BY = (
    "`burnish export` wrote this card from the files of the run; license, intended use and limitations are not in them."
)
FROM_PYTHON = "The training data was passed from Python, not as files."
VERSIONS = ("burnish", "python", "torch", "transformers", "vllm", "sglang", "ray")
# Keys whose values are folders, names and services of the machine, or that the card has elsewhere.
PRIVATE_KEYS = re.compile(r"(.*_dir|.*_root|.*\.cache|ray_init\..*|trainer\.(logger|nnodes|resume_.*|project_name))$")
MODEL_KEYS = {"train": "actor_rollout_ref.model.path", "sft": "model.partial_pretrain"}
ALGORITHM = (
    *(
        ("advantage estimator", "algorithm.adv_estimator"),
        ("policy loss", "actor_rollout_ref.actor.policy_loss.loss_mode"),
    ),
    *(("KL in the loss", "actor_rollout_ref.actor.use_kl_loss"), ("KL in the reward", "algorithm.use_kl_in_reward")),
    *(("learning rate", "actor_rollout_ref.actor.optim.lr"), ("responses per prompt", "actor_rollout_ref.rollout.n")),
    *(("learning rate", "optim.lr"), ("batch size", "data.train_batch_size")),
    *(("epochs", "trainer.total_epochs"), ("seed", "trainer.seed")),
)
_HUB_CACHE = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
_HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_FILE_NAME = re.compile(r".*\.(parquet|jsonl?|csv|arrow|py|ya?ml|txt|safetensors|pt|bin)(:.*)?", re.IGNORECASE)
# In any text: /a/b, ~/a, ./a, ../a, C:\a, and file systems (s3://bucket/a). Not https://, and not a fraction.
_PATHS = re.compile(
    r"(?<![\w:/.~\\])(?:(?!https?://)[a-z][a-z0-9+.-]*://|[A-Za-z]:\\|~[\w.-]*/|\.{1,2}/|/)[^\s'\"`,;:)\]}=|<>]*"
)


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says about a run. Broken or missing files are empty."""

    folder: Path
    step: int | None  # of the exported checkpoint
    job: str = "train"
    settings: dict[str, Any] = field(default_factory=dict)  # by key
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)


def write_card(role_folder: Path, out: Path, name: str | None = None) -> None:
    """Write the card, and curves.png if there are curves, for the model that was exported from `role_folder`.

    `name` is that of the model, by default the folder's.
    """
    record = read_run(role_folder)
    curves = False
    if record.metrics:
        curves = bool(draw_curves(record.folder / METRICS, out / CURVES))
    text = card(record, name or out.absolute().name, architecture(out), curves=curves)
    (out / CARD).write_text(text, encoding="utf-8", errors="backslashreplace")


def read_run(role_folder: Path) -> RunRecord:
    """The run of a checkpoint's role folder (run/global_step_N/actor), or of a finished run's model (run/model)."""
    checkpoint = role_folder.absolute().parent
    number = checkpoint.name.removeprefix(STEP_PREFIX)
    if checkpoint.name.startswith(STEP_PREFIX) and number.isdecimal():
        folder, step = checkpoint.parent, int(number)
    else:
        folder, step = checkpoint, _object(checkpoint / FINISHED).get("step")
        step = step if isinstance(step, int) else None
    config = _config(folder / "config.yaml")
    job = "train" if "algorithm" in config or not config else "sft"
    settings = {key: value for key in tree(job).leaves if (value := _value(config, key)) is not None}
    metrics = {number: row for number, row in _metrics(folder / METRICS).items() if step is None or number <= step}
    versions = {name: str(value)[:50] for name, value in _object(folder / "environment.json").items()}
    return RunRecord(folder, step, job, settings, _command(folder / "command.txt"), versions, metrics)


def architecture(model: Path) -> str:
    """The class of an exported model, as its config.json says; "" for an adapter."""
    names = _object(model / "config.json").get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def card(record: RunRecord, title: str, architecture: str, *, curves: bool) -> str:
    """The text of the card."""
    base = record.settings.get(MODEL_KEYS[record.job])
    name = public_name(str(base)) if base else "an unnamed model"
    method = "reinforcement learning" if record.job == "train" else "supervised fine-tuning"
    step = "" if record.step is None else f", step {record.step}"
    sections = [
        _metadata(record, is_chat=architecture.endswith(LANGUAGE_MODEL)),
        f"# {_plain(title)}",
        f"{_code(name)}, trained by {method} with Burnish{step}. {WRITTEN_BY}",
        *_section("Use", _usage(title) if architecture.endswith(LANGUAGE_MODEL) else ""),
        *_section("Training data", _data(record)),
        *_section("Algorithm", _table(("", "value"), _algorithm(record))),
        *_section("Evaluation", _evaluation(record)),
        *([f"## Curves\n\n![Metrics by step]({CURVES})"] if curves else []),
        *_section("Settings that differ from the defaults", _table(("key", "value"), changed_settings(record))),
        *_section("Command", f"```bash\n{record.command}\n```" if record.command else ""),
        *_section("Versions", _table(("", "version"), _versions(record))),
    ]
    return scrub("\n\n".join(sections)) + "\n"


def scrub(text: str) -> str:
    """Text without secrets, and with the last name of local paths only."""
    return _PATHS.sub(lambda match: _last_name(match[0]), redact_text(text))


def public_name(path: str) -> str:
    """A hub name as it is, also from the hub's cache; of a local or remote path its last name."""
    cached = _HUB_CACHE.search(path)
    if cached is not None:
        return f"{cached[1]}/{cached[2]}"
    is_path = looks_local(path) or is_remote(path) or _FILE_NAME.fullmatch(path) is not None
    return _last_name(path) if is_path else path


def changed_settings(record: RunRecord) -> Iterator[tuple[str, str]]:
    """(key, value) of the settings that differ from their defaults, as a card may show them."""
    leaves = tree(record.job).leaves
    changed = 0
    for key, value in record.settings.items():
        default = leaves[key].default
        if PRIVATE_KEYS.match(key) or value in (default, [], {}) or str(default).startswith("${"):
            continue
        if isinstance(default, list | tuple) and value == list(default):
            continue
        changed += 1
        if changed <= MAX_SETTINGS:
            yield _code(key), _code(_shown(value))


def _usage(name: str) -> str:
    code = (
        "from transformers import pipeline\n\n"
        f"generate = pipeline('text-generation', model={_plain(name)!r})\n"
        "print(generate([{'role': 'user', 'content': '...'}])[0]['generated_text'][-1]['content'])"
    )
    return f"```python\n{code}\n```"


def _plain(text: str) -> str:
    """A name without markup."""
    return re.sub(r"[^\w./ -]", "_", " ".join(text.split()))[:MAX_VALUE]


def _metadata(record: RunRecord, *, is_chat: bool) -> str:
    """The YAML block that the hub reads."""
    from huggingface_hub import ModelCardData

    base = public_name(str(record.settings.get(MODEL_KEYS[record.job]) or ""))
    algorithm = str(record.settings.get("algorithm.adv_estimator") or "")
    method = ["reinforcement-learning"] if record.job == "train" else ["sft"]
    tags = ["burnish", *method, *([algorithm] if re.fullmatch(r"[\w.+-]{1,40}", algorithm) else [])]
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation" if is_chat else None,
        tags=tags,
        base_model=base if _HUB_NAME.fullmatch(base) else None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _data(record: RunRecord) -> str:
    rows = []
    for label, key in (("training", "data.train_files"), ("validation", "data.val_files")):
        value = record.settings.get(key)
        names = [public_name(str(entry)) for entry in (value if isinstance(value, list) else [value]) if entry]
        if names:
            rows.append((label, _code(_shown(names))))
    reward = record.settings.get("custom_reward_function.path")
    if isinstance(reward, str):
        rows.append(("reward function", _code(public_name(reward))))
    if not any(key == "training" for key, _ in rows) and record.settings:
        return "\n\n".join(filter(None, (FROM_PYTHON, _table(("", "files"), rows))))
    return _table(("", "files"), rows)


def _algorithm(record: RunRecord) -> Iterator[tuple[str, str]]:
    for label, key in ALGORITHM:
        value = record.settings.get(key)
        if value is not None:
            yield label, _code(_shown(value))
    if record.step is not None:
        yield "training steps", str(record.step)
    tokens = [row["perf/total_num_tokens"] for row in record.metrics.values() if "perf/total_num_tokens" in row]
    if tokens and math.isfinite(sum(tokens)):
        yield "tokens of prompts and responses", f"{sum(tokens):,.0f}"


def _evaluation(record: RunRecord) -> str:
    steps = {step: row for step, row in record.metrics.items() if any(map(is_validation, row))}
    scores = validation_scores(steps)
    if scores is None:
        return ""
    names = sorted({name for row in steps.values() for name in row if is_validation(name)})[:MAX_METRICS]
    best, last = steps[scores.best_step], steps[scores.last_step]
    header = ("metric", f"best (step {scores.best_step})", f"last (step {scores.last_step})")
    rows = [(_code(name), _number(best.get(name)), _number(last.get(name))) for name in names]
    return f"Validation during training: {scores}.\n\n{_table(header, rows)}"


def _versions(record: RunRecord) -> Iterator[tuple[str, str]]:
    yield from ((name, _code(record.versions[name])) for name in VERSIONS if name in record.versions)
    if "device" in record.versions:
        yield "device", _code(record.versions["device"])


def _section(title: str, text: str) -> list[str]:
    return [f"## {title}\n\n{text}"] if text else []


def _table(header: tuple[str, ...], rows: Any) -> str:
    lines = [" | ".join(row) for row in rows]
    if not lines:
        return ""
    return "\n".join(f"| {line} |" for line in (" | ".join(header), " | ".join("---" for _ in header), *lines))


def _code(text: str) -> str:
    """Text of others as a code span in a table's cell: one line, no markup."""
    line = escape(" ".join(text.split()))[:MAX_VALUE].replace("`", "'").replace("|", "\\|")
    return f"`{line or ' '}`"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return public_name(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if math.isfinite(value) else str(value)


def _last_name(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]+", path) if part not in ("", ".", "..", "~") and not part.endswith(":")]
    return parts[-1] if parts and (len(parts) > 1 or not path.startswith("~")) else ""


def _command(path: Path) -> str:
    """The last start of the run, one setting per line, without paths."""
    try:
        last = read_text(path).rstrip("\n").rpartition("\n")[2]
        words = shlex.split(last.partition(" ")[2])
    except (OSError, UserError, ValueError):
        return ""
    words = [_public_word(word) for word in redact_command(words)]
    if len(words) < 2 or words[0].startswith("-"):  # started from Python
        return ""
    return escape(" \\\n    ".join(word if word == "--" else shlex.quote(word) for word in words)).replace("```", "'''")


def _public_word(word: str) -> str:
    name, equals, value = word.partition("=")
    if not equals:
        return public_name(word)
    listed = re.fullmatch(r"\[(.*)\]", value)
    if listed is not None:
        return f"{name}=[{','.join(public_name(entry.strip()) for entry in listed[1].split(','))}]"
    return f"{name}={public_name(value)}"


def _config(path: Path) -> dict[str, Any]:
    try:
        value = load_yaml(read_text(path), path.name)
    except (OSError, UserError):
        return {}
    return value if isinstance(value, dict) else {}


def _value(config: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return None
        config = config[part]
    return config


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except (OSError, UserError):
        return {}


def _metrics(path: Path) -> dict[int, dict[str, float]]:
    try:
        return read_metrics(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
