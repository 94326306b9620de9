"""Servers with journals that exit at random times, on a disk that tears, is full, or fails."""

from __future__ import annotations

import pytest

from scaler.extensions.durability.ledger import Ledger, _Client
from scaler.extensions.durability.steps import DurableSteps
from scaler.journal import records
from scaler.journal.directory import JournalDirectory, Segments
from scaler.journal.records import JournalError
from scaler.object_storage.durable import ObjectJournal
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.tasks import Tasks
from tests.short_forms import short_form
from tests.simulation.planting import Fault, plant
from tests.simulation.worlds import KINDS, run

STEADY, ROUGH = "servers with journals lose power", "disks and workers fail, too"
PROGRAMS = "programs of durable sessions end, too"
LOST = (
    "two outcomes|starts after|runs again|start once|started twice|is there while|is kept until|still wait|"
    "is damaged at byte|cannot read a record|clients that have left|own value|^b"
)

FAULTS: dict[str, tuple[str, Fault]] = {
    "commands are performed before the disk confirms their cause": (
        ROUGH,
        Fault(DurableSteps, "add", "if self._held or self.journal.durable < self.journal.written:", "if False:", LOST),
    ),
    "a torn record counts": (
        STEADY,
        Fault(
            records,
            "_record_at",
            "if crc32(body, crc32(data[at + _SUMMED : body_at])) != checksum:",
            "if False:",
            "^",  # any error, because its bytes may be read as anything
        ),
    ),
    "records without a confirmation request count as confirmed": (
        STEADY,
        Fault(Segments, "_confirm", "os.fdatasync(self._descriptor)", "pass", LOST),
    ),
    "a killed process's writes count as confirmed": (
        STEADY,
        Fault(JournalDirectory, "repair", "os.fsync(file.fileno())", "pass", LOST),
    ),
    "a failed confirmation counts as a success": (
        ROUGH,
        Fault(
            Segments, "_confirm", "self._fail(error, is_broken=True)", "self.durable = self._unconfirmed[-1][0]", LOST
        ),
    ),
    "records lost by a disk are not rewritten": (
        ROUGH,
        Fault(Segments, "_advance", "in self._unconfirmed]", "in ()]", LOST),
    ),
    "a snapshot replaces one segment too many": (
        STEADY,
        Fault(
            JournalDirectory,
            "remove_replaced",
            "if number < first:\n                self.segment",
            "if number <= first:\n                self.segment",
            LOST,
        ),
    ),
    "a snapshot forgets which tasks may have run": (
        ROUGH,
        Fault(Ledger, "snapshot", "yield [Dispatched(*item) for item in client.dispatched.items()]", "yield []", LOST),
    ),
    "outcomes are not read back": (STEADY, Fault(_Client, "apply", "self._end(message)", "pass", LOST)),
    "the placement of a task that may start once is not journaled": (
        ROUGH,
        Fault(Tasks, "_join", "self._state.changes.add(Dispatched, task.id, worker.id)", "pass", LOST),
    ),
    "a cancellation is not journaled": (
        ROUGH,
        Fault(Tasks, "cancel", "self._state.changes.add(CancelAsked, ids)", "pass", LOST),
    ),
    "rejected writes count as written": (
        ROUGH,
        Fault(Segments, "_fail", "self.is_broken = is_broken", "self.is_broken = False", LOST),
    ),
    "a client that left is not journaled": (
        STEADY,
        Fault(SchedulerCore, "client_left", "self.state.changes.add(ClientLeft, client.id)", "pass", LOST),
    ),
    "an object counts as stored before the disk confirms it": (
        STEADY,
        Fault(
            ObjectJournal,
            "_append",
            "self._unconfirmed.append((self._journal.written, writing))",
            "self._confirm(writing)",
            LOST,
        ),
    ),
    "an object's file is not confirmed before its record": (
        STEADY,
        Fault(ObjectJournal, "_write_file", "os.fsync(file.fileno())", "pass", LOST),
    ),
    "outcomes delivered to a durable session are not kept": (
        PROGRAMS,
        Fault(Tasks, "acknowledge", "if not client.is_durable:", "if True:", "is unacknowledged"),
    ),
    "forgotten objects reappear": (
        STEADY,
        Fault(ObjectJournal, "forget", 'self._journal.append(_HEAD.pack(_FORGOTTEN, 0) + b"".join(ids))', "pass", LOST),
    ),
}

RARE = {
    "commands are performed before the disk confirms their cause": 9,
    "a failed confirmation counts as a success": 52,
    "a cancellation is not journaled": 25_854,
    "a snapshot forgets which tasks may have run": 21,
    "an object counts as stored before the disk confirms it": 11,
}
"""Seeds tried first: worlds that soon detect a fault, or faults that few worlds detect."""


@pytest.mark.parametrize("seed", short_form(range(3)))
@pytest.mark.parametrize("kind", [STEADY, ROUGH, PROGRAMS])
def test_no_message_is_lost(kind: str, seed: int) -> None:
    run([seed], kind)


@pytest.mark.parametrize("kind", [STEADY, PROGRAMS])
def test_servers_compact_their_journals(kind: str) -> None:
    assert KINDS[kind](0).happened["compactions"] > 0


@pytest.mark.long
def test_simulation_detects_a_planted_fault(fault_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, fault = FAULTS[fault_name]
    plant(fault, monkeypatch)
    first = RARE.get(fault_name, 0)
    with pytest.raises((AssertionError, KeyError, JournalError), match=fault.words):
        run([first, *range(48)], kind)
