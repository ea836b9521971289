"""Writes docs/keys.md and docs/keys.zh.md: `python -m burnish.config.keys_doc [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from burnish.config.explain import Explained, describe_all
from burnish.config.fields import SAME
from burnish.config.jobs import JOBS
from burnish.config.values import written_as

_HEAD = {
    "en": (
        "# Keys\n\nMade by `python -m burnish.config.keys_doc` from the config classes; do not edit.\n"
        "`burnish explain KEY` says the same in the terminal. A pending key is refused when it is set; an inert key"
        " has no effect here, and the run says so.\n"
    ),
    "zh": (
        "# 配置键\n\n由 `python -m burnish.config.keys_doc` 从配置类生成，请勿手改。\n"
        "`burnish explain --lang zh KEY` 在终端给出同样内容。状态为 pending 的键若被设置会被拒绝；inert 的键"
        "在此处无效，运行开始时会说明。\n"
    ),
}
_COLUMNS = {
    "en": ("key", "type", "default", "status", "meaning"),
    "zh": ("键", "类型", "默认值", "状态", "含义"),
}
_WORDS = {
    "en": {"allowed": "Allowed", "verl": "verl's default", "aliases": "Also", "later": "Later"},
    "zh": {"allowed": "可选", "verl": "verl 默认值", "aliases": "别名", "later": "尚未实现"},
}


def render(lang: str) -> str:
    """The whole page."""
    parts = [_HEAD[lang]]
    for job in JOBS:
        parts.append(f"\n## burnish {job}\n\n| {' | '.join(_COLUMNS[lang])} |\n|{'---|' * 5}\n")
        parts += [_row(row, lang) for row in describe_all(lang, job)]
    return "".join(parts)


def _row(row: Explained, lang: str) -> str:
    default = row.follows if row.follows is not None else written_as(row.default)
    kind = f"{row.type} {row.bounds}" if row.bounds else row.type
    status = row.status if not row.why or row.job != "train" else f"{row.status}: {row.why}"
    cells = (f"`{row.key}`", kind, f"`{default}`" if default else "", status, _meaning(row, lang))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _meaning(row: Explained, lang: str) -> str:
    words = _WORDS[lang]
    text = row.doc
    if row.allowed:
        text += f" {words['allowed']}: {', '.join(f'`{name}`' for name in row.allowed)}."
    if row.pending_values:
        text += f" {words['later']}: {', '.join(f'`{name}`' for name in row.pending_values)}."
    if row.verl_default is not SAME:
        text += f" {words['verl']}: `{written_as(row.verl_default)}`."
    if row.aliases:
        text += f" {words['aliases']}: {', '.join(f'`{name}`' for name in row.aliases)}."
    return text


def write(folder: Path) -> list[Path]:
    """Write both pages."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {folder / "keys.md": "en", folder / "keys.zh.md": "zh"}
    for path, lang in pages.items():
        path.write_text(render(lang), encoding="utf-8")
    return list(pages)


if __name__ == "__main__":
    for page in write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")):
        sys.stdout.write(f"{page}\n")
