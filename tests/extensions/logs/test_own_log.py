"""Log records that a worker sends: warnings and errors with their cause, in limited numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from scaler.extensions.logs.agent import MAX_TEXT, MAX_WAITING, OwnLog
from scaler.logs import about


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, OwnLog]]:
    logger, own = logging.getLogger("test of own logs"), OwnLog()
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(own)
    yield logger, own
    logger.removeHandler(own)


def test_warnings_and_errors_are_kept_until_collected(log: tuple[logging.Logger, OwnLog]) -> None:
    logger, own = log
    logger.info("ready")
    assert own.take() is None
    logger.warning("process %d died", 7, extra=about(task="ab" * 16))
    try:
        raise ValueError("no space")
    except ValueError:
        logger.exception("the store failed")
    logger.error("x" * 2 * MAX_TEXT)
    taken = own.take()
    assert taken is not None
    first, second, third = taken.lines
    assert (first.level, first.logger, first.text) == ("WARNING", "test of own logs", "process 7 died")
    assert (first.task, second.task) == (bytes.fromhex("ab" * 16), b"")
    assert second.text == "the store failed: ValueError: no space"
    assert len(third.text) == MAX_TEXT
    assert own.take() is None


def test_only_the_newest_records_are_kept(log: tuple[logging.Logger, OwnLog]) -> None:
    logger, own = log
    for number in range(3 * MAX_WAITING):
        logger.warning("%d", number)
    taken = own.take()
    assert taken is not None
    assert [line.text for line in taken.lines] == [str(number) for number in range(2 * MAX_WAITING, 3 * MAX_WAITING)]
