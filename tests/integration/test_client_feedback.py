"""Output on stderr for a user without logging: separate programs, compared as text."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaler import SchedulerClusterCombo
from tests.integration.client_rig import RigScheduler

SECONDS = 60


def written(directory: Path, text: str) -> Path:
    program = directory / "program.py"
    program.write_text(textwrap.dedent(text).lstrip())
    return program


def run(directory: Path, text: str, *arguments: str) -> str:
    """Run a program, and return its stderr."""
    command = [sys.executable, str(written(directory, text)), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return ended.stderr.replace(str(directory), "DIR")


@contextmanager
def started(directory: Path, text: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program that exits with its stdin, and check that it writes nothing more on stderr."""
    command = [sys.executable, str(written(directory, text)), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1) as program:
        try:
            yield program
            assert program.communicate(timeout=SECONDS)[1] == ""
        finally:
            program.kill()


def test_unsatisfiable_requirement_is_printed_once_on_stderr(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    text = """
        import sys
        from scaler import Client

        with Client(sys.argv[1]) as client:
            for number, capability in enumerate(sys.stdin):
                gpu = client.submit_verbose(abs, (-1,), capabilities={"gpu": 4}, priority=number)
                other = client.submit_verbose(abs, (-1,), capabilities={capability.strip(): None})
            client.clear()
    """
    said = (
        "scaler: tasks that need {} wait: no worker offers {}, and no worker manager could start one that does: "
        "there is no {}. Workers offer: none. "
        "Request less in capabilities=..., or start workers with --per-worker-capabilities {}\n"
    )
    with started(tmp_path, text, cluster.get_address()) as program:
        assert program.stdin is not None
        assert program.stderr is not None
        for capability in ("linux", "tpu"):
            program.stdin.write(f"{capability}\n")
            if capability == "linux":
                assert program.stderr.readline() == said.format("gpu=4", "gpu=4", "gpu", "gpu=4")
            assert program.stderr.readline() == said.format(*[capability] * 4)


def test_program_warns_about_a_missing_scheduler_and_reports_its_answer(tmp_path: Path) -> None:
    text = """
        import sys
        from scaler import Client

        client = Client(sys.argv[1])
        client.submit(abs, -1).result()
    """
    with RigScheduler() as reserved:
        address = reserved.address
    lost = (
        rf"scaler: no scheduler answers at {address}: tried for \d s \(.*nothing listens there\); {{}}. "
        "Check that it is running, that the address is right, and that no firewall blocks it\n"
    )
    with started(tmp_path, text, address) as program:
        assert program.stderr is not None
        assert re.fullmatch(lost.format("gives up after timeout_seconds=60"), program.stderr.readline())
        with RigScheduler(address) as scheduler:
            assert re.fullmatch(rf"scaler: connected to {address}, after \d s\n", program.stderr.readline())
            scheduler.next_tasks(1)
        lost_later = program.stderr.readline()
        assert re.fullmatch(lost.format("tasks that need it fail after 300 s"), lost_later)
        with RigScheduler(address) as scheduler:
            assert re.fullmatch(rf"scaler: connected to {address}, after \d s\n", program.stderr.readline())
            for task in scheduler.next_tasks(1):
                scheduler.peer = task[:8]
                scheduler.finish({task: 1})
            program.wait(SECONDS)


def test_timeout_explains_why_the_task_has_not_ended(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    text = """
        import concurrent.futures, sys
        from scaler import Client, ScalerExecutor

        def attempt(call):
            try:
                call()
            except concurrent.futures.TimeoutError as late:
                return repr(late)

        with Client(sys.argv[1]) as client, concurrent.futures.ThreadPoolExecutor() as threads:
            one = client.submit_verbose(abs, (-1,), capabilities={"gpu": 4}, name="one")
            two = client.submit_verbose(abs, (one,), name="two")
            mapped = ScalerExecutor(client).map(abs, [two, -1], timeout=4, chunksize=2)
            calls = [lambda: one.result(4), lambda: one.exception(4), lambda: two.result(4), lambda: list(mapped)]
            for line in threads.map(attempt, calls):
                print(line, file=sys.stderr)
            client.clear()
    """
    said = run(tmp_path, text, cluster.get_address())
    why = "no worker offers gpu=4, and no worker manager could start one that does: there is no gpu"
    lines = [line for line in said.splitlines() if not line.startswith("scaler: ")]
    assert re.fullmatch(rf"TimeoutError\('one \(\w{{32}}\) has not ended: {why}'\)", lines[0])
    assert lines[1] == lines[0]
    assert re.fullmatch(r"TimeoutError\('two \(\w{32}\) has not ended: it needs .*one\(\).*'\)", lines[2])
    assert re.fullmatch(r"TimeoutError\('item 0 of map over abs has not ended: it needs .*two\(\).*'\)", lines[3])


FAILING = """
    import asyncio, sys, threading, traceback
    from scaler import Client

    def inner(x):
        return 1 / x

    def work(x):
        return inner(x)

    async def later(x):
        return inner(x)

    async def awaited(client):
        return await client.submit(work, 0)

    def items():
        yield 1
        raise KeyError("own")

    with Client(sys.argv[1]) as client:
        for call in sys.argv[2:]:
            try:
                exec(call)
            except Exception:
                traceback.print_exc()
                print("--- next call", file=sys.stderr)
"""
WORKER = """
Traceback (most recent call last):
  File "DIR/program.py", line 8, in work
    return inner(x)
  File "DIR/program.py", line 5, in inner
    return 1 / x
ZeroDivisionError: division by zero

The above exception was the direct cause of the following exception:

"""
CALLER = """Traceback (most recent call last):
  File "DIR/program.py", line 23, in <module>
    exec(call)
  File "<string>", line 1, in <module>
"""
DIVISION = "ZeroDivisionError: division by zero\n"
LINK = "\nThe above exception was the direct cause of the following exception:\n\n"


def failed(where: str = "", more: str = "") -> str:
    """Return the traceback of a call that failed in a worker, in this item or node."""
    note = f"in {where}\n" if where else ""
    return f"scaler.errors.RemoteTraceback: {where}\n{WORKER}{CALLER}{DIVISION}{note}{more}"


def refused(*lines: str) -> str:
    """Return the traceback of a call that was not sent."""
    return CALLER + "".join(f"{line}\n" for line in lines)


ITEM = "item 2 of {} over work: 0"
NO_CLUSTER = (
    "scaler.errors.UnreachableError: no cluster is named 'no-such-name'; "
    "this user runs none on this host (`scaler local` starts one)"
)
TRACEBACKS = {
    "client.submit(work, 0).result()": failed(),
    "client.map(work, [2, 1, 0])": failed(ITEM.format("map")),
    "list(client.imap(work, [2, 1, 0], chunk_size=2))": failed(ITEM.format("imap")),
    "client.get({'a': 0, 'b': (work, 'a'), 'c': (abs, 'b')}, ['c'])": failed(
        "node 'b' of the graph", "node 'c' did not run because its input node 'b' failed\n"
    ),
    "client.submit(later, 0).result()": failed().replace("line 8, in work", "line 11, in later"),
    "client.map(work, items())": refused(
        '  File "DIR/program.py", line 18, in items', '    raise KeyError("own")', "KeyError: 'own'"
    ),
    "Client('no-such-name')": refused(NO_CLUSTER),
    "client.submit(len, 5).result()": (
        "scaler.errors.RemoteTraceback: \n\n(no frames of user code: built-in code or Scaler raised it)\n"
        + LINK
        + refused("TypeError: object of type 'int' has no len()")
    ),
    "client.map(len, [[], 5], chunk_size=2)": (
        "scaler.errors.RemoteTraceback: item 1 of map over len: 5\n\n"
        "(no frames of user code: built-in code or Scaler raised it)\n"
        + LINK
        + refused("TypeError: object of type 'int' has no len()", "in item 1 of map over len: 5")
    ),
    "client.submit(abs)": refused("TypeError: abs() does not take these arguments: missing a required argument: 'x'"),
    "client.submit(work, threading.Lock())": (
        "TypeError: cannot pickle '_thread.lock' object\n"
        + LINK
        + refused(
            "scaler.errors.SerializationError: argument 1 of work (_thread.lock) cannot be serialized: "
            "TypeError: cannot pickle '_thread.lock' object"
        )
    ),
}
"""A program's stderr for each failing call: the item first, and only the user's frames."""
AWAITING = "asyncio.run(awaited(client))"


@pytest.fixture(scope="module")
def tracebacks(cluster: SchedulerClusterCombo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A program's stderr for each of the calls, without the marks below source lines."""
    calls = [*TRACEBACKS, AWAITING]
    said = run(tmp_path_factory.mktemp("failing"), FAILING, cluster.get_address(), *calls)
    *texts, rest = re.sub(r"^ +[~^]+\n", "", said, flags=re.MULTILINE).split("--- next call\n")
    assert rest == ""
    return dict(zip(calls, texts, strict=True))


@pytest.mark.parametrize("call", TRACEBACKS)
def test_traceback_starts_with_the_item_and_has_only_user_frames(tracebacks: dict[str, str], call: str) -> None:
    assert tracebacks[call] == TRACEBACKS[call]


def test_traceback_of_an_await_has_no_event_loop_frames(tracebacks: dict[str, str]) -> None:
    said = tracebacks[AWAITING]
    awaited = '  File "DIR/program.py", line 14, in awaited\n    return await client.submit(work, 0)\n'
    assert said.startswith(f"scaler.errors.RemoteTraceback: \n{WORKER}{CALLER}")
    assert said.endswith(awaited + DIVISION)
    assert "/scaler/" not in said
