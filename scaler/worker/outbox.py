"""What the core wants said: messages to the scheduler, and notes for the log. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from scaler.protocol.messages import Done, Message, Outcome, Returned, Suspended
from scaler.worker.attempts import Attempt


class Level(IntEnum):
    """Levels of log lines, with the values of the module logging."""

    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log. task: the id of the one that it is about, empty for none."""

    level: Level
    text: str
    task: bytes = b""


class Outbox:
    """Collects what is said within one turn; attempts that end in a row share a Done."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._notes: list[Note] = []
        self._done: Done | None = None

    def done(self) -> Done:
        """Return the Done to which ended attempts are to be added; all its columns are kept, cpu_us and peak_bytes
        too."""
        if self._done is None:
            self._done = Done([], [], [], [], [], [], [])
            self._messages.append(self._done)
        return self._done

    def ended(self, item: Attempt, outcome: Outcome, text: str) -> None:
        """Say that an attempt ended without a result."""
        done = self.done()
        done.ids.append(item.id)
        done.attempts.append(item.attempt)
        done.outcomes.append(outcome)
        done.payloads.append(text.encode("utf-8", "replace"))
        done.duration_us.append(0)
        done.cpu_us.append(0)
        done.peak_bytes.append(0)

    def returned(self, items: Iterable[Attempt], started: bool) -> None:
        """Say that attempts are given back, or that they go on."""
        back = list(items)
        if back:
            ids = [item.id for item in back]
            self.send(Returned(ids, [item.attempt for item in back], [started] * len(back)))

    def suspended(self, item: Attempt, suspended: bool) -> None:
        self.send(Suspended([item.id], [item.attempt], [suspended]))

    def send(self, message: Message) -> None:
        self._messages.append(message)
        self._done = None

    def note(self, level: Level, text: str, task: bytes = b"") -> None:
        self._notes.append(Note(level, text, task))

    def take_messages(self) -> list[Message]:
        """Return what is to be sent, in order, and forget it."""
        if not self._messages:
            return []
        messages, self._messages, self._done = self._messages, [], None
        for message in messages:
            if type(message) is Done and not any(message.cpu_us) and not any(message.peak_bytes):
                message.cpu_us = []
                message.peak_bytes = []
        return [message for message in messages if type(message) is not Done or message.ids]

    def take_notes(self) -> list[Note]:
        """Return the lines for the log, and forget them."""
        notes = self._notes
        if notes:
            self._notes = []
        return notes
