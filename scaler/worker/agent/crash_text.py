"""What the interpreter wrote while a signal ended it: where in the user's code, and the user's frames. Pure."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from typing import NamedTuple

_FRAME = re.compile(r'^ +File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_SIGNAL = re.compile(r"killed by signal \d+ \((SIG\w+)\)")
_OWN = str(Path(__file__).parents[2])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class _Frame(NamedTuple):
    file: str
    line: str
    name: str

    @property
    def is_own(self) -> bool:
        return self.file.startswith((_OWN, "<frozen runpy>"))

    @property
    def is_library(self) -> bool:
        return self.file.startswith((*_LIBRARIES, "<frozen "))


def with_crash(how: str, crash: str) -> str:
    """Return how a processor ended, with the place first and the user's frames below. crash: faulthandler's text."""
    frames = [frame for match in _FRAME.finditer(crash) if not (frame := _Frame(*match.groups())).is_own]
    if not frames:
        return f"{how}\n{crash}" if crash else how
    place = next((frame for frame in frames if not frame.is_library), frames[0])
    signal = _SIGNAL.sub(r"\1", how)
    shown = [f'  File "{frame.file}", line {frame.line} in {frame.name}' for frame in frames]
    return "\n".join([f"{signal} in {place.name} ({Path(place.file).name}:{place.line})", *shown])
