"""The running clusters of this user: one file for each in a private directory, locked while the cluster runs.

The kernel releases the lock with the process that holds it, however that ends. So a file without a lock is stale, and
the next reader removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from scaler.errors import UnreachableError, UsageError
from scaler.processes import after_fork

RUNTIME_DIRECTORY_VARIABLE = "XDG_RUNTIME_DIR"
MAX_NAME_CHARACTERS = 60
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARACTERS - 1}}}")
_SUFFIX = ".cluster"
_MAX_BYTES = 64 * 1024
HAS_NAMES = sys.platform != "win32"
"""Windows has clients, and no clusters."""
FLAGS = 0
if HAS_NAMES:
    import fcntl

    FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class RunningCluster(NamedTuple):
    """A running cluster. page: the link of its web page, empty without one."""

    name: str
    address: str
    monitor_address: str
    page: str
    pid: int


class Registration:
    """A name that this process holds until `close`, or until it ends. A forked child holds nothing."""

    def __init__(self, name: str) -> None:
        """Take this name, or the next free one (`name-2`). Raises UsageError when it can be no name."""
        if not is_name(name):
            raise UsageError(f"{name!r} is no name for a cluster: use letters, digits and . _ - (at most 60)")
        self.name = name
        self.problem = ""
        """Why the cluster is not registered, and others need its address; empty when it is."""
        self._file = -1
        try:
            with private_directory() as directory:
                self._file, self.name = _take(name, directory)
        except UsageError as error:
            self.problem = f"the cluster runs without a name: {error}"
        _registrations.add(self)

    def publish(self, address: str, monitor_address: str, page: str = "") -> None:
        """Show the cluster to others under the name."""
        cluster = RunningCluster(self.name, address, monitor_address, page, os.getpid())
        if self._file >= 0:
            try:
                os.write(self._file, json.dumps(cluster).encode())
            except OSError as error:  # the disk is full
                self.problem = f"the cluster runs without a name: {error}"

    def close(self, *, is_parents: bool = False) -> None:
        """Give the name up. Again: does nothing. is_parents: this is a forked child, and its parent keeps the name."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
            if not is_parents:
                with contextlib.suppress(UsageError):
                    running()  # removes what is not locked any more


_registrations: WeakSet[Registration] = WeakSet()


def is_name(text: object) -> bool:
    """Return True when a text names a cluster and is no address."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def name_from(text: str) -> str:
    """Return the name that is nearest to any text, such as that of a file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:MAX_NAME_CHARACTERS] or "cluster"


def running() -> list[RunningCluster]:
    """Return the running clusters of this user by name. Raises UsageError when the directory is not this user's."""
    # A later version may have more fields.
    found = [RunningCluster(*json.loads(text)[: len(RunningCluster._fields)]) for text in texts_of_running(_SUFFIX)]
    return sorted(found)


def find(name: str) -> RunningCluster:
    """Return the running cluster of this name. Raises UnreachableError that lists those that run, and UsageError."""
    clusters = running()
    for cluster in clusters:
        if cluster.name == name:
            return cluster
    raise UnreachableError(f"no cluster is named {name!r}; {_listed(clusters)}")


def find_only() -> RunningCluster:
    """Return the running cluster when there is exactly one. Raises UsageError that lists them otherwise."""
    clusters = running()
    if len(clusters) != 1:
        raise UsageError(f"give the name of a cluster, or an address; {_listed(clusters)}")
    return clusters[0]


def page_at(address: str) -> str:
    """Return the link of the page of the cluster at a scheduler's address, empty when none is known."""
    try:
        return next((cluster.page for cluster in running() if cluster.address == address), "")
    except UsageError:
        return ""


def private_path(name: str) -> Path:
    """Return the path of a file in this user's private directory. Raises UsageError when that is not private."""
    with private_directory():
        return _path() / name


def _listed(clusters: list[RunningCluster]) -> str:
    if not clusters:
        if not HAS_NAMES:
            return "clusters have no names on Windows: give the scheduler's address"
        return "none of this user runs on this host (`scaler local` starts one)"
    return "running are " + ", ".join(f"{cluster.name} ({cluster.address})" for cluster in clusters)


@contextlib.contextmanager
def private_directory() -> Iterator[int]:
    """Yield a descriptor of the directory, which is made if missing, and locked: readers and writers take turns."""
    path = _path()
    with contextlib.ExitStack() as after:
        try:
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
            after.callback(os.close, directory)
            found = os.fstat(directory)
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                owner = f"user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}"
                raise UsageError(f"{path} is not a private directory of this user ({owner}); {_REMEDY}")
            fcntl.flock(directory, fcntl.LOCK_EX)
            after.callback(fcntl.flock, directory, fcntl.LOCK_UN)  # a forked child may hold the descriptor, too
            yield directory
        except OSError as error:
            why = error.strerror
            raise UsageError(f"cannot keep the names of running clusters in {path}: {why}; {_REMEDY}") from None


_REMEDY = f"remove it, or set {RUNTIME_DIRECTORY_VARIABLE} to a directory of your own"


def _path() -> Path:
    # Without a session of a login, such as in cron, the variable is not set, and the directory may exist.
    runtime = Path(os.environ.get(RUNTIME_DIRECTORY_VARIABLE) or f"/run/user/{os.geteuid()}")
    with contextlib.suppress(OSError):
        if runtime.is_absolute() and runtime.stat().st_uid == os.geteuid():  # with sudo, it may be another user's
            return runtime / "scaler"
    return Path(f"/tmp/scaler-{os.geteuid()}")  # noqa: S108 (refused unless it is this user's own)


def _take(name: str, directory: int) -> tuple[int, str]:
    """Return the locked and empty file of the first free name, and that name."""
    free, number = name, 1
    while not lock(file := os.open(free + _SUFFIX, os.O_RDWR | os.O_CREAT | FLAGS, 0o600, dir_fd=directory)):
        os.close(file)
        number += 1
        free = f"{name}-{number}"
    os.ftruncate(file, 0)
    return file, free


def texts_of_running(suffix: str) -> list[bytes]:
    """Return the contents of this user's files whose processes run, without those that are still empty.

    Removes the files of processes that have ended. Raises UsageError when the directory is not this user's.
    """
    texts: list[bytes] = []
    if not HAS_NAMES:
        return texts
    with private_directory() as directory:
        for entry in os.listdir(directory):  # noqa: PTH208 (of a descriptor)
            if not entry.endswith(suffix):
                continue
            file = os.open(entry, os.O_RDONLY | FLAGS, dir_fd=directory)
            try:
                if lock(file):
                    os.unlink(entry, dir_fd=directory)
                else:
                    texts.append(os.read(file, _MAX_BYTES))
            finally:
                os.close(file)
    return [text for text in texts if text]


def lock(file: int) -> bool:
    """Lock a file for as long as it is open; return False when this process or another one has locked it already."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _after_fork() -> None:
    """Leave the names to the parent: a child that outlives it must not keep them locked."""
    for registration in _registrations:
        registration.close(is_parents=True)


after_fork(_after_fork)
