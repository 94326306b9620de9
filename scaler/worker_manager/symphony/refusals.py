"""Calls that Symphony did not take, and when that is for what they are. Pure.

A call may be at fault (it is too large, say), or Symphony may be (it is busy, or down). What is taken right after a
call that was refused, several times over, tells that it is the call: it is given up, and holds nobody else up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaler.worker.call import Call
from scaler.worker.executor import CallKey

MAX_REFUSALS_OF_ONE = 3


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call was not taken."""

    text: str
    is_final: bool = False
    """It never will be."""


class Refusals:
    """Law: it remembers calls of the last hand-over only; what was not taken comes again in the next."""

    def __init__(self) -> None:
        self._counts: dict[CallKey, int] = {}
        """How often each was refused while a later one was taken; who was tried last comes last."""

    def order(self, calls: Sequence[Call]) -> list[Call]:
        """Return the calls in the order to try: one that was refused before, the new ones, and the rest."""
        fresh = [call for call in calls if call.key not in self._counts]
        known = {call.key: call for call in calls if call.key in self._counts}
        again = [known[key] for key in self._counts if key in known]
        return [*again[:1], *fresh, *again[1:]]

    def note(self, calls: Sequence[Call], tried: Mapping[CallKey, Refusal | None]) -> dict[CallKey, str]:
        """Take in what became of those that were tried, in their order; None: it was taken.

        Returns those to give up, and why. calls: all of the hand-over.
        """
        last = max((place for place, refusal in enumerate(tried.values()) if refusal is None), default=-1)
        given_up: dict[CallKey, str] = {}
        keys = {call.key for call in calls}
        counts = {key: count for key, count in self._counts.items() if key in keys}
        for place, (key, refusal) in enumerate(tried.items()):
            count = counts.pop(key, 0)
            if refusal is None:
                continue
            count += place < last
            if refusal.is_final:
                given_up[key] = refusal.text
            elif count >= MAX_REFUSALS_OF_ONE:
                given_up[key] = f"{refusal.text} ({count} times, while it took others)"
            else:
                counts[key] = count
        self._counts = counts
        return given_up
