"""Modules that clients upload, handled by the `environment` extension once a task needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scaler.plugins import part_of


class Uploads:
    """The importable archive of this process. Ids of archives are content digests; empty: none."""

    _modules: Any = None

    @property
    def active(self) -> bytes:
        return b"" if self._modules is None else self._modules.active

    @property
    def data(self) -> bytes:
        return b"" if self._modules is None else self._modules.data

    def use(self, identifier: bytes, read: Callable[[], bytes] = bytes) -> None:
        """Activate an archive. read: returns the bytes of a new archive. Raises its errors, SerializationError, and
        UsageError if the extension is missing."""
        if identifier and self._modules is None:
            self._modules = part_of("environment", "uploaded", "uploaded code").UploadedModules()
        if self._modules is not None:
            self._modules.use(identifier, read)

    def forget(self, identifier: bytes) -> None:
        if self._modules is not None:
            self._modules.forget(identifier)
