"""An object storage in the scheduler's process, for clusters without a separate one."""

from __future__ import annotations

from scaler.errors import UsageError
from scaler.net.address import beside
from scaler.object_storage.server import EmbeddedStorage, SpillSpace
from scaler.scheduler.server import SchedulerServer


def embed(frame: SchedulerServer) -> EmbeddedStorage:
    config = frame.config
    try:
        return EmbeddedStorage(
            beside(config.bind_address, 1, ".storage"),
            spill=SpillSpace.of(config),
            security=config,
            state_directory=config.state_directory,
        )
    except UsageError as error:
        raise UsageError(f"the object storage beside {config.bind_address}: {error}") from error
