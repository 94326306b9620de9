"""`make demo`: starts `scaler config/local.toml`, runs demo.py against it, and stops everything again.

Whatever happens on the way (an error, Ctrl-C, SIGTERM), nothing is left running when this program ends.
"""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCALER = Path(sysconfig.get_path("scripts")) / "scaler"
EXIT_INTERRUPTED = 130


class Processes:
    """What was started and still runs, each in a session of its own: Ctrl-C reaches it through us, the last one first.

    Signals raise no exception here: one in the middle of a start would lose the process that is being started.
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


def main() -> int:
    processes = Processes()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, processes.interrupt)

    ready, said_by_scaler = os.pipe()
    # Asks to be told when everything is ready, and that nothing of it outlives us, not even after a kill -9.
    asked = {"SCALER_READY_FD": str(said_by_scaler), "SCALER_PARENT_PID": str(os.getpid())}
    code = 1
    with processes.running(
        SCALER, ROOT / "config" / "local.toml", env={**os.environ, **asked}, pass_fds=[said_by_scaler]
    ) as platform:
        os.close(said_by_scaler)
        with os.fdopen(ready) as pipe:
            is_ready = bool(pipe.readline())
        if is_ready and not processes.interrupted:
            with processes.running(sys.executable, ROOT / "examples" / "demo.py") as client:
                code = client.wait()
    if processes.interrupted:
        return EXIT_INTERRUPTED
    return code or int(platform.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
