"""A processor's connection to stores. Imported for the first large value, or earlier by the fork server."""

from __future__ import annotations

import contextlib
from functools import partial

from scaler.config.worker import WorkerConfig
from scaler.ids import new_peer_id
from scaler.object_storage.client import TIMEOUT_SECONDS, BlockingStorage, StorageClient
from scaler.protocol.messages import Role
from scaler.worker.credential import own_access
from scaler.worker.processor import context

HOST_STORE_SECONDS = 2.0
"""Seconds that a result waits for its host's store before the task looks for another store."""
GET_TIMEOUT_SECONDS = 1.0
"""Seconds that a task waits for an input from an unreachable storage before it lends its slot."""


def connect(config: WorkerConfig, address: str, is_host_store: bool) -> BlockingStorage:
    def away() -> contextlib.AbstractContextManager[None]:
        running = context.current()
        if running is None or not running.task_id:
            return contextlib.nullcontext()
        return running.waiting(f"waits for the object storage at {address}, which does not answer")

    client = partial(StorageClient, address, new_peer_id(), Role.WORKER, own_access(config))
    seconds = HOST_STORE_SECONDS if is_host_store else TIMEOUT_SECONDS
    return BlockingStorage(partial(client, timeout_seconds=seconds, get_timeout_seconds=GET_TIMEOUT_SECONDS), away)
