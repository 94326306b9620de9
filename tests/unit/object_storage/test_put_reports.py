"""Reports about the object storage's large objects to the scheduler."""

from __future__ import annotations

import pytest

from scaler.object_storage.body import Body
from scaler.object_storage.exchange import PutReports

OWNER, OTHER = b"owner--1", b"owner--2"
A, B, C = OWNER + b"A" * 8, OWNER + b"B" * 8, OTHER + b"C" * 8


@pytest.fixture
def here() -> dict[bytes, Body]:
    """Return the contents of the object storage."""
    return {each: Body([size], [], size) for each, size in ((A, 1), (B, 2), (C, 3))}


@pytest.fixture
def reports(here: dict[bytes, Body]) -> PutReports:
    return PutReports(here.get)


def test_written_objects_are_reported_once_in_batches(reports: PutReports) -> None:
    assert not reports
    reports.put([A])
    reports.put([B])
    assert reports
    assert reports.take() == ([(A, 1), (B, 2)], [])
    assert not reports
    assert reports.take() == ([], [])


def test_objects_released_before_the_report_are_omitted(reports: PutReports, here: dict[bytes, Body]) -> None:
    reports.put([A])
    del here[A]
    reports.forget([A])
    assert reports.take() == ([], [])


def test_objects_released_after_their_report_are_reported_as_dropped(
    reports: PutReports, here: dict[bytes, Body]
) -> None:
    reports.put([A])
    reports.take()
    del here[A]
    reports.forget([A, B])
    assert reports
    assert reports.take() == ([], [A])
    reports.forget([A])
    assert not reports


def test_reported_objects_of_a_client_are_dropped_with_the_client(reports: PutReports, here: dict[bytes, Body]) -> None:
    reports.put([A, B, C])
    reports.take()
    del here[A], here[B]
    reports.forget_owner(OWNER)
    put, dropped = reports.take()
    assert (put, sorted(dropped)) == ([], [A, B])


def test_new_scheduler_learns_the_full_local_state(reports: PutReports, here: dict[bytes, Body]) -> None:
    reports.put([A])
    reports.take()
    del here[A]
    reports.forget([A])
    reports.restart([B])
    assert reports.take() == ([(B, 2)], [])
