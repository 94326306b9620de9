"""`scaler explain`, `scaler logs`, and `scaler trace` as users type them, with scripted answers of a scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from scaler.cli import run_command
from scaler.extensions.logs.rows import LogRow
from scaler.extensions.resources import LimitRow
from scaler.extensions.sharing.rows import ShareRow
from scaler.monitor.messages import (
    Explain,
    Explained,
    FindObjects,
    FindTasks,
    MonitorEvents,
    MonitorStatus,
    ObjectsFound,
    ReadLog,
    TaskLog,
    TasksFound,
)
from scaler.monitor.tables import TABLES
from scaler.monitor.web.api import openapi
from scaler.net.connection import Identity, ListenerEvent, Opened, Received
from scaler.net.listener import SocketListener
from scaler.object_storage.server import EmbeddedStorage
from scaler.protocol.messages import Hello, Message, ReadTable, TableRead, Welcome
from scaler.scheduler.tables import rows_document

TASK = bytes(range(16))
OTHERS = (bytes([7] * 15 + [1]), bytes([7] * 15 + [2]))
SECONDS = 20.0
WATCHING = b"scaler trace: watching for SECONDS s; press Ctrl-C to write the data so far\n"
COLUMNS = ["id", "state", "function", "worker", "attempt", "ended_at", "duration_us", "lane", "started_at"]
LARGE = ["11" * 16, 80 * 2**20, "make\x1b", TASK.hex(), "alice", ["alpha", "beta"]]
WAITING = [
    {"id": "1", "function": "price", "tasks": 12, "age_seconds": 3.0, "reason": "no worker offers gpu=2"},
    {"id": "2", "function": "load\x1b", "tasks": 1, "age_seconds": 4000.0, "reason": "all workers that fit are busy"},
]
SPENDING = {"hour": 1.5, "day": 8.0, "run": 8.0, "run_limit": 10.0, "per_hour": 2.0, "forecast": 0.25, "today": 4.0}
SHARE = ShareRow("desk", "alice", "", 3.0, 0, 2.67, 3, 312, 8.6)
LINES = [
    LogRow(2, 1_790_000_001.0, "ERROR", "cloud-2", "22" * 8, "the disk is full\x1b", "agent"),
    LogRow(1, 1_790_000_000.0, "WARNING", "cloud-1", "11" * 8, "a task printed too much", "agent"),
]
STATUS = json.dumps(
    {
        "version": 1,
        "at": 1000.0,
        "incarnation": 1,
        "workers": [{"id": "a", "name": "w1"}],
        "waiting": WAITING,
        "totals": {"waiting": 3},
        "spending": {**SPENDING, "next_limit": "run", "limit_seconds": 3600.0},
    }
).encode()
EVENTS = json.dumps(
    {
        "version": 1,
        "at": 1000.0,
        "tasks": {"columns": COLUMNS, "rows": [[TASK.hex(), "done", "work", "w1", 1, 999.0, 500_000, 1, 998.5]]},
    }
).encode()


class Teller:
    """The monitor port of a scheduler with scripted answers."""

    def __init__(self, log: TaskLog, events: bytes) -> None:
        self._log = log
        self._events = events
        self.asked: list[Message] = []
        self._listener = SocketListener(
            ["tcp://127.0.0.1:0"],
            server_kind="scheduler",
            admit=self._admit,
            on_events=self._on_events,
            has_local_listener=True,
        )
        self.address = self._listener.addresses[0]
        self.close = self._listener.close

    def _admit(self, _peer: bytes, _hello: Hello, _identity: Identity) -> Welcome:
        return Welcome(False, 1, lease_seconds=60.0, heartbeat_seconds=2.0, tables="audit limits logs shares")

    def _on_events(self, arrived: list[ListenerEvent]) -> None:
        for event in arrived:
            match event:
                case Opened(peer=peer):
                    self._listener.send(peer, MonitorStatus(STATUS))
                    past = MonitorEvents(self._events)  # may arrive some time after the status
                    asyncio.get_running_loop().call_later(0.05, self._listener.send, peer, past)
                case Received(peer=peer, message=Explain(task) as question):
                    self.asked.append(question)
                    self._listener.send(peer, Explained(task, "no worker offers gpu=2\x1b[31m", number=question.number))
                case Received(peer=peer, message=FindTasks(search, number=number)):
                    rows = [
                        [task.hex(), "ready", "work\x1b"] for task in (TASK, *OTHERS) if task.hex().startswith(search)
                    ]
                    table = {"columns": ["id", "state", "function"], "rows": rows}
                    self._listener.send(peer, TasksFound(search, json.dumps(table).encode(), number=number))
                case Received(peer=peer, message=FindObjects(named, most, number=number)):
                    found = json.dumps([LARGE, ["22" * 16, 2**20, "", "", "bob", ["object storage"]]][:most])
                    self._listener.send(peer, ObjectsFound(named, most, found.encode(), number=number))
                case Received(peer=peer, message=ReadTable(number=number, table=table)):
                    tables: dict[str, list[NamedTuple]] = {"shares": [SHARE], "limits": [LimitRow("db")]}
                    told = tables.get(table, [*LINES])
                    self._listener.send(peer, TableRead(rows_document(told), number=number))
                case Received(peer=peer, message=ReadLog() as question):
                    self.asked.append(question)
                    self._listener.send(peer, replace(self._log, number=question.number))
                case _:
                    pass


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@contextlib.contextmanager
def telling(log: TaskLog, events: bytes) -> Iterator[str]:
    """Run a scripted scheduler in a separate thread; yield its address."""
    with asyncio.Runner() as runner:
        tellers: queue.SimpleQueue[Teller] = queue.SimpleQueue()
        stop = asyncio.Event()

        async def main() -> None:
            teller = Teller(log, events)
            tellers.put(teller)
            await stop.wait()
            teller.close()

        thread = threading.Thread(target=runner.run, args=(main(),))
        thread.start()
        try:
            yield tellers.get(timeout=SECONDS).address
        finally:
            runner.get_loop().call_soon_threadsafe(stop.set)
            thread.join()


def ask(*arguments: str, log: TaskLog | None = None, events: bytes = EVENTS, folder: Path = Path()) -> Done:
    """Run `scaler` with arguments, in which ADDRESS is replaced by a scheduler's address."""
    with (
        telling(log or TaskLog(TASK, b"", b"", 0), events) as address,
        contextlib.chdir(folder),
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        patch.setenv("SCALER_TOP_MONITOR_ADDRESS", address)
        try:
            code = run_command("scaler", [address if text == "ADDRESS" else text for text in arguments])
        except SystemExit as end:  # after --help
            code = end.code or 0  # type: ignore[assignment]
    return Done(code, out.getvalue(), err.getvalue())


def test_worker_logs_without_a_task_are_printed_newest_last() -> None:
    for arguments in (["ADDRESS"], []):
        done = ask("logs", *arguments)
        assert (done.code, done.err) == (0, "")
        assert [line.partition(" ")[2] for line in done.out.splitlines()] == [
            "WARNING cloud-1: a task printed too much",
            "ERROR cloud-2: the disk is full\\x1b",
        ]


def test_table_of_waiting_tasks_is_printed_without_a_task() -> None:
    for arguments in (["ADDRESS"], [], ["--monitor-address", "ADDRESS"]):
        assert ask("explain", *arguments).out == ask("show", "waiting", "ADDRESS").out


def test_task_is_named_by_id_prefix_and_ambiguous_ones_are_listed() -> None:
    assert ask("explain", TASK.hex()[:8], "ADDRESS") == Done(0, "no worker offers gpu=2\\x1b[31m\n", "")
    log = TaskLog(TASK, b"one\n", b"", 0)
    assert ask("logs", TASK.hex()[:8], "ADDRESS", log=log) == Done(0, "one\n", "")
    done = ask("explain", OTHERS[0].hex()[:30], "ADDRESS")
    listed = "".join(f"{task.hex()} ready     work\\x1b\n" for task in OTHERS)
    said = f"scaler explain: 2 tasks match '{OTHERS[0].hex()[:30]}': use a full id\n"
    assert done == Done(2, listed, said)


def test_task_output_arrives_on_its_original_streams() -> None:
    log = TaskLog(TASK, b"one\ttwo\n\x1b]0;title\x07\xff\n", b"careful", 1234)
    assert ask("logs", TASK.hex(), "ADDRESS", log=log) == Done(
        0, "one\ttwo\n\\x1b]0;title\\x07\\xff\n", "careful\nscaler logs: 1,234 B omitted\n"
    )


def test_task_without_output_is_explained_instead() -> None:
    done = ask("logs", TASK.hex(), "ADDRESS")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("scaler logs: no stored output of this task: no worker offers gpu=2")


def test_largest_objects_are_listed_with_origin_and_holders() -> None:
    done = ask("objects", "ADDRESS")
    head, first, second = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert head.split() == ["object", "size", "function", "task", "client", "held", "by"]
    assert first.split() == ["11" * 16, "80.0m", "make\\x1b", TASK.hex(), "alice", "alpha,", "beta"]
    assert second.split() == ["22" * 16, "1.0m", "bob", "object", "storage"]
    told = ask("objects", "ADDRESS", "--json", "--limit", "1").out
    assert json.loads(told) == dict(
        zip(("id", "size_bytes", "function", "task", "client", "holders"), [*LARGE[:5], "alpha, beta"], strict=True)
    )


def test_every_table_is_available_as_text_and_as_api_objects() -> None:
    listed = ask("show").out.splitlines()
    assert [line.split()[0] for line in listed] == [*TABLES]
    columns = openapi()["components"]["schemas"]
    for name in TABLES:
        text, told = ask("show", name, "ADDRESS"), ask("show", name, "ADDRESS", "--json")
        assert (text.code, text.err, told.code, told.err) == (0, "", 0, "")
        rows = [json.loads(line) for line in told.out.splitlines()]
        schema = columns[f"{name.capitalize()}Answer"]["properties"][name]["items"]["$ref"].rpartition("/")[2]
        assert all(row.keys() == columns[schema]["properties"].keys() for row in rows if name != "audit")
    assert ask("show", "waiting", "ADDRESS").out.splitlines()[1].split(maxsplit=4)[4] == "no worker offers gpu=2"
    assert json.loads(ask("show", "tasks", "ADDRESS", "--json", "--state", "done").out)["id"] == TASK.hex()
    assert ask("show", "tasks", "ADDRESS", "--json", "--state", "failed").out == ""
    assert ask("show", "--json", "tasks", "ADDRESS").out == ask("show", "tasks", "ADDRESS", "--json").out


def test_costs_are_listed_with_the_next_limit() -> None:
    done = ask("costs", "ADDRESS")
    assert (done.code, done.err) == (0, "")
    head, row = done.out.splitlines()
    assert head.split()[:3] == ["per", "hour", "kept/hour"]
    assert row.split() == [
        "2.00",
        "0.0000",
        "1.50",
        "8.00",
        "4.00",
        "8.00",
        "0.2500",
        "0.0000",
        "0.0000",
        "10.00",
        "run",
        "1h00m",
    ]
    assert json.loads(ask("costs", "ADDRESS", "--json").out)["run_limit"] == 10.0


def test_timeline_is_written_to_a_file_or_stdout(tmp_path: Path) -> None:
    done = ask("trace", "out.json", "ADDRESS", folder=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("wrote 1 task to out.json: open it in https://ui.perfetto.dev")
    written = json.loads((tmp_path / "out.json").read_text())
    (event,) = (each for each in written["traceEvents"] if each["ph"] == "X")
    assert (event["name"], event["dur"]) == ("work", 500_000)
    assert json.loads(ask("trace", "-", "ADDRESS").out) == written


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trace", "tcp://127.0.0.1:1"], "'tcp://127.0.0.1:1' is an address: scaler trace FILE tcp://"),
        (["logs", "abc", "ADDRESS"], "no known task has an id that starts with 'abc'"),
        (["logs", TASK.hex(), "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], "unexpected argument 'tcp://127.0.0.1:2'"),
        (["trace", "/nowhere/x.json", "ADDRESS"], "cannot write '/nowhere/x.json': No such file or directory"),
        (["trace", "x", "ADDRESS", "--seconds", "long"], "--seconds"),
        (["objects", "ADDRESS", "--limit", "0"], "limit = 0: must be a whole number from 1 to 1000"),
        (["explain", TASK.hex(), "--monitor-addres", "x"], "did you mean"),
        (["show", "worker", "ADDRESS"], "there is no table 'worker'; tables: workers, managers, clients"),
        (["show", "tasks", "ADDRESS", "--limit", "many"], "limit = 'many': must be a whole number"),
    ],
)
def test_usage_error_is_one_line_with_exit_code_2(arguments: list[str], said: str) -> None:
    done = ask(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_address_of_another_service_exits_with_1_and_names_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(EmbeddedStorage("tcp://127.0.0.1:0")) as storage:
        assert run_command("scaler", ["explain", TASK.hex(), storage.address, "-t", "60"]) == 1
    said = capsys.readouterr().err
    assert "this is an object storage's address" in said
    assert "use the monitor address, which the scheduler prints at startup" in said


def test_monitor_address_is_read_from_a_cluster_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text('[scheduler]\nbind_address = "tcp://0.0.0.0:1"\n[top]\ntimeout_seconds = 0.1\n')
    assert run_command("scaler", ["explain", TASK.hex(), "-c", str(tmp_path / "c.toml")]) == 1
    assert "tcp://127.0.0.1:3 " in capsys.readouterr().err


def test_ctrl_c_ends_watching_and_writes_the_trace(tmp_path: Path) -> None:
    with telling(TaskLog(TASK, b"", b"", 0), EVENTS) as address:
        line = [sys.executable, "-m", "scaler.cli", "scaler", "trace", "out.json", address, "--seconds", "600"]
        with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == WATCHING.replace(b"SECONDS", b"600")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, b"")
    assert (tmp_path / "out.json").exists()
