"""A profile: the time that tasks spent in each call stack. Bounded; can be merged and rendered as text. Pure.
Invariants, checked by property tests: merging is associative and commutative unless stacks are folded, and preserves
total time and samples. At most `MAX_STACKS` are kept. The lightest stacks are folded into their callers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Stack = tuple[str, ...]  # labels of frames, outermost first

MAX_STACKS = 500
MAX_DEPTH = 64  # frames per stack; the middle of deeper stacks is dropped
MAX_LABEL = 160
LEFT_OUT = "..."
_OUTER = MAX_DEPTH * 3 // 4


class HotFrame(NamedTuple):
    """A frame. own_us: microseconds as the innermost frame. total_us: including its callees."""

    frame: str
    own_us: int
    total_us: int


@dataclass(slots=True, eq=False)
class StackProfile:
    """own_us: microseconds per complete stack."""

    samples: int = 0
    own_us: dict[Stack, int] = field(default_factory=dict)

    @property
    def total_us(self) -> int:
        return sum(self.own_us.values())

    def add(self, stack: Stack, microseconds: int, samples: int = 1) -> None:
        self.own_us[stack] = self.own_us.get(stack, 0) + microseconds
        self.samples += samples
        if len(self.own_us) > MAX_STACKS:
            self._fold()

    def merge(self, other: StackProfile) -> None:
        own = self.own_us
        for stack, microseconds in other.own_us.items():
            own[stack] = own.get(stack, 0) + microseconds
        self.samples += other.samples
        if len(own) > MAX_STACKS:
            self._fold()

    def since(self, earlier: StackProfile) -> StackProfile:
        found = StackProfile(max(0, self.samples - earlier.samples))
        for stack, microseconds in self.own_us.items():
            if (more := microseconds - earlier.own_us.get(stack, 0)) > 0:
                found.own_us[stack] = more
        return found

    def _fold(self) -> None:
        """Fold the lightest stacks into their callers until a quarter of MAX_STACKS is free."""
        own = self.own_us
        while len(own) > MAX_STACKS * 3 // 4:
            excess = len(own) - MAX_STACKS * 3 // 4
            for stack in sorted((each for each in own if each), key=lambda each: (own[each], -len(each), each))[
                :excess
            ]:
                microseconds = own.pop(stack)
                own[stack[:-1]] = own.get(stack[:-1], 0) + microseconds

    def hottest(self, most: int) -> list[HotFrame]:
        own: dict[str, int] = {}
        total: dict[str, int] = {}
        for stack, microseconds in self.own_us.items():
            if stack:
                own[stack[-1]] = own.get(stack[-1], 0) + microseconds
            for frame in set(stack):
                total[frame] = total.get(frame, 0) + microseconds
        frames = sorted(total, key=lambda frame: (-own.get(frame, 0), -total[frame], frame))
        return [HotFrame(frame, own.get(frame, 0), total[frame]) for frame in frames[:most]]

    def table(self, name: str, most: int = 30) -> str:
        if not self.samples:
            return f"{name or 'no name'}: no samples"
        whole = max(1, self.total_us)
        head = f"{name or 'no name'}: {self.samples:,} samples, {whole / 1e6:.2f} s of the main thread"
        lines = [
            f"{100 * each.own_us / whole:6.1f} %{100 * each.total_us / whole:7.1f} %  {each.frame}"
            for each in self.hottest(most)
        ]
        return "\n".join([head, f"{'own':>8}{'with calls':>11}  frame", *lines])

    def collapsed(self) -> str:
        """Return one line per stack for flamegraph.pl and speedscope: frames separated by semicolons, then
        microseconds."""
        return "".join(f"{';'.join(stack)} {us}\n" for stack, us in sorted(self.own_us.items()) if stack)

    def document(self) -> dict[str, Any]:
        frames: dict[str, int] = {}
        stacks = [
            [microseconds, *(frames.setdefault(frame, len(frames)) for frame in stack)]
            for stack, microseconds in self.own_us.items()
        ]
        return {"samples": self.samples, "frames": list(frames), "stacks": stacks}


def read_document(document: Mapping[str, Any]) -> StackProfile:
    """Parse a document. Raises ValueError if invalid, because the sender runs user code."""
    samples, frames, stacks = (document.get(name) for name in ("samples", "frames", "stacks"))
    if not (_is_count(samples) and isinstance(frames, list) and isinstance(stacks, list)):
        raise ValueError("a profile lacks samples, frames, or stacks")
    if len(stacks) > MAX_STACKS or not all(isinstance(each, str) for each in frames):
        raise ValueError("a profile has too many stacks, or frames that are not strings")
    labels = [label(each) for each in frames]
    assert isinstance(samples, int)
    found = StackProfile(samples)
    for row in stacks:
        if not (isinstance(row, list) and 0 < len(row) <= MAX_DEPTH + 1 and all(map(_is_count, row))):
            raise ValueError("a stack of a profile is not a list of numbers")
        microseconds, *numbers = row
        if numbers and max(numbers) >= len(labels):
            raise ValueError("a stack of a profile names a missing frame")
        stack = tuple(labels[number] for number in numbers)
        found.own_us[stack] = found.own_us.get(stack, 0) + microseconds
    return found


def read_json(text: bytes) -> tuple[StackProfile, dict[str, Any]]:
    """Return the profile of a JSON document, and the document. Raises ValueError."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("a profile is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("a profile is not a JSON object")
    return read_document(document), document


def label(text: str) -> str:
    if len(text) > MAX_LABEL:
        text = f"{text[: MAX_LABEL // 2 - 2]}...{text[-(MAX_LABEL // 2 - 1) :]}"
    return "".join(each if each.isprintable() and each != ";" else "?" for each in text)


def within_depth(frames: Iterable[str]) -> Stack:
    """Return a stack of at most MAX_DEPTH frames: the outermost and innermost of the given frames."""
    stack = tuple(frames)
    if len(stack) <= MAX_DEPTH:
        return stack
    return (*stack[:_OUTER], LEFT_OUT, *stack[_OUTER + 1 - MAX_DEPTH :])


def short_file(path: str) -> str:
    return "/".join(path.rsplit("/", 2)[-2:])


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
