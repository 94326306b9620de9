"""Texts about failed attempts, with equal ones merged and the last cause first. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scaler.grammar import counted

PROCESSOR_DIED = "the processor that ran the task died: "
_ATTEMPT = re.compile(r"attempt (\d+)((?: on |, alone).*?)?: (.*)", re.DOTALL)


def together(texts: Sequence[str]) -> str:
    """Return the merged errors of attempts, given as `attempt 2 on WORKER: WHAT`."""
    return "\n".join(f"{', '.join(map(_named, places))}: {what}" for what, places in _grouped(texts).items())


def at_limit(texts: Sequence[str], attempts: int, option: str, limit: int) -> str:
    """Return why a task is not retried: the last cause, the number of attempts, and all errors if they differ."""
    groups = _grouped(texts)
    last = _ATTEMPT.fullmatch(texts[-1])
    cause, _, details = (texts[-1] if last is None else last[3]).partition("\n")
    where = ""
    rest = together(texts)
    if last is not None and len(groups) == 1 and len(places := next(iter(groups.values()))) == 1:
        where, rest = places[0][0], details
    doubt = "; it may have run" if limit == 0 else ""
    first = f"{cause.removeprefix(PROCESSOR_DIED)}, {counted(attempts, 'attempt')}{where}, {option}={limit}{doubt}"
    return f"{first}\n{rest}" if rest else first


_Place = tuple[str, list[str]]


def _grouped(texts: Sequence[str]) -> dict[str, list[_Place]]:
    groups: dict[str, list[_Place]] = {}
    for text in texts:
        found = _ATTEMPT.fullmatch(text)
        number, where, what = found.groups("") if found is not None else ("", "", text)
        known = groups.setdefault(what, [])
        if known and known[-1][0] == where:
            known[-1][1].append(number)
        else:
            known.append((where, [number]))
    return groups


def _named(place: _Place) -> str:
    where, numbers = place
    if len(numbers) == 1:
        return f"attempt {numbers[0]}{where}"
    return f"attempts {numbers[0]} {'and' if len(numbers) == 2 else 'to'} {numbers[-1]}{where}"
