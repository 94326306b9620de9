"""An object storage as a separate process, started by its command, and a client with a scheduler's rights."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scaler.net.access import Access
from scaler.net.connection import ConnectorEvent, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.object_storage.client import StorageClient
from scaler.object_storage.messages import StatStorage, StorageStatus
from scaler.protocol.messages import ForgetObjects, Role, Server

COMMAND = "import sys; from scaler.cli import object_storage_server; sys.exit(object_storage_server())"


@dataclass
class StorageProcess:
    process: subprocess.Popen[bytes]
    address: str

    def rss_bytes(self) -> int:
        resident = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(resident) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class ObservedStorage(StorageClient):
    """A client that also acts as the storage's scheduler."""

    def __init__(self, address: str, peer: bytes) -> None:
        super().__init__(address, peer, Role.CLIENT)
        self._arrived = asyncio.Queue[ConnectorEvent]()
        self._asked = 0
        hello = own_hello(Role.SCHEDULER)
        self._scheduler = SocketConnector(address, Server.OBJECT_STORAGE, Access(is_insecure=True), hello, self._heard)

    def _heard(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            self._arrived.put_nowait(event)

    def forget(self, ids: list[bytes]) -> None:
        self._scheduler.send(ForgetObjects(ids))

    async def stat(self) -> StorageStatus:
        self._asked += 1
        self._scheduler.send(StatStorage(self._asked))
        while True:
            match await self._arrived.get():
                case Received(_, StorageStatus(request=self._asked) as status):
                    return status
                case Welcomed():  # a restarted storage has lost the question
                    self._scheduler.send(StatStorage(self._asked))

    def close(self) -> None:
        self._scheduler.close()
        super().close()


@contextmanager
def storage_process(address: str = "tcp://127.0.0.1:0", *flags: str) -> Iterator[StorageProcess]:
    """Yield a ready storage. If it still runs at the end, SIGTERM must make it exit with 0."""
    readable, writable = os.pipe()
    environment = {**os.environ, "SCALER_READY_FD": str(writable)}
    arguments = [sys.executable, "-c", COMMAND, address, "--logging-paths", "/dev/null", *flags]
    process = subprocess.Popen(arguments, env=environment, pass_fds=[writable])
    os.close(writable)
    try:
        with os.fdopen(readable) as ready:
            line = ready.readline()
        assert line, "the storage ended before it was ready"
        (address,) = json.loads(line)["addresses"].values()
        yield StorageProcess(process, address)
        if process.poll() is None:
            process.terminate()
            assert process.wait(5) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
