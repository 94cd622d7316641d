"""Text with host variables in it: what a description may leave open until `docker compose up`.

A word is plain text, a variable with its default, or a sequence of both. Plain text is never expanded: a `$` in it stays a `$`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PATTERN = re.compile(r"\$\{([A-Z][A-Z0-9_]*):-([A-Za-z0-9._/@:-]*)\}")


@dataclass(frozen=True)
class Variable:
    """A host variable, and the text that stands for it where it is unset or empty."""

    name: str
    default: str


Word = str | Variable | tuple[str | Variable, ...]


def parse(text: str) -> Word:
    """`${NAME:-default}` as a whole is a variable; anything else is plain text."""
    match = _PATTERN.fullmatch(text)
    return Variable(match[1], match[2]) if match else text


def parts(word: Word) -> tuple[str | Variable, ...]:
    """The pieces of a word, in order."""
    return word if isinstance(word, tuple) else (word,)


def join(*words: Word) -> Word:
    """One word of several, without a space between; plain text if all of them are plain."""
    flat = tuple(part for word in words for part in parts(word))
    return "".join(str(part) for part in flat) if all(isinstance(part, str) for part in flat) else flat


def literal(word: Word) -> str:
    """The text of a word where no host variable is set."""
    return "".join(part if isinstance(part, str) else part.default for part in parts(word))
