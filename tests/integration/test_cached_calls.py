"""Cached calls with real processes."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import UsageError


def noted(log: Path, value: object, size_bytes: int = 0) -> object:
    with log.open("a") as file:
        file.write(f"{value}\n")
    return bytearray(size_bytes) if size_bytes else value


def noted_again(log: Path, value: object) -> object:
    return noted(log, value)


def fail(log: Path) -> None:
    noted(log, "failed")
    raise ValueError("always")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A path that no other test uses as an argument."""
    return tmp_path / uuid4().hex


def runs(log: Path) -> list[str]:
    return sorted(log.read_text().split())


def test_call_runs_once_for_all_clients(cluster: SchedulerClusterCombo, log: Path) -> None:
    for _ in range(2):
        with Client(cluster.get_address()) as client:
            assert client.cache(noted, log, 1).result(10) == 1
            assert client.submit_verbose(noted, (log,), {"value": 2}, cache=True).result(10) == 2
            assert client.map(noted, [log] * 3, [1, 3, 4], cache=True) == [1, 3, 4]
    assert runs(log) == ["1", "2", "3", "4"]


def test_large_results_are_captured_as_returned(cluster: SchedulerClusterCombo, log: Path) -> None:
    for _ in range(2):
        with Client(cluster.get_address()) as client:
            result = client.cache(noted, log, 1, size_bytes=3_000_000).result(10)
            assert result == bytearray(3_000_000)
            result[:] = b"x" * len(result)
    assert runs(log) == ["1"]


def test_other_arguments_or_functions_are_other_calls(cluster: SchedulerClusterCombo, log: Path) -> None:
    with Client(cluster.get_address()) as client:
        assert client.cache(noted, log, 1).result(10) == 1
        assert client.cache(noted, log, True).result(10) is True
        assert client.cache(noted, log, "1").result(10) == "1"
        assert client.cache(noted_again, log, 1).result(10) == 1
    assert runs(log) == ["1", "1", "1", "True"]


def test_exceptions_are_not_cached(cluster: SchedulerClusterCombo, log: Path) -> None:
    with Client(cluster.get_address()) as client:
        for _ in range(2):
            with pytest.raises(ValueError, match="always"):
                client.cache(fail, log).result(10)
    assert runs(log) == ["failed", "failed"]


def test_uncacheable_function_raises_with_the_reason(cluster: SchedulerClusterCombo, log: Path) -> None:
    with Client(cluster.get_address()) as client:
        with pytest.raises(UsageError, match="is an argument of a cached call"):
            client.cache(noted, log, client.options(capabilities={"offered_by_none": None}).submit(abs, -1))
        with pytest.raises(UsageError, match="is an argument of a cached call"):
            client.cache(noted, log, client.send_object(1))
        with pytest.raises(UsageError, match="leave out cache, or key and tag"):
            client.submit_verbose(noted, (log, 1), cache=True, key="a")
