r"""Normalization of final answers from the Minerva paper (Lewkowycz et al. 2022, appendix D).

It differs from the published one where that makes one answer of two: what is removed between two digits leaves a space,
commas are dropped from thousands only, words are removed as words, `0.\overline{3}` stays, and "a=1, b=2" keeps both.
"""

from __future__ import annotations

import re

MAX_ANSWER_LENGTH = 300

# Words that accompany an answer and are removed.
_WORDS = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "sue", "points", "feet"),
    *("minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("children *tickets", "multiples"),
)
_NOISE = (
    *(rf"\text{{{text}}}" for text in ("s", ".", "\ns", "\n", "")),
    *(rf"\text{{}}^{power}" for power in (2, 3)),
    *(r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\ldots", r"\dots", r"\;", r",\!", "{,}", '"'),
)
_REMOVED_WORDS = re.compile(rf"(?<![a-zA-Z\\])(?:{'|'.join(_WORDS)})(?![a-zA-Z])")
# Longest first, so that \text{}^2 is removed as a whole and not only its \text{}.
_REMOVED = re.compile("|".join(re.escape(text) for text in sorted(_NOISE, key=len, reverse=True)))
_GROUPED = re.compile(r"(?<=[0-9])(?:,\\!|\{,\})(?=[0-9]{3}(?![0-9]))")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_SEVERAL = re.compile(r"=[^=]*(?:[,;]|\b(?:or|and)\b)")
_ARTICLES = re.compile(r"(?<![a-zA-Z])an? ")
_SPACES = re.compile(r"(?<=[0-9.]) (?=[0-9.])|( )")
_CONJUNCTION = re.compile(r",?\\text\{ ?and ?\}")
_INSIDE = re.compile(r"\\text\{ ?([^{} ]*) ?\}")
_BETWEEN_DOLLARS = re.compile(r"\$([^$]*)\$")
_WRAPPED = re.compile(r"\\(?:text|textbf|boxed)\{([^{}]*)\}|\\overline\{([^{}0-9]*)\}")
_SHORT_FRACTION = re.compile(r"frac([^{])(.)")
_SHORT_ROOT = re.compile(r"sqrt([^{])")


def normalize(answer: str) -> str:
    r"""The part after the last `=`, without units, articles, spaces and LaTeX formats; \frac12 becomes \frac{1}{2}."""
    text = _value(answer[:MAX_ANSWER_LENGTH])
    text = _ARTICLES.sub("", text).replace(".$", "$").replace(r"\$", " ")
    text = re.sub(r"(?:\\?\s)+", " ", text).replace("mbox", "text")
    text = _INSIDE.sub(r"\\text{\1}", text)
    text = _CONJUNCTION.sub(",", text).replace(r"\text{m}", r"\text{}")
    text = _REMOVED.sub(" ", _REMOVED_WORDS.sub(" ", _GROUPED.sub("", text)))
    if inside := _BETWEEN_DOLLARS.search(text):
        text = inside.group(1)
    text = _WRAPPED.sub(lambda match: f" {match[1] if match[2] is None else match[2]} ", text)
    text = _SPACES.sub(lambda match: "" if match[1] else " ", re.sub(" +", " ", text).strip())
    text = _SHORT_FRACTION.sub(r"frac{\1}{\2}", text)
    text = _SHORT_ROOT.sub(r"sqrt{\1}", text).replace("$", "").strip()
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text


def unit(answer: str) -> str:
    """The first unit of measurement that `normalize` removes from an answer; empty without one."""
    match = _REMOVED_WORDS.search(answer[:MAX_ANSWER_LENGTH])
    return match.group() if match else ""


def _value(answer: str) -> str:
    """The part after the last `=`, unless the parts are answers of their own (a=1, b=2)."""
    before, _, after = answer.rpartition("=")
    return answer if _SEVERAL.search(before) else after
