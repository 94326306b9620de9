"""An object storage in a thread of another process, such as the scheduler."""

from __future__ import annotations

from scaler.config.security import SecurityConfig
from scaler.host import default_memory_limit_bytes
from scaler.net.connector import LoopThread
from scaler.net.server_access import LOCAL_SECURITY
from scaler.object_storage.server import StorageServer
from scaler.object_storage.spill import SpillSpace


class EmbeddedStorage(LoopThread[StorageServer]):
    """An object storage in a thread of this process until `close`. memory_limit_bytes: default half of the memory.

    Other arguments: see `StorageServer`, `ServerAccess`, and `SocketListener`. Raises UsageError.
    """

    def __init__(
        self,
        bind_address: str,
        memory_limit_bytes: int | None = None,
        max_object_bytes: int = -1,
        spill: SpillSpace | None = None,
        *,
        security: SecurityConfig = LOCAL_SECURITY,
        io_threads: int = 1,
        state_directory: str = "",
    ) -> None:
        limit_bytes = default_memory_limit_bytes() if memory_limit_bytes is None else memory_limit_bytes
        super().__init__(
            "object storage",
            lambda: StorageServer(
                bind_address,
                limit_bytes,
                max_object_bytes,
                spill,
                security=security,
                io_threads=io_threads,
                state_directory=state_directory,
            ),
        )
        self.address = self.value.addresses[0]
        """Where it listens: a port 0 is replaced by the real one."""
