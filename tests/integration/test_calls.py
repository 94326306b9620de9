"""Calls of clients on a real cluster, as reported to monitors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from scaler import Client, ScalerExecutor, SchedulerClusterCombo
from scaler.errors import UsageError
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.data_rows import CallRow
from tests.integration.settings_rig import WAIT_SECONDS
from tests.waiting import until

Calls = dict[tuple[str, str], CallRow]


def divide(number: int) -> float:
    return 10 / (number % 40)


async def calls(address: str, wanted: Callable[[Calls], bool]) -> Calls:
    """Return the first calls that satisfy the condition, by method and name."""
    changed = asyncio.Event()
    connection = MonitorConnection(address, changed.set)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                found = {(row.call, row.name): row for row in connection.model.status.calls}
                if wanted(found):
                    return found
                await changed.wait()
                changed.clear()
    finally:
        connection.close()


def test_tasks_with_one_tag_form_a_call_that_can_be_cancelled(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address(), name="tagged") as client:
        futures = [client.submit_verbose(fn, (number,), tag="night") for fn in (abs, hash) for number in range(5)]
        assert client.gather(futures) == [*range(5), *range(5)]
        client.submit(abs, 1).result()
        rows = until(lambda: (found := tagged(client)) and found["night"].ended == 10 and found)
        assert rows["night"].failed == 0
        waiting = [client.submit_verbose(abs, (1,), tag="day", gpu=2) for _ in range(3)]
        rows = until(lambda: (found := tagged(client)).get("day") and found["day"].queued == 3 and found)
        assert rows["day"].reason.startswith("no worker offers gpu=2")
        assert client.cancel(tag="never used") == 0
        assert client.cancel(tag="day") == 3
        assert all(future.cancelled() for future in waiting)
        fast = client.options(tags=("both", "one"))
        assert fast.map(abs, range(4)) == [0, 1, 2, 3]
        client.options(tags="both").submit(divide, 40).exception()
        rows = until(lambda: (found := tagged(client)).keys() >= {"both", "one"} and not found["both"].live and found)
        assert rows["both"].ended == rows["one"].ended + 1
        assert (rows["both"].failed, rows["one"].failed) == (1, 0)
        with pytest.raises(UsageError, match="durable session"):
            client.submit_verbose(abs, (1,), key="k")
        with pytest.raises(UsageError, match="tag"):
            client.submit_verbose(abs, (1,), tag=7)  # type: ignore[arg-type]


def tagged(client: Client) -> dict[str, CallRow]:
    return {row.name: row for row in client.cluster().calls if (row.call, row.client) == ("tag", "tagged")}


def test_row_of_a_map_names_the_method_as_soon_as_there_is_one(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address(), name="mapping") as client:
        assert client.map(abs, range(5)) == [*range(5)]
        assert [row.call for row in client.table("calls") if row.client == "mapping"] == ["map"]


def test_maps_count_items_while_graphs_and_submits_count_tasks() -> None:
    with (
        SchedulerClusterCombo(n_workers=1, client_timeout_seconds=2) as cluster,
        Client(cluster.get_address(), name="desk") as client,
    ):
        results = client.map(divide, range(400), chunk_size=100, return_exceptions=True)
        assert sum(isinstance(each, ZeroDivisionError) for each in results) == 10
        assert client.get({"a": 1, "b": (abs, "a"), "c": (abs, "b")}, ["c"]) == {"c": 1}
        for number in (3, 4):
            assert client.submit(abs, number).result() == number
        with ScalerExecutor(client) as executor:
            assert list(executor.map(hash, [1, 2, 3])) == [1, 2, 3]
        names = {("map", "divide"), ("get", "1 key"), ("submit", "abs"), ("map", "hash")}
        found = asyncio.run(
            calls(
                cluster.get_monitor_address(),
                lambda rows: names <= rows.keys() and not any(row.live for row in rows.values()),
            )
        )
        counts = {name: (found[name].ended, found[name].failed, found[name].client) for name in names}
        assert counts == {
            ("map", "divide"): (400, 10, "desk"),
            ("get", "1 key"): (2, 0, "desk"),
            ("submit", "abs"): (2, 0, "desk"),
            ("map", "hash"): (3, 0, "desk"),
        }
        functions = {row.name: row for row in client.cluster().functions}
        row = functions["divide"]
        assert (row.ended, row.failed, row.progress_percent, row.has_chunks) == (400, 10, 97.5, True)
        assert row.mean_seconds < row.seconds_total / 100
