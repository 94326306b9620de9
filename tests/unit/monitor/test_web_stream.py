"""The stream of `/events`: snapshots, then deltas, and the handling of slow browsers."""

from __future__ import annotations

import asyncio

import pytest

from scaler.monitor.cluster_rows import ConnectionRow
from scaler.monitor.model import Model
from scaler.monitor.web import server
from scaler.monitor.web import stream as stream_module
from scaler.monitor.web.delta import MAX_TASKS_SENT, DeltaEncoder
from scaler.monitor.web.server import WebApp
from scaler.monitor.web.stream import Broadcast
from tests.unit.monitor.web_rig import (
    TASK,
    Browser,
    PreparedMonitor,
    Stream,
    events,
    filled_model,
    run_jumping,
    status,
    task,
    web_config,
    worker,
)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BROADCAST_SECONDS", 0.01)
    monkeypatch.setattr(server, "TASK_ROWS", 3)


@pytest.fixture
def monitor() -> PreparedMonitor:
    return PreparedMonitor(filled_model())


def begun(browser: Browser) -> bool:
    return bool(browser.kinds)


def test_browser_gets_a_snapshot_then_deltas(monitor: PreparedMonitor) -> None:
    async def scenario() -> None:
        app = WebApp(monitor, web_config())
        async with Stream(app) as stream:
            browser = await stream.until(begun)
            assert browser.kinds == ["snapshot"]
            assert browser.tasks == [TASK, "f" * 32]
            monitor.model.apply_status(status(11.0, workers=[worker("w", free=1), worker("x")], clients=[]))
            monitor.model.apply_events(events(11.0, task("e" * 32)))
            app.changed()
            await stream.until(lambda browser: len(browser.kinds) == 2)
            assert browser.tables["workers"]["w-id"]["free"] == 1
            assert browser.tables["workers"]["w-id"]["manager"] == "here"
            assert set(browser.tables["workers"]) == {"w-id", "x-id"}
            assert browser.tables["clients"] == {}
            assert browser.status["at"] == 11.0
            assert browser.points == [10.0, 11.0]
            assert browser.tasks == [TASK, "f" * 32, "e" * 32]
        assert stream.start["status"] == 200
        headers = dict(stream.start["headers"])
        assert headers[b"content-type"].startswith(b"text/event-stream")
        assert headers[b"cache-control"] == b"no-store"
        assert stream.body.startswith(b"retry: 1000\n\n")

    run_jumping(scenario())


def test_thousand_tasks_are_a_hundred_rows_with_failures_and_a_count() -> None:
    model = Model()
    monitor = PreparedMonitor(model)

    async def scenario() -> None:
        app = WebApp(monitor, web_config())
        async with Stream(app) as stream:
            browser = await stream.until(begun)
            tasks = [task(f"{number:032x}", "exception" if number < 5 else "done") for number in range(1000)]
            model.apply_events(events(11.0, *tasks))
            app.changed()
            await stream.until(lambda browser: bool(browser.tasks))
            assert len(browser.tasks) == MAX_TASKS_SENT
            assert browser.left_out == 900
            assert browser.tasks[:5] == [f"{number:032x}" for number in range(5)]
            assert browser.tasks[5:] == [f"{number:032x}" for number in range(905, 1000)]

    run_jumping(scenario())


def test_reports_a_heartbeat_when_nothing_changed(monitor: PreparedMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "QUIET_SECONDS", 0.5)

    async def scenario() -> None:
        encoder = DeltaEncoder(monitor.model, lambda: ConnectionRow(connected=True), 3)
        app = Broadcast(encoder, 0.01)
        async with Stream(app) as stream:
            await stream.until(begun)
            await asyncio.sleep(0.1)
            assert stream.browser.kinds == ["snapshot"]
            await stream.until(lambda browser: len(browser.kinds) == 3)
            assert stream.browser.kinds == ["snapshot", "delta", "delta"]

    run_jumping(scenario())


def test_reports_the_loss_and_replacement_of_the_scheduler(monitor: PreparedMonitor) -> None:
    async def scenario() -> None:
        app = WebApp(monitor, web_config())
        async with Stream(app) as stream:
            browser = await stream.until(begun)
            monitor.connected, monitor.last_error = False, "no scheduler answers"
            app.changed()
            await stream.until(lambda browser: not browser.connection["connected"])
            assert browser.connection["trouble"] == "no scheduler answers"
            monitor.connected, monitor.last_error = True, ""
            monitor.model.apply_status(status(12.0, incarnation=2, workers=[]))
            app.changed()
            await stream.until(lambda browser: browser.connection["incarnation"] == "2")
            assert browser.kinds == ["snapshot", "delta", "snapshot"]
            assert browser.tables["workers"] == {}

    run_jumping(scenario())


@pytest.fixture
def short_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_WAITING_EVENTS", 5)


@pytest.mark.usefixtures("short_record")
def test_stalled_browser_is_disconnected_without_affecting_others(monitor: PreparedMonitor) -> None:
    async def scenario() -> None:
        app = WebApp(monitor, web_config())
        async with Stream(app) as reading, Stream(app, frozen=True) as frozen:
            await reading.until(begun)
            number = 0
            while not frozen.aborted:
                number += 1
                monitor.model.apply_status(status(10.0 + number))
                app.changed()
                await reading.until(lambda browser: browser.status["at"] == 10.0 + number)  # noqa: B023
            assert number > 5
            await frozen.over()
            assert frozen.browser.kinds == []
            assert reading.browser.points == [10.0 + at for at in range(number + 1)]
        app.close()

    run_jumping(scenario())


def test_number_of_open_streams_is_limited(monitor: PreparedMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_STREAMS", 1)

    async def scenario() -> None:
        app = WebApp(monitor, web_config())
        async with Stream(app) as first:
            await first.until(begun)
            async with Stream(app) as second:
                await second.over()
            assert second.start["status"] == 503
        async with Stream(app) as third:
            await third.until(begun)

    run_jumping(scenario())


def test_stopping_the_server_ends_every_stream(monitor: PreparedMonitor) -> None:
    async def scenario() -> None:
        app = WebApp(monitor, web_config())
        async with Stream(app) as stream:
            await stream.until(begun)
            app.close()
            await stream.over()
            assert stream.ended
        async with Stream(app) as late:
            await late.over()
        assert late.start["status"] == 503

    run_jumping(scenario())
