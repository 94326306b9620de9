"""Ranges of bytes of an object."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scaler.testing.aws.faults import Refusal

RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of an object: from `begin` up to before `end`."""

    begin: int
    end: int
    size: int

    def text(self) -> str:
        """Return it as a Content-Range has it."""
        return f"bytes {self.begin}-{self.end - 1}/{self.size}"


def span_of(wanted: str, size: int) -> Span | None:
    """Read a Range header. None: there is none that the service honours, and all is sent. Raises Refusal."""
    match = RANGE.fullmatch(wanted)
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    begin = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if begin >= end:
        raise Refusal("InvalidRange", "The requested range is not satisfiable", 416)
    return Span(begin, end, size)
