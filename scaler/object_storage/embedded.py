"""An object storage inside another process: in a thread of its own, with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from scaler.config.machine import default_memory_limit_bytes
from scaler.object_storage.server import StorageServer


class EmbeddedStorage:
    """Runs from its construction until `close`.

    memory_limit_bytes: half of the machine's memory unless given. Raises UsageError when the address
    cannot be bound. io_threads: see `ZmqListener`.
    """

    def __init__(
        self,
        bind_address: str,
        memory_limit_bytes: int | None = None,
        max_object_bytes: int = -1,
        *,
        io_threads: int = 1,
    ) -> None:
        limit_bytes = default_memory_limit_bytes() if memory_limit_bytes is None else memory_limit_bytes
        bound: Future[str] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_closed = False

        async def main() -> None:
            try:
                server = StorageServer.bound(bind_address, limit_bytes, max_object_bytes, io_threads=io_threads)
            except BaseException as error:  # noqa: BLE001 (raised where the storage is made)
                bound.set_exception(error)
                return
            bound.set_result(server.addresses[0])
            await self._stop.wait()
            server.close()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(main())

        self._thread = threading.Thread(target=run, name="object storage", daemon=True)
        self._thread.start()
        try:
            self._address = bound.result()
        except BaseException:
            self._thread.join()
            raise

    @property
    def address(self) -> str:
        """Where it listens: a port 0 is replaced by the real one."""
        return self._address

    def close(self) -> None:
        """End it and let go of all objects. Harmless when repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
