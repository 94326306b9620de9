"""Program that installs the requirements of an environment once per host, and becomes its fork server.

A shared lock keeps the folder while a fork server uses it. The kernel releases the lock of a killed process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from scaler.errors import ConfigError
from scaler.extensions.environment.installer import install, own_versions, without_credentials
from scaler.extensions.environment.listed import unpacked
from scaler.extensions.environment.requirements import cache_of, digest_of
from scaler.interpreter import ENVIRONMENT_VARIABLE, worker_command
from scaler.processes import end_with_parent
from scaler.serialization import parts_of
from scaler.worker.fork_server import definition_of

KEPT = 10
"""Installed environments per host, besides those in use."""
FAILED_SECONDS = 30.0
"""Seconds for which a failed installation is not tried again on this host."""
_SHOWN = 3


def main() -> None:
    document, reason, agent_pid = map(int, sys.argv[3:])
    end_with_parent(signal.SIGKILL, agent_pid)
    try:
        data = bytes(parts_of(definition_of(document))[0])
        folder, lock = provide(data)
    except Exception as error:  # noqa: BLE001 (the agent reports any error)
        text = str(error) if isinstance(error, ConfigError) else f"its environment cannot be prepared: {error!r}"
        os.pwrite(reason, text.encode("utf-8", "replace"), 0)
        sys.exit(1)
    os.set_inheritable(lock, True)
    variables = {
        ENVIRONMENT_VARIABLE: str(folder.with_suffix(".packed")),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
        "PATH": os.pathsep.join((str(folder / "bin"), os.environ.get("PATH", os.defpath))),
    }
    code = f"import site; site.addsitedir({str(folder)!r}); from scaler.worker.fork_server import main; main()"
    command = [*worker_command("")[:-2], "-c", code, *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, **variables})  # noqa: S606


def provide(data: bytes) -> tuple[Path, int]:
    """Return the folder with the packages of packed requirements, and a descriptor of the lock that keeps the folder.
    Raises ConfigError."""
    listed = unpacked(data)
    constraints = [*own_versions(), *listed.constraints]
    folder = cache_of("environments") / digest_of(listed.requirements, constraints)
    names = [each.partition(" #")[0] for each in listed.requirements if not each.startswith("-")]
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = f"the packages of its environment ({without_credentials(', '.join(names[:_SHOWN]))}{more})"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.exists():
                os.utime(folder)
                break
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                folder.with_suffix(".packed").write_bytes(data)
                _install(folder, list(listed.requirements), constraints, what)
        _remove_old(folder)
    except OSError as error:
        text = f"{what} cannot be installed into {folder.parent}: {error.strerror or error}"
        raise ConfigError(f"{text}; set XDG_CACHE_HOME to use another directory") from error
    return folder, lock


def _install(folder: Path, requirements: list[str], constraints: list[str], what: str) -> None:
    failed, lines = folder.with_suffix(".failed"), folder.with_suffix(".txt")
    with contextlib.suppress(FileNotFoundError):
        if time.time() - failed.stat().st_mtime < FAILED_SECONDS:
            raise ConfigError(failed.read_text("utf-8"))
    lines.write_text("".join(f"{each}\n" for each in requirements), "utf-8")
    try:
        install(["-r", str(lines)], constraints, folder, what)
    except ConfigError as error:
        failed.write_text(str(error), "utf-8")
        raise
    finally:
        lines.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)


def _remove_old(used: Path) -> None:
    """Remove the environments that were not used for the longest time, and what killed processes left, unless a lock
    shows that they are in use."""
    changed: dict[Path, float] = {}
    for each in used.parent.iterdir():
        with contextlib.suppress(OSError):  # another process may have removed it
            if each.is_dir():
                changed[each] = each.stat().st_mtime
    kept = sorted((each for each in changed if not each.suffix), key=changed.__getitem__, reverse=True)[:KEPT]
    for folder in sorted(
        changed.keys() - kept, key=lambda each: each.suffix, reverse=True
    ):  # unfinished removals first
        lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder if folder.suffix else folder.rename(folder.with_suffix(".old")), ignore_errors=True)
        except OSError:
            continue  # in use
        finally:
            os.close(lock)


if __name__ == "__main__":
    main()
