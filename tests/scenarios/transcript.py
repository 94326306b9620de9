"""Transcripts: text files of commands and their output, compared or rewritten.

A file is a sequence of blocks: comment lines (`# ...`), one command line, a line `----`, and the answer up to the next
empty line. Comments and order are kept when a file is rewritten.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

SEPARATOR = "----"


@dataclass
class Command:
    """A command line: its name, its words, and its options (`key=value`; a value may contain further `=`)."""

    line: str
    name: str = field(init=False)
    words: list[str] = field(init=False, default_factory=list)
    options: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.name, *rest = shlex.split(self.line)
        for word in rest:
            key, separator, value = word.partition("=")
            if separator:
                self.options[key] = value
            else:
                self.words.append(word)

    def option(self, key: str, default: str = "") -> str:
        return self.options.pop(key, default)

    def items(self, key: str) -> list[str]:
        """Return an option's comma-separated items."""
        return [item for item in self.option(key).split(",") if item]


@dataclass
class Block:
    comments: list[str]
    command: Command
    answer: list[str]

    def __str__(self) -> str:
        return "\n".join([*self.comments, self.command.line, SEPARATOR, *self.answer]) + "\n"


def read(text: str) -> Iterator[Block]:
    """Yield the blocks of a transcript. Raises ValueError with the invalid line."""
    comments: list[str] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.startswith("#"):
            if line.strip() or comments:
                comments.append(line)
            continue
        _, separator = next(lines, (0, ""))
        if separator != SEPARATOR:
            raise ValueError(f"line {number}: {line!r} is not followed by {SEPARATOR}")
        answer = []
        for _, said in lines:
            if not said.strip():
                break
            answer.append(said)
        yield Block(comments, Command(line), answer)
        comments = []
