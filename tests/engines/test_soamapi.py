"""The stand-in for soamapi keeps what the product promises, and goes wrong as its script says."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler.testing.soamapi import Fault, StandIn, api
from scaler.testing.soamapi.messages import SoamException
from tests.engines.soamapi_rig import (
    Inbox,
    connected,
    script_service,
    send,
    session_of,
    use,
)
from tests.waiting import until


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., api.Connection]]:
    """Starts a stand-in with these settings, and connects."""

    def start(*faults: Fault, **settings: Any) -> api.Connection:
        use(StandIn(**{"slots": 1, "service": script_service(tmp_path), "faults": faults, **settings}), monkeypatch)
        return connected()

    yield start
    api.reset(None)


class Gate:
    """A task that hangs until it is let go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.verb = f"hang {path}"

    def pids(self) -> list[int]:
        return [int(line) for line in self._path.read_text().split()] if self._path.exists() else []

    def process(self, number: int = 1) -> psutil.Process:
        """Wait until it has been started this many times, and return the process."""
        until(lambda: len(self.pids()) >= number)
        return psutil.Process(self.pids()[number - 1])

    def open(self) -> None:
        Path(f"{self._path}.go").touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


Begin = Callable[..., api.Connection]


def test_the_session_with_the_higher_priority_goes_first(begin: Begin, gate: Gate, tmp_path: Path) -> None:
    connection, inbox, notes = begin(), Inbox(), tmp_path / "notes"
    low, high = session_of(connection, inbox, 5), session_of(connection, inbox, 6)
    send(low, gate.verb)
    gate.process()
    for number in range(2):
        send(low, f"note {notes} low{number}")
        send(high, f"note {notes} high{number}")
    gate.open()
    inbox.texts(5)
    assert notes.read_text().split() == ["high0", "high1", "low0", "low1"]


def test_a_priority_can_be_changed_and_is_from_1_to_10000(begin: Begin, gate: Gate, tmp_path: Path) -> None:
    connection, inbox, notes = begin(), Inbox(), tmp_path / "notes"
    first, second = session_of(connection, inbox), session_of(connection, inbox)
    send(first, gate.verb)
    gate.process()
    send(first, f"note {notes} first")
    send(second, f"note {notes} second")
    second.update_priority(10_000)
    gate.open()
    inbox.texts(3)
    assert notes.read_text().split() == ["second", "first"]
    for priority in (0, 10_001):
        with pytest.raises(SoamException, match="from 1 to 10000"):
            second.update_priority(priority)


def test_a_suspended_session_starts_no_tasks_until_it_is_resumed(begin: Begin) -> None:
    connection, inbox = begin(), Inbox()
    session, other = session_of(connection, inbox, 2), session_of(connection, inbox, 1)
    held = api.grid().sessions()[0]
    api.grid().suspend(held)
    send(session, "held")
    send(other, "free")
    assert inbox.texts(1) == ["did free"]
    api.grid().resume(held)
    assert inbox.texts(2) == ["did free", "did held"]


def test_a_death_within_the_limit_is_not_seen(begin: Begin) -> None:
    connection, inbox = begin(Fault("invoke", "die"), task_retry_limit=1), Inbox()
    send(session_of(connection, inbox), "echo")
    assert inbox.texts(1) == ["did echo"]


def test_what_a_service_throws_is_embedded_and_a_failure_is_tried_again(begin: Begin, tmp_path: Path) -> None:
    connection, inbox = begin(Fault("invoke", "fail", number=4, text="no disk")), Inbox()
    session = session_of(connection, inbox)
    send(session, "throw x")
    assert inbox.texts(1) == ["Task <1> of session <1> failed: the service threw KeyError: 'x' [KeyError('x')]"]
    send(session, f"fail {tmp_path / 'mark'}")
    assert inbox.texts(2)[1] == f"did fail {tmp_path / 'mark'}"
    send(session, "echo")
    assert inbox.texts(3)[2].endswith("[RuntimeError('no disk')]")


def test_a_reclaimed_slot_ends_its_task_after_the_grace_and_it_runs_again_for_free(begin: Begin, gate: Gate) -> None:
    connection, inbox = begin(task_retry_limit=0), Inbox()
    session = session_of(connection, inbox)
    send(session, gate.verb)
    first = gate.process()
    api.grid().reclaim(api.grid().sessions()[0], 0.05)
    second = gate.process(2)
    assert not first.is_running()
    assert second.is_running()
    gate.open()
    assert inbox.texts(1) == [f"did {gate.verb}"]


def test_the_script_makes_responses_come_twice_late_unreadable_or_not_at_all(begin: Begin) -> None:
    faults = [
        Fault("response", "late", 1, seconds=0.2),
        Fault("response", "twice", 2),
        Fault("response", "unreadable", 3, text="torn"),
        Fault("response", "lose", 4),
    ]
    connection, inbox = begin(*faults), Inbox()
    session = session_of(connection, inbox)
    for number in range(1, 6):
        send(session, f"echo {number}")
    texts = inbox.texts(5)
    assert texts[-1] == "did echo 1"
    assert sorted(texts[:-1]) == ["did echo 2", "did echo 2", "did echo 5", "unreadable: torn"]


def test_closing_a_session_in_a_callback_is_seen_as_the_deadlock_that_it_is(begin: Begin) -> None:
    class Closing(Inbox):
        def on_response(self, handle: api.TaskOutputHandle) -> None:
            try:
                session.close()
            finally:
                super().on_response(handle)

    connection, inbox = begin(), Closing()
    session = session_of(connection, inbox)
    send(session, "echo")
    inbox.texts(1)
    connection.close()
    [error] = api.grid().callback_errors
    assert "deadlock" in str(error)


def test_streams_take_arrays_of_bytes_only() -> None:
    stream = api.OutputStream()
    with pytest.raises(TypeError, match="array of the type"):
        stream.write_byte_array(array("i", [1]), 0, 1)
    stream.write_byte_array(array("b", b"abc"), 1, 2)
    read = api.InputStream(stream.bytes())
    assert read.read_byte_array("b").tobytes() == b"bc"
    with pytest.raises(SoamException, match="ends before"):
        read.read_byte_array("b")


def test_a_client_must_initialize_the_library_before_it_connects() -> None:
    api.reset(None)
    with pytest.raises(SoamException, match="not called"):
        api.connect("app", api.DefaultSecurityCallback("a", "b"))
