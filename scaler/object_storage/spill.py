"""The disk space to which an object storage moves objects."""

from __future__ import annotations

from dataclasses import dataclass

from scaler.config.servers import SpillConfig
from scaler.errors import UsageError
from scaler.object_storage.mapped_files import write_segment
from scaler.paths import local_path


@dataclass(frozen=True, slots=True)
class SpillSpace:
    """A directory, and how much may be written to it; -1: until the disk is full. limit_name: what sets the limit."""

    directory: str
    limit_bytes: int = -1
    limit_name: str = "spill_limit_bytes"

    @classmethod
    def of(cls, config: SpillConfig) -> SpillSpace | None:
        """Return the space that a server is configured with; None for none."""
        if not config.spill_directory:
            return None
        return cls(str(local_path(config.spill_directory)), config.spill_limit_bytes)

    def check_writable(self) -> None:
        """Raise UsageError when this process cannot write to the directory, unless its disk is full for now."""
        try:
            write_segment(self.directory, [[memoryview(b"x")]])
        except OSError as error:
            from scaler.journal.segments import DISK_IS_FULL  # noqa: PLC0415 (of those whose directory fails)

            if error.errno not in DISK_IS_FULL:
                advice = "name a directory that this process can write to"
                raise UsageError(f"spill_directory {self.directory}: {error.strerror}: {advice}") from None
