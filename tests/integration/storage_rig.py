"""An object storage as a process of its own, as its command starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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


@contextmanager
def storage_process(address: str = "tcp://127.0.0.1:0", *flags: str) -> Iterator[StorageProcess]:
    """Yield a storage that is ready; it is ended with SIGTERM, if it is still there, and must then exit with 0."""
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
