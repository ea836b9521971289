"""The pages for people: links lead somewhere, commands are understood, errors read as printed, languages in step."""

from __future__ import annotations

import re

import pytest

from burnish.cli.main import COMMANDS, command_parser
from burnish.config.aliases import find_alias
from burnish.config.jobs import JOBS
from burnish.config.tree import tree
from burnish.errors import UserError

from .source import ROOT, blocks, commands, links, pages, python_trainings, resolve

README, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
SHELL = {"bash", "sh", "console"}
HAND_WRITTEN = [page for page in pages() if not page.name.startswith("keys")]
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def name(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_lead_somewhere(page):
    inside = [link.partition("#")[0] for link in links(page) if not re.match(r"https?://|mailto:|#", link)]
    assert [link for link in inside if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_commands_are_understood(page):
    for block in blocks(page):
        if block.language not in SHELL:
            continue
        text = block.text
        if block.language == "console":  # what follows a prompt is output
            text = "\n".join(prompted(text))
        for words in commands(text):
            check_command(words, f"{name(page)}:{block.line}")


def prompted(text):
    """The lines behind `$ `, with those that continue them."""
    goes_on = False
    for line in text.splitlines():
        if goes_on or line.startswith("$ "):
            yield line
            goes_on = line.endswith("\\")


def check_command(words, where):
    if words[0] == "make":
        assert set(words[1:]) <= set(TARGETS), f"{where}: the Makefile has no {words[1:]}"
    elif words[0] == "burnish":
        assert words[1] in COMMANDS, f"{where}: there is no `burnish {words[1]}`"
        words = words[: words.index(">")] if ">" in words else words
        assert command_parser(words[1]).parse_args(words[2:]), where
        if words[1] == "train" and "..." not in words and where not in SHOWN_TO_FAIL:
            resolve(words)
        if words[1] == "explain":
            for key in [word for word in words[2:] if "." in word]:
                assert known(key), f"{where}: no key {key}"


def known(key):
    ends = [leaf for leaf in tree().leaves if leaf.endswith(f".{key}")]
    in_a_tree = any(tree(job).find(key) or find_alias(key, job) for job in JOBS)
    return in_a_tree or key in tree().sections or len(ends) == 1


def failing_blocks():
    """Blocks that show a `burnish train` which is refused, and what is then printed."""
    for page in HAND_WRITTEN:
        for block in blocks(page):
            shown = [line for line in block.text.splitlines() if line not in list(prompted(block.text))]
            trainings = [
                words for words in commands("\n".join(prompted(block.text))) if words[:2] == ["burnish", "train"]
            ]
            if block.language == "console" and shown and len(trainings) == 1:
                yield pytest.param(trainings[0], "\n".join(shown), id=f"{name(page)}:{block.line}")


FAILING = list(failing_blocks())
SHOWN_TO_FAIL = {case.id for case in FAILING}


def test_the_readme_shows_an_error():
    assert any(case.id.startswith("README.md") for case in FAILING)


@pytest.mark.parametrize(("words", "shown"), FAILING)
def test_errors_are_shown_as_they_are_printed(words, shown):
    with pytest.raises(UserError) as caught:
        resolve(words)
    assert plain(shown) == plain(caught.value.text())


def plain(text):
    """However it is wrapped."""
    return " ".join(text.split())


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_python_blocks_compile_and_ask_for_what_there_is(page):
    for block in blocks(page):
        if block.language == "python":
            assert compile(block.text, f"{name(page)}:{block.line}", "exec")
            for words in python_trainings(block.text):
                assert resolve(words, given=["data.train_files", "data.val_files"]).cfg


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_settings_in_the_text_are_keys(page):
    """`section.key=value` in running text, and in blocks of nothing but overrides, names a key that exists."""
    text = re.sub(r"^```console.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    tops = {key.partition(".")[0] for key in tree().sections} - {"rollout"}
    written = re.findall(r"[`\s]\+{0,2}([a-z_]+(?:\.[a-z_\-]+)+)=", text)
    unknown = [key for key in written if key.partition(".")[0] in tops and not known(key)]
    assert unknown == []


def test_the_readme_has_the_two_commands():
    for page in (README, CHINESE):
        shown = [words for block in blocks(page) if block.language == "bash" for words in commands(block.text)]
        assert ["make", "demo"] in shown
        assert ["make", "test"] in shown


def test_ci_runs_what_the_readme_says():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert ["make", "test"] in commands(ci)
    assert {"demo", "test", "test-all", "lint", "docs", "clean"} <= set(TARGETS)


def test_both_readmes_are_in_step():
    english, chinese = (outline(page) for page in (README, CHINESE))
    assert english == chinese


def outline(page):
    """Levels of headings, blocks of commands and code as they are, links, numbers of table rows."""
    text = page.read_text(encoding="utf-8")
    headings = [len(mark) for mark in re.findall(r"^(#+) ", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)]
    code = [(block.language, bare(block)) for block in blocks(page)]
    to = [link for link in links(page) if not link.startswith("README") and not link.startswith("docs/keys")]
    return headings, code, to, len(re.findall(r"^\|", text, re.M))


def bare(block):
    """Comments are translated, and the words of a picture; commands are not."""
    if block.language in {"mermaid", "", "text"}:
        return len(block.text.splitlines())
    return [re.sub(r"\s*#.*", "", line) for line in block.text.splitlines()]
