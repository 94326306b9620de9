from __future__ import annotations

from typing import Protocol


class Rules(Protocol):
    """Settings that the core reads; see docs/settings.md."""

    @property
    def state_directory(self) -> str: ...

    @property
    def protected(self) -> bool: ...

    @property
    def session_retention_seconds(self) -> float: ...

    @property
    def object_retention_seconds(self) -> float: ...

    @property
    def client_timeout_seconds(self) -> float: ...

    @property
    def worker_timeout_seconds(self) -> float: ...

    @property
    def max_number_of_tasks_waiting(self) -> int: ...

    @property
    def max_tasks_per_client(self) -> int: ...

    @property
    def max_bytes_per_client(self) -> int: ...

    @property
    def max_bytes(self) -> int: ...
