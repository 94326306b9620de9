"""The first minute: `Client()` without an address, `scaler` without a file, and named clusters."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import UnreachableError, UsageError
from scaler.host import usable_cpus
from scaler.registry import find, running
from tests.conftest import Run, marked_processes, wait_for_end
from tests.short_forms import short_form
from tests.waiting import within

SECONDS = 30.0
STARTED = re.compile(r"scaler: started local cluster (client-\d+(?:-\d+)?) with \d+ workers?; web page (http://\S+)\n")


class Program:
    """A running user program and all its children."""

    def __init__(self, *words: str, **environment: str) -> None:
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            words,
            env={**os.environ, "TEST_RUN_OF_SCALER": self._mark, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
        )

    def started(self) -> list[psutil.Process]:
        """Return the living processes that it has started."""
        return [process for process in marked_processes(self._mark) if process.pid != self.process.pid]

    def end(self) -> tuple[int, str, str]:
        """Wait for the exit of the program and its children; return exit code, stdout, and stderr."""
        output, errors = self.process.communicate(timeout=SECONDS)
        assert not wait_for_end(self.started(), 10), errors
        return self.process.returncode, output, errors

    def close(self) -> None:
        for process in (psutil.Process(self.process.pid), *self.started()) if self.process.poll() is None else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.communicate(timeout=SECONDS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def started(text: str, **environment: str) -> Program:
        file = tmp_path / f"program{len(programs)}.py"
        file.write_text(textwrap.dedent(text))
        programs.append(Program(sys.executable, "-W", "error", str(file), **environment))
        return programs[-1]

    yield started
    for program in programs:
        program.close()


@pytest.fixture
def command() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def started(*words: str, **environment: str) -> Program:
        programs.append(Program(sys.executable, "-m", "scaler", *words, **environment))
        return programs[-1]

    yield started
    for program in programs:
        program.close()


def line_with(program: Program, text: str) -> str:
    assert program.process.stdout is not None
    return next(line for line in program.process.stdout if text in line)


# -- Client()


@pytest.mark.parametrize(
    ("ending", "code"),
    short_form(
        [
            ("client.disconnect(); client.disconnect()", 0),
            ("raise SystemError('mine')", 1),
            ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ]
    ),
)
def test_client_without_an_address_starts_a_cluster_that_ends_with_the_program(
    start: Callable[..., Program], ending: str, code: int
) -> None:
    program = start(
        f"""
        import os, signal, sys
        from scaler import Client
        client = Client()
        print(client.submit(abs, -4).result(), flush=True)
        {ending}
        """
    )
    returncode, output, errors = program.end()
    assert (returncode, output) == (code, "4\n"), errors
    assert STARTED.match(errors), errors
    if code != 1:
        assert errors.count("\n") == 1
    assert running() == []


def test_with_block_and_garbage_collection_stop_the_cluster_without_losing_results(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Client() as client:
        assert client.map(abs, [-1, -2]) == [1, 2]
        client.wait_for_workers(usable_cpus(), timeout=SECONDS)
        assert sum(row.slots for row in client.cluster().workers) == usable_cpus()
    assert running() == []
    assert Client().submit(abs, -3).result(SECONDS) == 3, "nothing refers to this client, and its task still runs"
    assert within(SECONDS, lambda: running() == [])
    assert len(re.findall(STARTED, capfd.readouterr().err)) == 2


def test_failing_web_page_does_not_affect_the_cluster(start: Callable[..., Program]) -> None:
    program = start(
        """
        import psutil, signal, time
        from scaler import Client
        client = Client()
        page, = [each for each in psutil.Process().children() if each.cmdline()[-1] == "web-ui"]
        page.send_signal(signal.SIGABRT)
        while psutil.pid_exists(page.pid):
            time.sleep(0.01)  # a wait for the process would take its exit code from the client
        print(client.map(abs, [-4]))
        """
    )
    code, output, errors = program.end()
    assert (code, output) == (0, "[4]\n")
    assert "web ui has ended; the other components continue: killed by signal 6 (SIGABRT)" in errors.splitlines()[-1]


def test_program_may_be_quiet_and_lack_stderr(start: Callable[..., Program]) -> None:
    program = start("from scaler import Client\nprint(Client().submit(abs, -4).result())", SCALER_QUIET="1")
    assert program.end() == (0, "4\n", "")
    program = start(
        "import sys; sys.stderr = None\nfrom scaler import Client\nprint(Client().submit(abs, -4).result())"
    )
    assert program.end() == (0, "4\n", "")


def test_implicit_cluster_of_an_executor_ends_after_its_calls(start: Callable[..., Program]) -> None:
    program = start(
        """
        import time
        from scaler import ScalerExecutor
        executor = ScalerExecutor()
        future = executor.submit(time.sleep, 0.5)
        future.add_done_callback(lambda future: print(future.exception()))
        """
    )
    code, output, errors = program.end()
    assert (code, output) == (0, "None\n"), errors


def test_forked_children_leave_the_cluster_alone_and_may_start_one(start: Callable[..., Program]) -> None:
    program = start(
        """
        import os
        from scaler import Client
        from scaler.errors import ClientClosedError
        client = Client()
        child = os.fork()
        if child == 0:
            try:
                client.submit(abs, 1)
            except ClientClosedError:
                print("closed", flush=True)
            client.disconnect()
            own = Client()
            print(own.submit(abs, -5).result(), flush=True)
            own.disconnect()
            raise SystemExit
        assert os.waitpid(child, 0)[1] == 0
        print(client.submit(abs, -6).result())
        """
    )
    code, output, errors = program.end()
    assert (code, output) == (0, "closed\n5\n6\n"), errors
    assert len(set(re.findall(STARTED, errors))) == 2


PHASES: dict[str, Callable[[list[list[str]]], bool]] = {
    "before any process": lambda _: True,
    "with a fork server": lambda commands: len(commands) > 3,
}


@pytest.mark.parametrize("phase", short_form([*reversed(PHASES)]))
def test_interrupt_at_any_point_of_startup_ends_everything(start: Callable[..., Program], phase: str) -> None:
    program = start(
        """
        print("began", flush=True)
        from scaler import Client
        client = Client()
        client.submit(abs, 1).result()
        import signal
        signal.pause()
        """
    )
    line_with(program, "began")

    def commands() -> list[list[str]]:
        found = []
        for process in program.started():
            with contextlib.suppress(psutil.Error):
                found.append(process.cmdline())
        return found

    assert within(SECONDS, lambda: PHASES[phase](commands()))
    program.process.send_signal(signal.SIGINT)
    code, _, errors = program.end()
    assert code in (1, -signal.SIGINT), errors
    assert "KeyboardInterrupt" in errors
    assert running() == []


# -- scaler, scaler local


def test_scaler_alone_starts_a_cluster_and_prints_how_to_connect(command: Callable[..., Program]) -> None:
    program = command()
    line = line_with(program, "connect with")
    address, page = (find("local").address, find("local").page)
    assert line == f'scaler: connect with Client("local") or Client("{address}"); web page {page}\n'
    with Client("local") as client:
        assert client.submit(abs, -1).result(SECONDS) == 1
    with urllib.request.urlopen(page, timeout=SECONDS) as reply:
        assert reply.status == 200
    top = subprocess.run(
        [sys.executable, "-m", "scaler.cli", "top", "--once"], capture_output=True, text=True, check=False
    )
    assert (top.returncode, top.stderr) == (0, "")
    program.process.send_signal(signal.SIGINT)
    assert program.end()[0] == 0
    assert running() == []


def test_taken_names_and_ports_are_replaced_by_the_next_free_ones(command: Callable[..., Program]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = command("local", "-n", "1", "--name", "twice", "--port", str(port))
        line_with(first, "connect with")
        second = command("local", "-n", "1", "--name", "twice")
        assert line_with(second, "taken") == "scaler: the name twice is taken; this cluster is named twice-2\n"
        assert 'Client("twice-2")' in line_with(second, "connect with")
        assert len({find(name).page for name in ("twice", "twice-2")} | {f"http://127.0.0.1:{port}"}) == 3
    for program in (first, second):
        program.process.send_signal(signal.SIGINT)
        assert program.end()[0] == 0


def test_killed_scaler_local_leaves_nothing_behind(command: Callable[..., Program]) -> None:
    program = command("local", "-n", "1")
    line_with(program, "connect with")
    program.process.kill()
    assert program.end()[0] == -signal.SIGKILL
    assert running() == []


def scheduler_of(program: Program) -> psutil.Process:
    return next(process for process in program.started() if process.cmdline()[-1] == "scheduler")


def test_cluster_name_survives_restarts_and_is_freed_on_shutdown(command: Callable[..., Program]) -> None:
    program = command("local", "-n", "1")
    line_with(program, "connect with")
    found = find("local")
    scheduler_of(program).kill()
    line_with(program, "scheduler is ready")
    assert find("local") == found
    with Client("local") as client:
        assert client.submit(abs, -1).result(SECONDS) == 1
    scheduler_of(program).terminate()
    assert program.end()[0] == 0
    with pytest.raises(UnreachableError):
        find("local")
    assert running() == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_workers": 0}, "n_workers is 0, but must be an integer of at least 1"),
        ({"n_workers": 2, "address": "tcp://127.0.0.1:1"}, "leave out the address"),
        ({"n_workers": 2, "processes": False}, "this client starts none"),
    ],
)
def test_rejects_workers_that_a_client_cannot_start(options: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Client(**options)


# -- a running cluster: its name, SCALER_ADDRESS, and programs that leave it


@pytest.fixture(scope="module")
def named(run: Run) -> Iterator[SchedulerClusterCombo]:
    with SchedulerClusterCombo(n_workers=2, name="research", web_port=0) as combo:
        yield combo


def test_client_connects_to_a_running_cluster_by_name(
    named: SchedulerClusterCombo, capfd: pytest.CaptureFixture[str]
) -> None:
    with Client("research") as client:
        assert client.submit(abs, -1).result(SECONDS) == 1
    expected = f"scaler: connected to cluster research at {named.get_address()}; web page {named.get_page()}\n"
    assert capfd.readouterr().err == expected
    with pytest.raises(UnreachableError, match=rf"no cluster is named 'x'; .*research \({named.get_address()}\)"):
        Client("x")
    with pytest.raises(UsageError, match="write tcp://host:port"):
        Client("127.0.0.1:8516")


@pytest.mark.parametrize("by_name", short_form([True, False]))
def test_environment_names_the_cluster_of_clients_without_an_address(
    named: SchedulerClusterCombo, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], by_name: bool
) -> None:
    monkeypatch.setenv("SCALER_ADDRESS", "research" if by_name else named.get_address())
    with Client() as client:
        assert client.submit(lambda: Client().submit(abs, -2).result()).result(SECONDS) == 2, "in a task: its worker"
    cluster = "cluster research at " if by_name else ""
    expected = f"scaler: connected to {cluster}{named.get_address()}; web page {named.get_page()}\n"
    assert capfd.readouterr().err == expected
    monkeypatch.setenv("SCALER_ADDRESS", "gone")
    with pytest.raises(UnreachableError, match="SCALER_ADDRESS=gone: no cluster is named 'gone'"):
        Client()


SUBMIT = "[client.submit(time.sleep, 60) for _ in range(2)]"
ENDS = {
    "program": f"client = Client(ADDRESS, name='mine')\n{SUBMIT}",
    "error": f"client = Client(ADDRESS, name='mine')\n{SUBMIT}\n1 / 0",
    "block": f"with Client(ADDRESS, name='mine') as client: {SUBMIT}",
    "asynchronous": """
async def main():
    async with AsyncClient(ADDRESS, name='mine') as client:
        for _ in range(2):
            client.submit(time.sleep, 60)
asyncio.run(main())""",
}


@pytest.mark.parametrize("end", short_form([*ENDS], 2))
def test_program_exiting_with_unfinished_tasks_prints_one_line(
    start: Callable[..., Program], named: SchedulerClusterCombo, end: str
) -> None:
    address = named.get_address()
    head = f"import asyncio, time\nfrom scaler import AsyncClient, Client\nADDRESS = {address!r}\n"
    _, output, errors = start(head + ENDS[end]).end()
    [line] = [each for each in errors.splitlines() if each.startswith("scaler: ")]
    assert output == ""
    assert re.fullmatch(
        rf"scaler: dropped 2 unfinished tasks of client 'mine' \([0-9a-f]{{16}}\) at {address}, "
        r"starting with sleep \([0-9a-f]{32}\); wait for the futures, or use a durable session: .*",
        line,
    )
