"""Texts about the attempts of a task that went wrong: equal ones once, and the cause of the last one first. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scaler.grammar import counted

PROCESSOR_DIED = "the processor that ran the task died: "
"""How agents begin the text about a processor that ended with a task."""
_ATTEMPT = re.compile(r"attempt (\d+)((?: on |, alone).*?)?: (.*)", re.DOTALL)


def together(texts: Sequence[str]) -> str:
    """Return what went wrong in attempts, each a text of `attempt 2 on WORKER: WHAT`. Attempts alike share a line."""
    places: dict[str, list[tuple[str, list[str]]]] = {}
    for text in texts:
        found = _ATTEMPT.fullmatch(text)
        number, where, what = found.groups("") if found is not None else ("", "", text)
        known = places.setdefault(what, [])
        if known and known[-1][0] == where:
            known[-1][1].append(number)
        else:
            known.append((where, [number]))
    return "\n".join(f"{', '.join(map(_named, known))}: {what}" for what, known in places.items())


def _named(place: tuple[str, list[str]]) -> str:
    where, numbers = place
    if len(numbers) == 1:
        return f"attempt {numbers[0]}{where}"
    return f"attempts {numbers[0]} {'and' if len(numbers) == 2 else 'to'} {numbers[-1]}{where}"


def at_limit(texts: Sequence[str], attempts: int, option: str, limit: int) -> str:
    """Return why a task is not tried again: the last cause and the number of attempts, then all of them."""
    found = _ATTEMPT.fullmatch(texts[-1])
    what = found[3] if found is not None else texts[-1]
    cause = what.partition("\n")[0].removeprefix(PROCESSOR_DIED)
    doubt = "; it may have run" if limit == 0 else ""
    return f"{cause}, {counted(attempts, 'attempt')}, {option}={limit}{doubt}\n{together(texts)}"
