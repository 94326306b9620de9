"""A cluster whose connections pass through recording proxies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.integration.settings_rig import command


class Proxy:
    """Forwards every connection to a server, and records all bytes in both directions."""

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
            with closing(back):
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


class Recorded(NamedTuple):
    """A cluster with one worker. Clients and the worker reach the servers only through the proxies."""

    scheduler: Proxy
    storage: Proxy

    @property
    def address(self) -> str:
        return self.scheduler.address


@contextmanager
def recorded_cluster(
    home: Path, *, scheduler: Sequence[str], storage: Sequence[str], workers: Sequence[str]
) -> Iterator[Recorded]:
    """Start a scheduler, an object storage, and workers with these flags."""
    found = Recorded(Proxy(), Proxy())
    try:
        with command("scaler_object_storage_server", "tcp://127.0.0.1:0", *storage, directory=home) as objects:
            found.storage.point_to(objects.addresses()["object storage"])
            # Neither proxy's address has a local listener, so all connections use TCP.
            ports = ["tcp://127.0.0.1:0", "--monitor-address", "tcp://127.0.0.1:0", "-osa", found.storage.address]
            with command("scaler_scheduler", *ports, *scheduler, directory=home) as server:
                found.scheduler.point_to(server.addresses()["scheduler"])
                with command("scaler_cluster", found.address, "-n", "1", *workers, directory=home):
                    yield found
    finally:
        found.scheduler.close()
        found.storage.close()
