"""Steps of a scheduler with a journal: performs the commands of each when the disk has what led to them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from scaler.grammar import counted
from scaler.journal.journal import Journal
from scaler.net.connection import Opened
from scaler.protocol.messages import PROTOCOL_VERSION
from scaler.scheduler.core.commands import AskPolicy, Command, Expel, Input, Send, SendAnswer, WriteJournal
from scaler.scheduler.journal import JournalSubscriber, Ledger, from_bytes, to_bytes

_AT_ONCE = SendAnswer, AskPolicy
"""Commands of which no peer learns anything that the journal must know before."""
HANG_SECONDS = 5.0
"""A disk that has confirmed nothing for longer is reported as hanging."""
_log = logging.getLogger(__name__)


class DurableSteps:
    """What a peer is told has been confirmed by the disk before, so a restarted scheduler knows it, too.

    Answers need no confirmation, and do not wait for the disk: what they say cannot be lost.
    """

    subscriber = JournalSubscriber()

    def __init__(
        self, path: Path, perform: Callable[[Sequence[Command]], None], on_failure: Callable[[str, bool], None]
    ) -> None:
        """Lock the journal's directory. Raises UsageError when that is not possible.

        perform: does what commands say. on_failure: is told why the disk takes no new tasks, and whether it takes
        nothing else either; and when it does again.
        """
        self._journal = Journal(path, "scaler.scheduler.compaction", self._on_change, content=PROTOCOL_VERSION)
        self._path = path
        self._perform = perform
        self._on_failure = on_failure
        self._failure = "", False
        self._is_hanging = False
        self._held: deque[tuple[int, list[Command]]] = deque()
        """Commands of the last steps, with the record that the disk must have before."""

    def recover(self) -> list[Input]:
        """Return what the journal has of each client, and which have left. To be called once, before the first `add`.

        Raises JournalError when the journal is damaged, and UsageError when the disk fails. A full disk is told of.
        """
        ledger = Ledger()
        for body in self._journal.recover():
            for change in from_bytes(body):
                ledger.apply(change)
        found = list(ledger.recovered())
        if found:
            tasks = sum(len(group.ids) for each in found for submit in each.submits for group in submit.groups)
            results = sum(len(message.ids) for each in found for message in each.results)
            _log.info(
                "recovered %s and %s of %s from %s",
                counted(tasks, "unfinished task"),
                counted(results, "result"),
                counted(len(found), "client"),
                self._path,
            )
        return [ledger.gone(), *found]

    @property
    def size_bytes(self) -> int:
        """What the journal takes on the disk."""
        return self._journal.size_bytes

    @property
    def complaint(self) -> str:
        """What is wrong with a disk that neither confirms nor fails; empty while it does one of the two."""
        seconds = self._journal.waiting_seconds
        if seconds < HANG_SECONDS or self._journal.failure:
            return ""
        return f"state_directory: the disk of {self._path} has not answered for {seconds:.0f} s; all new work waits"

    def add(self, inputs: Sequence[Input], commands: list[Command]) -> None:
        """Write a step to the journal, and perform its commands after those of all steps before."""
        if self._held:
            for item in inputs:
                if type(item) is Opened:
                    self._forget(item.peer)
        if commands and isinstance(last := commands[-1], WriteJournal):
            self._journal.append(to_bytes(last.changes))
            del commands[-1]
        if self._held or self._journal.durable < self._journal.written:
            answers = [each for each in commands if type(each) in _AT_ONCE]
            if answers:
                self._perform(answers)
                commands = [each for each in commands if type(each) not in _AT_ONCE]
            self._held.append((self._journal.written, commands))
            if not self._is_hanging and (complaint := self.complaint):
                self._is_hanging = True
                _log.error("%s", complaint)
        else:
            self._perform(commands)

    def _forget(self, peer: bytes) -> None:
        """Drop what was meant for an earlier session of a peer."""
        for _, commands in self._held:
            commands[:] = [each for each in commands if not (isinstance(each, Send | Expel) and each.peer == peer)]

    def _on_change(self) -> None:
        while self._held and self._held[0][0] <= self._journal.durable:
            self._perform(self._held.popleft()[1])
        if self._is_hanging and self._journal.waiting_seconds < HANG_SECONDS:
            self._is_hanging = False
            _log.warning("state_directory: the disk of %s answers again", self._path)
        failure = self._journal.failure, self._journal.is_stuck
        if failure != self._failure:
            self._failure = failure
            self._on_failure(*failure)

    def close(self) -> None:
        """Have the disk confirm everything, and perform what was held back. Again: does nothing."""
        self._journal.close()
        self._on_change()
