"""A title: one line that a person reads in a terminal, a page or a message."""

from __future__ import annotations

from .storable import storable_text

#: Characters of a title.
MAX_TITLE = 200


def one_line(text: str) -> str:
    """The first words of a text as a terminal can show them: no line ends, no control characters."""
    start = text.lstrip()[: MAX_TITLE * 4]
    line = " ".join(start.split())
    if not line.isprintable():
        shown = (character if character.isprintable() else " " for character in storable_text(line))
        line = " ".join("".join(shown).split())
    return line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1] + "…"


def sentence(*words: str, about: str = "") -> str:
    """The words that there are, and what they are about after a colon; not yet one line."""
    said = " ".join(word for word in words if word)
    return ": ".join(part for part in (said, about) if part)


def spoken(term: str) -> str:
    """A provider's own term as words: ``trial_will_end`` is ``trial will end``."""
    return term.replace("_", " ").replace(".", " ")
