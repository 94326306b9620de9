"""Reports about the object storage's large objects to the scheduler."""

from __future__ import annotations

import pytest

from scaler.object_storage.exchange import PutReports

OWNER, OTHER = b"owner--1", b"owner--2"
A, B, C = OWNER + b"A" * 8, OWNER + b"B" * 8, OTHER + b"C" * 8


@pytest.fixture
def here() -> set[bytes]:
    """Return the contents of the object storage."""
    return {A, B, C}


@pytest.fixture
def reports(here: set[bytes]) -> PutReports:
    return PutReports(here.__contains__)


def test_written_objects_are_reported_once_in_batches(reports: PutReports) -> None:
    assert not reports
    reports.put(A, 1)
    reports.put(B, 2)
    assert reports
    assert reports.take() == ([(A, 1), (B, 2)], [])
    assert not reports
    assert reports.take() == ([], [])


def test_objects_released_before_the_report_are_omitted(reports: PutReports, here: set[bytes]) -> None:
    reports.put(A, 1)
    here.remove(A)
    reports.forget([A])
    assert reports.take() == ([], [])


def test_objects_released_after_their_report_are_reported_as_dropped(reports: PutReports, here: set[bytes]) -> None:
    reports.put(A, 1)
    reports.take()
    here.remove(A)
    reports.forget([A, B])
    assert reports
    assert reports.take() == ([], [A])
    reports.forget([A])
    assert not reports


def test_reported_objects_of_a_client_are_dropped_with_the_client(reports: PutReports, here: set[bytes]) -> None:
    for row in ((A, 1), (B, 2), (C, 3)):
        reports.put(*row)
    reports.take()
    here -= {A, B}
    reports.forget_owner(OWNER)
    put, dropped = reports.take()
    assert (put, sorted(dropped)) == ([], [A, B])


def test_new_scheduler_learns_the_full_local_state(reports: PutReports, here: set[bytes]) -> None:
    reports.put(A, 1)
    reports.take()
    here.remove(A)
    reports.forget([A])
    reports.restart([(B, 2)])
    assert reports.take() == ([(B, 2)], [])
