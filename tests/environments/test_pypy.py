"""The scheduler on PyPy, with workers and a client on CPython. `.ci/pythons pypy3.11` prepares it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler import Client
from tests.integration.settings_rig import command

PYPY = Path(__file__).parents[2] / "build" / "pythons" / "pypy3.11" / "bin" / "python"
SECONDS = 60.0


def double(number: int) -> int:
    return 2 * number


def fail(number: int) -> None:
    raise ValueError(f"no {number}")


def add(left: int, right: int) -> int:
    return left + right


@pytest.mark.skipif(not PYPY.exists(), reason="PYPY IS NOT HERE: .ci/pythons pypy3.11 prepares it")
def test_scheduler_on_pypy_runs_calls_maps_and_graphs_and_reports_failures(tmp_path: Path) -> None:
    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=tmp_path, python=str(PYPY)) as scheduler:
        address = scheduler.addresses()["scheduler"]
        with command("scaler_cluster", address, "-n", "2", directory=tmp_path), Client(address) as client:
            assert [client.submit(double, number).result(SECONDS) for number in range(3)] == [0, 2, 4]
            assert client.map(double, range(5_000)) == [2 * number for number in range(5_000)]
            graph = {"a": 1, "b": (add, "a", "a"), "c": (add, "b", "a")}
            assert client.get(graph, ["c"]) == {"c": 3}
            with pytest.raises(ValueError, match="no 7"):
                client.submit(fail, 7).result(SECONDS)
        assert "Traceback" not in scheduler.errors()
