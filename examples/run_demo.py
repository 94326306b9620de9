"""`make demo`: starts `scaler config/local.toml`, runs demo.py on this cluster, and stops the cluster.

If another program uses one of the file's ports, the demo uses free ones instead. After an error, Ctrl-C, or SIGTERM, no
process is left running.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from scaler.cluster.supervisor import ReservedPorts

ROOT = Path(__file__).resolve().parent.parent
SCALER = Path(sysconfig.get_path("scripts")) / "scaler"
CONFIG = ROOT / "config" / "local.toml"
PORTS = (8516, 8517, 8518)
"""Ports in CONFIG for the scheduler, object storage, and monitors. The web page finds a free port itself."""
EXIT_INTERRUPTED = 130


class Processes:
    """Running processes, each in a separate session, so this program forwards Ctrl-C to the last one started.

    Signals raise no exception here, because an exception during a start would lose the new process.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._running: list[subprocess.Popen[bytes]] = []

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupted = True
        if self._running:
            self._running[-1].terminate()

    @contextmanager
    def running(self, *command: Any, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(command, start_new_session=True, **options)
        self._running.append(process)
        try:
            if self.interrupted:
                process.terminate()
            yield process
        finally:
            process.terminate()
            process.wait()
            self._running.remove(process)


def is_free(port: int) -> bool:
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like the servers
        try:
            taker.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def config_and_address() -> Iterator[tuple[Path, str]]:
    """Yield the configuration file and the scheduler's address: CONFIG, or a copy with free ports."""
    taken = [str(port) for port in PORTS if not is_free(port)]
    if not taken:
        yield CONFIG, f"tcp://127.0.0.1:{PORTS[0]}"
        return
    free = ReservedPorts(len(PORTS))
    print(f"demo:    used by other programs: {', '.join(taken)}; the demo uses ports from {free.first} on", flush=True)
    try:
        with tempfile.TemporaryDirectory() as directory:
            names = {str(port): str(free.first + index) for index, port in enumerate(PORTS)}
            config = Path(directory, CONFIG.name)
            config.write_text(re.sub("|".join(names), lambda found: names[found[0]], CONFIG.read_text()))
            yield config, free.address()
    finally:
        free.release()  # not earlier, because a restarted server needs its port


def main() -> int:
    processes = Processes()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, processes.interrupt)

    ready, said_by_scaler = os.pipe()
    # Scaler reports when all components are ready, and stops them when this process exits, even after kill -9.
    asked = {"SCALER_READY_FD": str(said_by_scaler), "SCALER_PARENT_PID": str(os.getpid())}
    code = 1
    with (
        config_and_address() as (config, address),
        processes.running(SCALER, config, env={**os.environ, **asked}, pass_fds=[said_by_scaler]) as platform,
    ):
        os.close(said_by_scaler)
        with os.fdopen(ready) as pipe:
            is_ready = bool(pipe.readline())
        if is_ready and not processes.interrupted:
            with processes.running(sys.executable, ROOT / "examples" / "demo.py", address) as client:
                code = client.wait()
    if processes.interrupted:
        return EXIT_INTERRUPTED
    return code or int(platform.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
