"""The file that identifies and locates a worker's store. Locked while the store runs."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scaler.config.worker import WorkerConfig
from scaler.errors import ScalerError
from scaler.ids import content_id
from scaler.registry import FLAGS, OwnFile, lock, private_directory, texts_of_running

SUFFIX = ".store"
CONFIG_VARIABLE = "SCALER_STORE_CONFIG"


class RunningStore(NamedTuple):
    """A store of this host. peer: its peer id at the scheduler, in hex."""

    address: str
    peer: str
    pid: int


def file_name(config: WorkerConfig) -> str:
    """Return the store's file name for workers with these settings on this host and in this namespace."""
    spaces = []
    for kind in ("net", "pid"):
        with suppress(OSError):
            spaces.append(str(Path("/proc/self/ns", kind).readlink()))
    what = json.dumps([config.scheduler_address, config.host_name, spaces, config.insecure_no_auth])
    return content_id(what.encode()).hex() + SUFFIX


def find(name: str) -> RunningStore | None:
    """Return the store of this file, or None if no store is running and listening. Raises UsageError."""
    with private_directory() as directory, suppress(FileNotFoundError):
        file = os.open(name, os.O_RDONLY | FLAGS, dir_fd=directory)
        try:
            if not lock(file):
                text = os.read(file, 4096)
                return RunningStore(*json.loads(text)) if text else None
        finally:
            os.close(file)
    return None


def pids_of_store(config: WorkerConfig) -> list[int]:
    with suppress(ScalerError):
        store = find(file_name(config))
        return [] if store is None else [store.pid]
    return []


def take(name: str) -> OwnFile | None:
    """Lock and return the file, or None if another process is the store. Raises UsageError."""
    texts_of_running(SUFFIX)  # removes the files of killed stores
    file = OwnFile(name.removesuffix(SUFFIX), SUFFIX)
    return file if file.is_held else None


def publish(file: OwnFile, store: RunningStore) -> None:
    file.publish(json.dumps(store).encode())
