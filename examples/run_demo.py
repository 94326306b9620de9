"""`make demo`: starts `scaler config/local.toml`, runs demo.py against it, and stops everything again.

Whatever happens on the way (an error, Ctrl-C, SIGTERM), the platform is stopped before this program ends.
"""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 15


@contextmanager
def platform(config: Path) -> Iterator[None]:
    """Run the launcher, in a session of its own: a Ctrl-C of the terminal reaches it through us, after the client."""
    ready, said_by_launcher = os.pipe()
    process = subprocess.Popen(
        [Path(sysconfig.get_path("scripts")) / "scaler", config],
        env={**os.environ, "SCALER_READY_FD": str(said_by_launcher), "SCALER_PARENT_PID": str(os.getpid())},
        pass_fds=[said_by_launcher],
        start_new_session=True,
    )
    os.close(said_by_launcher)
    try:
        with os.fdopen(ready) as pipe:
            if not pipe.readline():
                raise SystemExit(f"the platform did not start (exit code {process.wait(STOP_SECONDS)})")
        yield
    finally:
        process.terminate()
        code = process.wait(STOP_SECONDS)
    if code != 0:
        raise SystemExit(f"the platform failed (exit code {code})")


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        with (
            platform(ROOT / "config" / "local.toml"),
            ended(subprocess.Popen([sys.executable, ROOT / "examples" / "demo.py"], start_new_session=True)) as client,
        ):
            return client.wait()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
