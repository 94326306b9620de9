"""What travels between client, scheduler, object storage and worker over TCP: recorded in between, and searched."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.integration.settings_rig import command

SOURCE = "MARKED-SOURCE-5d1f"
ARGUMENT = "MARKED-ARGUMENT-77aa"
RESULT = "MARKED-RESULT-e0c3"
FAILURE = "MARKED-FAILURE-19b4"
LARGE = 2_000_000
"""Bytes of an argument or result that travels through the object storage."""

PROGRAM = f'''
def mark(argument):
    note = "{SOURCE}"
    if argument is None:
        raise ValueError("{FAILURE}"[::-1])
    return argument.replace("{ARGUMENT}"[::-1][::-1], "{RESULT[::-1]}"[::-1])
'''
"""The marks of the result and of the failure are not in the source as such."""


class Proxy:
    """Passes every connection to a server on, and records all bytes of both directions."""

    def __init__(self) -> None:
        self.recorded = bytearray()
        self.connections = 0
        self._target = ("", 0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._connected, "127.0.0.1", 0), self._loop)
        self._server = starting.result()
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def point_to(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self._target = host, int(port)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_connection(*self._target)
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        except OSError:
            pass
        finally:
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            self.recorded += data
            writer.write(data)
            await writer.drain()
        writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)

        async def end() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def proxies() -> Iterator[tuple[Proxy, Proxy]]:
    first, second = Proxy(), Proxy()
    try:
        yield first, second
    finally:
        first.close()
        second.close()


def security(home: Path, is_secure: bool) -> dict[str, list[str]]:
    """Return the flags of each kind of process."""
    if not is_secure:
        return {key: ["--insecure-no-auth"] for key in ("server", "manager", "client")}
    keys = KeysDirectory.create(home / "keys", "test")
    for role in ("client", "manager"):
        write_private(home / role, keys.add(f"the-{role}", role).to_text())
    return {
        "server": ["--credentials", str(keys.path)],
        **{role: ["--credentials", str(home / role)] for role in ("client", "manager")},
    }


def marked() -> Any:
    """Return a function that travels with its code, as those of a program do."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(PROGRAM, namespace)
    return namespace["mark"]


def found_in_transit(home: Path, is_secure: bool) -> tuple[set[str], set[str]]:
    """Run marked tasks, small and large, with a proxy before each server; return the marks that each has recorded."""
    flags = security(home, is_secure)
    with (
        proxies() as (at_scheduler, at_storage),
        command("scaler_object_storage_server", "tcp://127.0.0.1:0", *flags["server"], directory=home) as storage,
    ):
        at_storage.point_to(storage.addresses()["object storage"])
        # Neither proxy's address has a local listener, so everything goes over TCP.
        ports = ["tcp://127.0.0.1:0", "--monitor-address", "tcp://127.0.0.1:0", "-osa", at_storage.address]
        with command("scaler_scheduler", *ports, *flags["server"], directory=home) as scheduler:
            at_scheduler.point_to(scheduler.addresses()["scheduler"])
            with command("scaler_cluster", at_scheduler.address, "-n", "1", *flags["manager"], directory=home):
                credentials = flags["client"][1] if is_secure else None
                with Client(at_scheduler.address, credentials=credentials, insecure_no_auth=not is_secure) as client:
                    mark = marked()
                    assert client.submit(mark, ARGUMENT).result(30) == RESULT
                    assert client.submit(mark, ARGUMENT + "-" * LARGE).result(30) == RESULT + "-" * LARGE
                    with pytest.raises(ValueError, match=FAILURE[::-1]):
                        client.submit(mark, None).result(30)
        assert min(at_scheduler.connections, at_storage.connections) >= 2
        assert len(at_storage.recorded) > 4 * LARGE, "large values pass the proxy four times"
        marks = (SOURCE, ARGUMENT, RESULT, FAILURE[::-1])
        first, second = (
            {mark for mark in marks if mark.encode() in each.recorded} for each in (at_scheduler, at_storage)
        )
        return first, second


def test_with_keys_what_is_recorded_in_between_has_no_source_argument_result_or_failure(tmp_path: Path) -> None:
    assert found_in_transit(tmp_path, is_secure=True) == (set(), set())


def test_without_authentication_what_is_recorded_has_all_of_them(tmp_path: Path) -> None:
    at_scheduler, at_storage = found_in_transit(tmp_path, is_secure=False)
    assert at_scheduler == {SOURCE, ARGUMENT, RESULT, FAILURE[::-1]}
    assert at_storage >= {ARGUMENT, RESULT}
