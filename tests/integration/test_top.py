"""`scaler_top` against a real scheduler with a worker: what it prints, and how it fails."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from textual.widgets import Static

from scaler import Client
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.top.app import TopApp
from scaler.monitor.top.lines import Lines
from tests.integration.settings_rig import WAIT_SECONDS, Command, command
from tests.integration.test_cli_commands import run


def square(value: int) -> int:
    return value * value


@contextmanager
def a_cluster(directory: Path) -> Iterator[tuple[Command, dict[str, str]]]:
    """Yield a scheduler that has a worker and has run ten tasks, and where it listens."""
    with command("scaler_scheduler", "tcp://127.0.0.1:0", "-sri", "0.1", directory=directory) as scheduler:
        places = scheduler.addresses()
        with command("scaler_cluster", places["scheduler"], "-n", "2", directory=directory) as workers:
            workers.addresses()
            with Client(address=places["scheduler"]) as client:
                assert client.map(square, range(10)) == [value * value for value in range(10)]
                yield scheduler, places


def report(value: int) -> int:
    print(f"value {value}\x1b[2J")
    if value < 0:
        raise ValueError("too small")
    return value


def document(address: str) -> dict[str, Any]:
    done = run("scaler_top", address, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_prints_panels_workers_and_counts_once_as_text_and_as_json(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as (_, places):
        told = document(places["monitor"])
        assert told["totals"]["workers"] == 1
        assert told["messages"]["received"]["Submit"] >= 1
        assert sum(told["tasks"]["ended"].values()) == 10
        done = run("scaler_top", places["monitor"], "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.replace("\n", "").isprintable()
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["scheduler", "|", "tasks", "|", "sent", "|", "received"]
    head = next(place for place, line in enumerate(lines) if line.startswith("worker"))
    assert lines[head - 1] == "Total 1 worker, 2 slots"
    assert "[cpu]" in lines[head]
    assert lines[head + 1].startswith(told["workers"][0]["name"])
    assert any(line.startswith("clients") for line in lines)


def test_it_prints_what_the_object_storage_has_now_and_not_at_the_last_report(tmp_path: Path) -> None:
    with command("scaler_scheduler", "tcp://127.0.0.1:0", "-sri", "60", directory=tmp_path) as scheduler:
        places = scheduler.addresses()
        with Client(places["scheduler"]) as client:
            client.send_object(bytes(100_000))
            assert document(places["monitor"])["storage"]["objects"] == 1


def test_it_gives_up_after_its_timeout_where_nothing_answers_and_says_what_to_change() -> None:
    done = run("scaler_top", "tcp://127.0.0.1:1", "--once", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no scheduler answers at tcp://127.0.0.1:1" in done.stderr
    assert "give the monitor address" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_schedulers_own_address_is_refused_in_one_line(tmp_path: Path) -> None:
    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=tmp_path) as scheduler:
        done = run("scaler_top", scheduler.addresses()["scheduler"], "--once")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1


def test_without_a_terminal_a_screen_is_a_mistake_of_usage() -> None:
    done = run("scaler_top", "tcp://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--once prints plain text" in done.stderr


def test_a_reader_that_has_read_enough_is_no_error(tmp_path: Path) -> None:
    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=tmp_path) as scheduler:
        told = Path(__file__).parents[2]
        line = f"{sys.executable} -m scaler.cli scaler_top {scheduler.addresses()['monitor']} --once | true"
        done = subprocess.run(
            ["/bin/sh", "-c", line], capture_output=True, text=True, timeout=30, cwd=told, check=False
        )
    assert done.stderr == ""


def test_the_screen_says_that_the_scheduler_is_lost_and_goes_on_with_the_next_one(tmp_path: Path) -> None:
    async def story(first: Command, address: str) -> None:
        connection = MonitorConnection(address)
        try:
            await connection.ready()
            app = TopApp(connection)
            async with app.run_test(size=(160, 30)) as pilot, asyncio.timeout(WAIT_SECONDS):
                before = connection.model.status.at
                first.stop()
                while "no scheduler answers" not in str(app.query_one("#state", Static).content):
                    await pilot.pause(0.02)
                with command("scaler_scheduler", "tcp://127.0.0.1:0", "-ma", address, directory=tmp_path) as second:
                    await asyncio.to_thread(second.addresses)
                    while not connection.connected or connection.model.status.at < before:
                        await pilot.pause(0.02)
                    while "no scheduler answers" in str(app.query_one("#state", Static).content):
                        await pilot.pause(0.02)
        finally:
            connection.close()

    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=tmp_path) as first:
        asyncio.run(story(first, first.addresses()["monitor"]))


def test_the_screen_of_a_worker_explains_a_task_and_shows_what_it_printed(tmp_path: Path) -> None:
    async def story(address: str, task: str) -> None:
        connection = MonitorConnection(address)
        try:
            await connection.ready()
            app = TopApp(connection)
            async with app.run_test(size=(80, 24)) as pilot, asyncio.timeout(WAIT_SECONDS):

                async def until_it_says(*texts: str) -> None:
                    while not all(text in str(app.screen.query_one("#text", Static).content) for text in texts):
                        await pilot.pause(0.02)

                while not app.query_one("#workers", Lines).texts or not connection.model.tasks():
                    await pilot.pause(0.02)
                await pilot.press("enter")
                while app.screen.query_one("#tasks", Lines).key != task:  # the latest is the first, and chosen
                    await pilot.pause(0.02)
                await pilot.press("e")
                await until_it_says(f"task {task}: it raised ValueError: too small")
                await pilot.press("o")
                await until_it_says(f"task {task}: --- stdout\nvalue -7\\x1b[2J")
        finally:
            connection.close()

    with a_cluster(tmp_path) as (_, places), Client(address=places["scheduler"]) as client:
        assert client.submit(report, 7).result() == 7
        failed = client.submit(report, -7)
        assert isinstance(failed.exception(), ValueError)
        asyncio.run(story(places["monitor"], failed.task_id.hex()))
