r"""Normalization of final answers from the Minerva paper (Lewkowycz et al. 2022, appendix D)."""

from __future__ import annotations

import re

MAX_ANSWER_LENGTH = 300

# Words that accompany an answer and are removed.
_WORDS = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "sue", "points", "feet"),
    *("minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples"),
)
_NOISE = (
    *(rf"\text{{{text}}}" for text in ("s", ".", "\ns", "\n", "")),
    *(rf"\text{{}}^{power}" for power in (2, 3)),
    *(r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\ldots", r"\dots", r"\;", r",\!", "{,}", '"'),
)
# Longest first, so that \text{}^2 is removed as a whole and not only its \text{}.
_REMOVED = re.compile("|".join(re.escape(text) for text in sorted((*_WORDS, *_NOISE), key=len, reverse=True)))
_ARTICLES = re.compile(r"an? ")
_SPACES = re.compile(r"\\?\s")
_CONJUNCTION = re.compile(r",?\\text\{and\}")
_BETWEEN_DOLLARS = re.compile(r"\$([^$]*)\$")
_WRAPPED = re.compile(r"\\(?:text|textbf|overline|boxed)\{([^{}]*)\}")
_SHORT_FRACTION = re.compile(r"frac([^{])(.)")
_SHORT_ROOT = re.compile(r"sqrt([^{])")


def normalize(answer: str) -> str:
    r"""The part after the last `=`, without units, articles, spaces and LaTeX formats; \frac12 becomes \frac{1}{2}."""
    text = answer[:MAX_ANSWER_LENGTH].rpartition("=")[2]
    text = _ARTICLES.sub("", text).replace(".$", "$").replace(r"\$", "")
    text = _SPACES.sub("", text).replace("mbox", "text")
    text = _CONJUNCTION.sub(",", text).replace(r"\text{m}", r"\text{}")
    text = _REMOVED.sub("", text)
    if inside := _BETWEEN_DOLLARS.search(text):
        text = inside.group(1)
    text = _WRAPPED.sub(r"\1", text)
    text = _SHORT_FRACTION.sub(r"frac{\1}{\2}", text)
    text = _SHORT_ROOT.sub(r"sqrt{\1}", text).replace("$", "")
    bare = text.replace(",", "")
    return bare if bare.isdigit() else text.strip()
