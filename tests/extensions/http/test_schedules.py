"""Schedules on a real cluster, with a clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from scaler import SchedulerClusterCombo
from scaler.config.load import Sources, model_of, read_file, resolve
from scaler.errors import ConfigError, RefusedError, UnreachableError
from scaler.extensions.asynchronous.client import AsyncClient
from scaler.extensions.http.keys import ClientKey
from scaler.extensions.http.schedules import ScheduleRunner, _runs
from scaler.extensions.http.settings import HttpConfig, Schedule, schedules_of
from scaler.monitor.messages import UNFINISHED
from scaler.net.access import Access
from scaler.protocol.messages import Outcome
from tests.waiting import soon

pytestmark = pytest.mark.timeout(60)
SECONDS = 20
FUNCTIONS = "tests.extensions.http.test_schedules"


def noted(path: str, value: int = 0) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{value}\n")


def note_and_fail(path: str) -> None:
    noted(path)
    raise ValueError(path)


async def wait_for(path: str) -> None:
    await soon(Path(path).exists, SECONDS)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 30, 2, 59, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class Rig:
    """Servers with one schedule each, whose names no other test uses."""

    def __init__(self, address: str, **settings: Any) -> None:
        self.clock = Clock()
        self.config = HttpConfig(scheduler_address=address)
        name = f"s{uuid4().hex[:8]}"
        given = {"name": name, "cron": "0 3 * * *", "call": f"{FUNCTIONS}:noted", **settings}
        self.given = given
        self.schedule = model_of(Schedule, given)
        self.keys: list[ClientKey] = []

    def server(self) -> ScheduleRunner:
        self.keys.append(ClientKey("test", "", self.config, Access()))
        return ScheduleRunner(self.schedule, self.keys[-1], self.clock)

    async def runs(self) -> list[tuple[str, bool]]:
        """Return the time of each run, and whether it has ended."""
        rows = await (await self.keys[0].client("")).ask(_runs)
        own = [row for row in rows if row.key.startswith(self.schedule.name)]
        return [(row.key.rpartition("-")[2], row.outcome != UNFINISHED) for row in own]

    async def ended(self) -> list[tuple[str, bool]]:
        async def all_ended() -> list[tuple[str, bool]]:
            found = await self.runs()
            return found if all(has_ended for _, has_ended in found) else []

        found: list[tuple[str, bool]] = await soon(all_ended, SECONDS)
        return found


@asynccontextmanager
async def rig_of(cluster: SchedulerClusterCombo, **settings: Any) -> AsyncIterator[Rig]:
    rig = Rig(cluster.get_address(), **settings)
    try:
        yield rig
    finally:
        for key in rig.keys:
            await key.close()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_call_runs_at_its_time_with_its_arguments(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig_of(cluster, args=[f"{tmp_path}/notes"], kwargs={"value": 7}) as rig:
            server = rig.server()
            assert await server.step() == 30.0
            rig.clock.now += timedelta(seconds=50)
            assert await server.step() == 10.0
            assert await rig.runs() == []
            rig.clock.now += timedelta(seconds=10.5)
            await server.step()
            assert await rig.ended() == [("20261130T0300Z", True)]
            assert (tmp_path / "notes").read_text() == "7\n"
            assert server.view["next"] == datetime(2026, 12, 1, 3, tzinfo=UTC).timestamp()

    run(main)


def test_one_run_starts_although_several_servers_have_the_schedule(
    cluster: SchedulerClusterCombo, tmp_path: Path
) -> None:
    async def main() -> None:
        async with rig_of(cluster, args=[f"{tmp_path}/notes"]) as rig:
            servers = [rig.server() for _ in range(4)]
            for each in servers:
                await each.step()
            rig.clock.now += timedelta(minutes=1)

            async def takes_turn(server: ScheduleRunner) -> bool:
                with suppress(RefusedError):  # another server has the session
                    await server.step()
                return server.last == rig.clock.now

            await asyncio.gather(*(soon(partial(takes_turn, each), SECONDS) for each in servers))
            assert await rig.ended() == [("20261130T0300Z", True)]
            assert (tmp_path / "notes").read_text() == "0\n"

    run(main)


def test_schedules_of_one_server_with_the_same_time_take_turns(
    cluster: SchedulerClusterCombo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_one, running = ScheduleRunner.run, asyncio.Lock()

    async def run_alone(runner: ScheduleRunner, due: datetime) -> None:
        assert not running.locked()
        async with running:
            await run_one(runner, due)

    monkeypatch.setattr(ScheduleRunner, "run", run_alone)

    async def main() -> None:
        async with rig_of(cluster, args=[f"{tmp_path}/notes"]) as rig:
            first = rig.server()
            named = [model_of(Schedule, {**rig.given, "name": f"{rig.schedule.name}{number}"}) for number in range(8)]
            servers = [first, *(ScheduleRunner(each, rig.keys[0], rig.clock) for each in named)]
            for each in servers:
                await each.step()
            rig.clock.now += timedelta(minutes=1)
            await asyncio.gather(*(each.step() for each in servers))
            assert len(await rig.ended()) == len(servers)

    run(main)


def test_run_succeeds_with_a_result_that_json_lacks(cluster: SchedulerClusterCombo) -> None:
    async def main() -> None:
        async with rig_of(cluster, call="datetime:datetime.now") as rig:
            server = rig.server()
            await server.step()
            rig.clock.now += timedelta(minutes=1)
            await server.step()
            await rig.ended()
            rows = await (await rig.keys[0].client("")).ask(_runs)
            assert [row.outcome for row in rows if row.key.startswith(rig.schedule.name)] == [Outcome.SUCCESS]

    run(main)


def test_new_server_runs_the_last_of_the_missed_times_once(
    cluster: SchedulerClusterCombo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with rig_of(cluster, args=[f"{tmp_path}/notes"]) as rig:
            before = rig.server()
            await before.step()
            rig.clock.now += timedelta(minutes=2)
            await before.step()
            await rig.ended()
            rig.clock.now += timedelta(days=3)
            for server in (rig.server(), rig.server()):
                await server.step()
            assert sorted(await rig.ended()) == [("20261130T0300Z", True), ("20261203T0300Z", True)]
            assert "missed runs after 2026-11-30 03:00:00+00:00; starting the last" in caplog.text

    run(main)


def test_missed_time_can_be_skipped(
    cluster: SchedulerClusterCombo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with rig_of(cluster, args=[f"{tmp_path}/notes"], missed="skip") as rig:
            server = rig.server()
            await server.step()
            rig.clock.now += timedelta(hours=5)
            await server.step()
            assert await rig.runs() == []
            assert "skipped the missed run of 2026-11-30 03:00:00+00:00" in caplog.text

    run(main)


def test_run_is_skipped_while_an_earlier_one_has_not_ended(
    cluster: SchedulerClusterCombo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with rig_of(cluster, call=f"{FUNCTIONS}:wait_for", args=[f"{tmp_path}/go"]) as rig:
            server = rig.server()
            await server.step()
            rig.clock.now += timedelta(minutes=1)
            await server.step()
            rig.clock.now += timedelta(days=1)
            await rig.server().step()
            assert await rig.runs() == [("20261130T0300Z", False)]
            assert "20261130T0300Z is still running" in caplog.text
            (tmp_path / "go").touch()
            await rig.ended()
            rig.clock.now += timedelta(days=1)
            await server.step()
            assert sorted(await rig.ended()) == [("20261130T0300Z", True), ("20261202T0300Z", True)]

    run(main)


def test_failed_run_is_not_repeated(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig_of(cluster, call=f"{FUNCTIONS}:note_and_fail", args=[f"{tmp_path}/notes"]) as rig:
            servers = rig.server(), rig.server()
            for each in servers:
                await each.step()
            rig.clock.now += timedelta(minutes=1)
            await servers[0].step()
            await rig.ended()
            await servers[1].step()
            assert await rig.ended() == [("20261130T0300Z", True)]
            assert (tmp_path / "notes").read_text() == "0\n"

    run(main)


@pytest.mark.parametrize("error", [timedelta(days=4000), -timedelta(days=4000)], ids=["future", "past"])
def test_schedule_continues_after_a_wrong_clock_is_set(
    cluster: SchedulerClusterCombo, tmp_path: Path, error: timedelta
) -> None:
    async def main() -> None:
        async with rig_of(cluster, args=[f"{tmp_path}/notes"], cron="* * * * *") as rig:
            server, right = rig.server(), rig.clock.now
            rig.clock.now += error
            await server.step()
            rig.clock.now += timedelta(minutes=1)
            await server.step()
            await rig.ended()
            for each in (server, rig.server()):
                rig.clock.now = right
                await each.step()
                before = len(await rig.ended())
                rig.clock.now += timedelta(minutes=1)
                await each.step()
                assert len(await rig.ended()) == before + 1
                right += timedelta(minutes=10)

    run(main)


def test_clock_that_goes_back_a_little_repeats_no_run(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig_of(cluster, args=[f"{tmp_path}/notes"]) as rig:
            server = rig.server()
            await server.step()
            for seconds in (60, -1, 2):
                rig.clock.now += timedelta(seconds=seconds)
                await server.step()
            assert await rig.ended() == [("20261130T0300Z", True)]
            assert (tmp_path / "notes").read_text() == "0\n"

    run(main)


def test_server_waits_for_the_scheduler_and_then_continues(
    cluster: SchedulerClusterCombo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaler.extensions.http.schedules.RETRY_SECONDS", 0.01)
    connect = ClientKey.open

    async def fail(key: ClientKey, session: str) -> AsyncClient:
        monkeypatch.setattr(ClientKey, "open", connect)
        raise UnreachableError(f"no scheduler answers {key.name}{session}")

    monkeypatch.setattr(ClientKey, "open", fail)

    async def main() -> None:
        async with rig_of(cluster) as rig:
            server = rig.server()
            following = asyncio.create_task(server.follow())
            await soon(lambda: server.last is not None, SECONDS)
            following.cancel()
            assert "waits: no scheduler answers" in caplog.text

    run(main)


def test_flag_and_variable_contain_a_table_as_json() -> None:
    text = '{"name": "nightly", "cron": "0 3 * * *", "call": "jobs:nightly"}'
    given = Sources({"scheduler_address": "tcp://h:1", "schedule": [text]})
    of_variable = Sources({"scheduler_address": "tcp://h:1"}, {"SCALER_HTTP_SCHEDULE": text})
    for sources in (given, of_variable):
        assert [each.name for each in schedules_of(resolve(HttpConfig, sources))] == ["nightly"]
    with pytest.raises(ConfigError, match=r"--schedule = .*must be a table as JSON"):
        resolve(HttpConfig, Sources({"scheduler_address": "tcp://h:1", "schedule": ["nightly"]}))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"name": "a b"}, "must be up to 64 letters"),
        ({"cron": "0 25 * * *"}, "Bad hour; write minute, hour, day of month, month, and day of week"),
        ({"cron": "0 0 3 * * *"}, "Wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"call": "print"}, "must be module:function"),
        ({"timezone": "Mars/Base"}, "'Mars/Base' is not a known time zone"),
        ({"missed": "all"}, "'run' or 'skip'"),
        ({"evry": 1}, "unknown key 'evry'"),
        ({"args": 3}, "args"),
    ],
)
def test_invalid_schedule_error_names_the_key(wrong: dict[str, Any], reason: str) -> None:
    table = {"name": "nightly", "cron": "0 3 * * *", "call": "jobs:nightly", **wrong}
    with pytest.raises(ConfigError, match=f"schedule {table['name']}: .*{reason}"):
        HttpConfig(scheduler_address="tcp://h:1", schedule=(table,))


def test_same_name_twice_is_an_error() -> None:
    table = {"name": "nightly", "cron": "0 0 * * *", "call": "jobs:nightly"}
    with pytest.raises(ValueError, match="two schedules have the same name"):
        HttpConfig(scheduler_address="tcp://h:1", schedule=(table, table))


def test_schedule_in_single_brackets_is_one_schedule(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[http]\nallowed = ["math:*"]\n[schedule]\nname = "nightly"\n')
    assert read_file(str(file)).tables["http"].values["schedule"] == [{"name": "nightly"}]


def test_unknown_section_is_compared_with_those_of_processes(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("[shedule]\n")
    with pytest.raises(ConfigError, match=r"unknown section \[shedule\]; did you mean 'schedule'"):
        read_file(str(file))
