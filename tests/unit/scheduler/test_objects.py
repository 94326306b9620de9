"""Who uses which object, and when it is forgotten."""

from __future__ import annotations

import pytest

from scaler.ids import IdFactory, content_id
from scaler.protocol.messages import stored_reference
from scaler.scheduler.core.objects import ObjectTable

ALICE, BOB, WORKER = b"alice...", b"bob.....", b"worker.."
FUNCTION = content_id(b"\x80")


@pytest.fixture
def table() -> ObjectTable:
    return ObjectTable()


@pytest.fixture
def mine() -> bytes:
    return IdFactory(ALICE).object()


def test_a_pinned_object_is_forgotten_when_its_owner_releases_it(table: ObjectTable, mine: bytes) -> None:
    table.pin(mine, ALICE)
    assert table.forgotten == []
    table.release(mine, ALICE)
    assert table.forgotten == [mine]
    assert table.stored == {}


def test_an_object_in_use_outlives_its_release_until_the_last_use(table: ObjectTable, mine: bytes) -> None:
    table.pin(mine, ALICE)
    table.use(mine)
    table.use(mine)
    table.release(mine, ALICE)
    table.unuse(mine)
    assert table.forgotten == []
    table.unuse(mine)
    assert table.forgotten == [mine]


def test_releasing_twice_forgets_once(table: ObjectTable, mine: bytes) -> None:
    table.pin(mine, ALICE)
    table.release(mine, ALICE)
    table.release(mine, ALICE)
    assert table.forgotten == [mine]


def test_nobody_but_its_owner_releases_an_object(table: ObjectTable, mine: bytes) -> None:
    table.pin(mine, ALICE)
    table.release(mine, BOB)
    assert table.forgotten == []
    assert table.pinned_by(ALICE) == [mine]
    assert table.pinned_by(BOB) == []


def test_an_object_that_was_used_before_it_was_announced_is_pinned(table: ObjectTable, mine: bytes) -> None:
    table.use(mine)
    table.unuse(mine)
    assert table.forgotten == []
    table.release(mine, ALICE)
    assert table.forgotten == [mine]


def test_a_value_that_nobody_wanted_delivered_goes_with_its_last_use(table: ObjectTable, mine: bytes) -> None:
    table.use(mine, pinned=False)
    table.unuse(mine)
    assert table.forgotten == [mine]


def test_a_late_result_is_forgotten_unless_somebody_was_told_of_the_same_object(
    table: ObjectTable, mine: bytes
) -> None:
    table.forget(mine)
    assert table.forgotten == [mine]
    other = IdFactory(BOB).object()
    table.use(other)
    table.forget(other)
    assert table.forgotten == [mine]


def test_a_function_stays_while_a_client_pins_it_or_a_group_uses_it(table: ObjectTable) -> None:
    table.register(FUNCTION, b"\x80", ALICE)
    table.register(FUNCTION, b"\x80", BOB)
    table.use(FUNCTION)
    table.release(FUNCTION, ALICE)
    table.release(FUNCTION, BOB)
    assert FUNCTION in table.functions
    table.unuse(FUNCTION)
    assert FUNCTION not in table.functions


def test_workers_that_were_sent_a_function_are_told_to_forget_it(table: ObjectTable) -> None:
    table.register(FUNCTION, b"\x80", ALICE)
    table.functions[FUNCTION].announced_to.add(WORKER)
    table.release(FUNCTION, ALICE)
    assert table.withdrawn == [(FUNCTION, {WORKER})]


def test_a_worker_that_is_gone_is_not_told(table: ObjectTable) -> None:
    table.register(FUNCTION, b"\x80", ALICE)
    table.functions[FUNCTION].announced_to.add(WORKER)
    table.worker_left(WORKER)
    table.release(FUNCTION, ALICE)
    assert table.withdrawn == []


def test_a_large_function_is_forgotten_in_the_storage_too(table: ObjectTable, mine: bytes) -> None:
    table.register(mine, stored_reference(mine, 10**6), ALICE)
    table.release(mine, ALICE)
    assert table.forgotten == [mine]


def test_a_client_that_goes_drops_everything_but_what_running_tasks_use(table: ObjectTable) -> None:
    ids = IdFactory(ALICE)
    idle, used = ids.object(), ids.object()
    table.pin(idle, ALICE)
    table.pin(used, ALICE)
    table.use(used)
    table.register(FUNCTION, b"\x80", ALICE)
    table.client_left(ALICE, retain=False)
    assert table.forgotten == [idle]
    assert FUNCTION not in table.functions
    table.unuse(used)
    assert table.forgotten == [idle, used]


def test_what_is_retained_for_a_client_is_not_forgotten_here(table: ObjectTable, mine: bytes) -> None:
    table.pin(mine, ALICE)
    table.client_left(ALICE, retain=True)
    assert table.forgotten == []
    assert table.stored == {}
