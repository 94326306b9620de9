"""Process state changed by a task: the next task sees the original state."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo

ALARM_SECONDS = 0.3
"""Time until the alarm left by a task rings."""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with SchedulerClusterCombo(n_workers=1) as cluster, Client(cluster.get_address()) as client:
        yield client


def state() -> object:
    """Return everything that is restored."""
    import locale  # noqa: PLC0415 (a task's own)
    import socket  # noqa: PLC0415
    import warnings  # noqa: PLC0415

    umask = os.umask(0)
    os.umask(umask)
    handlers = [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)]
    streams = [str(Path(f"/proc/self/fd/{number}").readlink()) for number in range(3)]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    timer = signal.getitimer(signal.ITIMER_REAL)
    print("printed", flush=True)
    limits = sys.getrecursionlimit(), socket.getdefaulttimeout()
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    variables = {name: value for name, value in os.environ.items() if name != "LINES"}
    filters = [each[:1] for each in warnings.filters]
    place = locale.setlocale(locale.LC_ALL), Path.cwd()
    signals = handlers, blocked, timer, wakeup
    return os.getpid(), umask, signals, streams, limits, variables, filters, place


def close_stdout() -> None:
    sys.stdout.close()


def replace_streams() -> None:
    import io  # noqa: PLC0415 (a task's own)

    sys.stdout = sys.stderr = io.StringIO()
    sys.stdin = None


def close_descriptors() -> None:
    for number in range(3):
        os.close(number)
    open("/dev/zero")  # noqa: PTH123, SIM115 (its descriptor is 0 now)


def move() -> None:
    import tempfile  # noqa: PLC0415 (a task's own)

    place = tempfile.mkdtemp()
    os.chdir("/")
    os.chdir(place)
    os.rmdir(place)  # noqa: PTH106 (the shortest way)
    os.umask(0o777)


def change_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR2})
    signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS)


def leave_an_event_loop_open() -> None:
    import asyncio  # noqa: PLC0415 (a task's own)

    loop = asyncio.new_event_loop()
    loop.add_signal_handler(signal.SIGUSR1, print)
    builtins.loop = loop  # type: ignore[attr-defined]


def change_environment() -> None:
    os.environ["NEW"] = "1"
    os.environ["HOME"] = "/elsewhere"
    os.environ.pop("PATH")
    sys.setrecursionlimit(77_777)


def change_libraries() -> None:
    import locale  # noqa: PLC0415 (a task's own)
    import socket  # noqa: PLC0415
    import warnings  # noqa: PLC0415

    locale.setlocale(locale.LC_ALL, "C")
    warnings.simplefilter("error")
    socket.setdefaulttimeout(0.5)


def change_and_raise() -> None:
    change_environment()
    raise ValueError("as a task may")


HARMS = (
    close_stdout,
    replace_streams,
    close_descriptors,
    move,
    change_signals,
    leave_an_event_loop_open,
    change_environment,
    change_libraries,
    change_and_raise,
)
HARMS_OF_STREAMS = close_stdout, replace_streams, close_descriptors


@pytest.mark.parametrize("harm", HARMS, ids=[each.__name__ for each in HARMS])
def test_next_task_sees_the_same_state_as_the_first(client: Client, harm: Callable[[], None]) -> None:
    before = client.submit(state).result(20)
    # A task with streamed output has other streams.
    for stream_output in (False, True) if harm in HARMS_OF_STREAMS else (False,):
        error = client.options(stream_output=stream_output, retries=0).submit(harm).exception(20)
        assert error is None or isinstance(error, ValueError)
        if harm is change_signals:
            client.submit(time.sleep, 2 * ALARM_SECONDS).result(20)
        future = client.submit(state)
        assert future.result(20) == before
        assert client.logs(future).stdout == "printed\n"


def test_changes_made_by_a_module_import_are_kept(client: Client) -> None:
    def load() -> None:
        import importlib.util  # noqa: PLC0415 (a task's own)
        import tempfile  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        with tempfile.TemporaryDirectory() as place:
            Path(place, "sets_a_variable.py").write_text("import os; os.environ['SET_BY_IMPORT'] = '1'")
            sys.path.insert(0, place)
            importlib.import_module("sets_a_variable")
            sys.path.remove(place)

    client.submit(load).result(20)
    assert client.submit(os.getenv, "SET_BY_IMPORT").result(20) == "1"
