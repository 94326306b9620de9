"""A server takes over an address from an exiting server, but not from a running one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scaler.errors import UsageError
from scaler.net import zmq_listener
from scaler.processes import PARENT_PID_VARIABLE
from tests.integration.net_rig import Servant

PROGRAM = (
    "import socket, sys\n"
    "server = socket.create_server(('127.0.0.1', 0))\n"
    "print(server.getsockname()[1], flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def listening(parent: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the address of a process that names this process as its parent, and exits with its input."""
    environment = {**os.environ, PARENT_PID_VARIABLE: str(parent)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"tcp://127.0.0.1:{int(process.stdout.readline())}", process
        process.communicate()


def listen(address: str) -> str:
    async def main() -> str:
        servant = Servant(address)
        try:
            return servant.address
        finally:
            servant.listener.close()

    return asyncio.run(main())


def test_waits_for_the_address_of_an_orphaned_server(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    with listening(parent=1) as (address, process):

        def end(seconds: float) -> None:
            pauses.append(seconds)
            process.communicate()

        monkeypatch.setattr(time, "sleep", end)
        assert listen(address) == address
    assert pauses == [zmq_listener.BIND_PAUSE_SECONDS]


def test_address_of_another_process_is_in_use() -> None:
    with listening(parent=os.getpid()) as (address, _), pytest.raises(UsageError, match="it is in use by another"):
        listen(address)
