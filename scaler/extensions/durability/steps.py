"""Steps of a scheduler with a journal. A step's commands are performed once its changes are on disk."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scaler.extensions.durability.ledger import JournalChanged, Ledger, Recovered, to_bytes
from scaler.grammar import counted
from scaler.journal.directory import JournalDirectory
from scaler.journal.journal import Journal, run_compaction
from scaler.net.connection import Opened
from scaler.paths import local_path
from scaler.protocol.messages import PROTOCOL_VERSION
from scaler.recorder import ROW_BYTES
from scaler.scheduler.core.commands import AskPolicy, Command, DurabilitySaid, Expel, Input, Perform, Send, SendAnswer

if TYPE_CHECKING:  # compaction does not need the server
    from scaler.scheduler.server import SchedulerServer

_AT_ONCE = SendAnswer, AskPolicy
"""Commands that are never delayed: they reveal no unjournaled change to peers."""
HANG_SECONDS = 5.0
"""Seconds without confirmation after which the disk is reported as hanging."""
_log = logging.getLogger(__name__)


class DurableSteps:
    """Delays commands until the changes behind them are on disk."""

    make_journal = Journal

    def __init__(
        self, path: Path, perform: Callable[[Sequence[Command]], None], on_failure: Callable[[str, bool], None]
    ) -> None:
        """Lock the journal's directory. Raises UsageError if that fails.

        perform: performs commands. on_failure: called with the reason why the disk accepts no new tasks (empty: tasks
        are accepted again), and whether the disk accepts nothing at all.
        """
        self.journal = self.make_journal(
            path, "scaler.extensions.durability.steps", self._on_change, content=PROTOCOL_VERSION
        )
        self._path = path
        self._perform = perform
        self._on_failure = on_failure
        self._failure = "", False
        self._is_hanging = False
        self._held: deque[tuple[int, list[Command]]] = deque()
        """Commands of recent steps, each with the record that must be durable first."""

    def recover(self) -> list[DurabilitySaid]:
        """Return the clients in the journal, and recently departed clients. Call once, before the first `add`.

        Raises JournalError if the journal is damaged, and UsageError if the disk fails. A full disk is reported to
        on_failure.
        """
        ledger = Ledger()
        ledger.read(self.journal.recover())
        found = list(ledger.recovered())
        if found:
            tasks = sum(len(group.ids) for each in found for group in each.submit.groups)
            results = sum(len(message.ids) for each in found for message in each.results)
            _log.info(
                "recovered %s and %s of %s from %s",
                counted(tasks, "unfinished task"),
                counted(results, "result"),
                counted(len(found), "client"),
                self._path,
            )
        return [DurabilitySaid(ledger.gone()), *(DurabilitySaid(each, _size_of(each)) for each in found)]

    @property
    def complaint(self) -> str:
        """Why a disk that neither confirms nor fails is considered hanging; empty otherwise."""
        seconds = self.journal.waiting_seconds
        if seconds < HANG_SECONDS or self.journal.failure:
            return ""
        return f"state_directory: the disk of {self._path} has not responded for {seconds:.0f} s; all new work waits"

    def add(self, inputs: Sequence[Input], commands: list[Command]) -> None:
        """Journal a step. Its commands are performed after the commands of all earlier steps."""
        if self._held:
            self._drop_for({item.peer for item in inputs if type(item) is Opened})
        if commands and isinstance(last := commands[-1], Perform) and last.extension == "durability":
            self.journal.append(to_bytes(last.work))
            del commands[-1]
        if self._held or self.journal.durable < self.journal.written:
            answers = [each for each in commands if type(each) in _AT_ONCE]
            if answers:
                self._perform(answers)
                commands = [each for each in commands if type(each) not in _AT_ONCE]
            self._held.append((self.journal.written, commands))
            if not self._is_hanging and (complaint := self.complaint):
                self._is_hanging = True
                _log.error("%s", complaint)
        else:
            self._perform(commands)

    def _drop_for(self, opened: set[bytes]) -> None:
        """Drop commands for earlier sessions of peers that have a new session."""
        for _, held in self._held:
            held[:] = [each for each in held if not (isinstance(each, Send | Expel) and each.peer in opened)]

    def _on_change(self) -> None:
        while self._held and self._held[0][0] <= self.journal.durable:
            self._perform(self._held.popleft()[1])
        if self._is_hanging and self.journal.waiting_seconds < HANG_SECONDS:
            self._is_hanging = False
            _log.warning("state_directory: the disk of %s responds again", self._path)
        failure = self.journal.failure, self.journal.is_stuck
        if failure != self._failure:
            self._failure = failure
            self._on_failure(*failure)

    def close(self) -> None:
        """Wait for the disk, and perform all delayed commands. Idempotent."""
        self.journal.close()
        self._on_change()


def _size_of(found: Recovered) -> int:
    payloads = [each.payloads for each in found.results]
    payloads += [group.payloads for group in found.submit.groups]
    columns = [*payloads, [payload for _, payload in found.submit.functions], [*found.values.values()]]
    return sum(ROW_BYTES * len(column) + sum(map(len, column)) for column in columns)


def journal_directory(state_directory: str) -> Path:
    return local_path(state_directory) / "scheduler"


def keep_state(frame: SchedulerServer) -> DurableSteps:
    path = journal_directory(frame.config.state_directory)
    return DurableSteps(path, frame.perform, lambda *change: frame.step([DurabilitySaid(JournalChanged(*change))]))


def compact(path: Path, number: int) -> None:
    """Replace all segments before this number with a snapshot. Raises JournalError and OSError."""
    directory, ledger = JournalDirectory(path, PROTOCOL_VERSION, lock=False), Ledger()
    ledger.read(directory.bodies(number))
    bodies = (to_bytes(changes) for changes in ledger.snapshot() if changes)
    directory.write_snapshot(number, bodies, directory.replay.last)


if __name__ == "__main__":
    run_compaction(compact)
