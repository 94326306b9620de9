"""The running clusters of this user: one file each in a private directory, locked while the cluster runs."""

from __future__ import annotations

import contextlib
import itertools
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
HAS_NAMES = sys.platform != "win32"  # Windows supports only clients
FLAGS = 0
if HAS_NAMES:
    import fcntl

    FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class RunningCluster(NamedTuple):
    """A running cluster. page: the link of its web page, or empty."""

    name: str
    address: str
    monitor_address: str
    page: str
    pid: int


class OwnFile:
    """A file through which other processes find this process. Locked while it runs. Forks do not inherit it."""

    def __init__(self, stem: str, suffix: str, text: bytes = b"", *, is_numbered: bool = False) -> None:
        """Take this file, or with is_numbered the next free one (`stem-2`). Raises UsageError if there is no private
        directory."""
        self.stem = stem  # the free name
        self._wanted, self._suffix, self._is_numbered = stem, suffix, is_numbered
        self._text = text
        self._file = -1
        self._take()
        _own_files.add(self)

    @property
    def is_held(self) -> bool:
        return self._file >= 0

    def publish(self, text: bytes) -> None:
        self._text = text
        if self.is_held:
            os.pwrite(self._file, text, 0)

    def refresh(self) -> None:
        """Publish the text again if the file was deleted by a cleaner or a logout."""
        if self.is_held and not os.fstat(self._file).st_nlink:
            with contextlib.suppress(UsageError):  # the next call retries
                self._take()

    def close(self, *, is_parents: bool = False) -> None:
        """Release the file. Idempotent. is_parents: this is a forked child, so the parent keeps the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
            if not is_parents:
                with contextlib.suppress(UsageError):
                    texts_of_running(self._suffix)  # removes files that are no longer locked

    def _take(self) -> None:
        with contextlib.ExitStack() as failed, private_directory() as directory:
            for number in itertools.count(1):
                stem = self._wanted if number == 1 else f"{self._wanted}-{number}"
                file = os.open(stem + self._suffix, os.O_RDWR | os.O_CREAT | FLAGS, 0o600, dir_fd=directory)
                failed.callback(os.close, file)
                if lock(file):
                    break
                failed.close()
                if not self._is_numbered:
                    return
            os.ftruncate(file, 0)
            os.pwrite(file, self._text, 0)
            failed.pop_all()
        old, self._file, self.stem = self._file, file, stem
        if old >= 0:
            os.close(old)


class Registration:
    def __init__(self, name: str) -> None:
        if not is_name(name):
            raise UsageError(f"{name!r} is not a valid cluster name: use at most 60 letters, digits, and . _ -")
        self.name = name
        self.problem = ""  # why the cluster is not registered, so that clients need its address; empty if registered
        self._file: OwnFile | None = None
        self._cluster: RunningCluster | None = None
        try:
            self._file = OwnFile(name, _SUFFIX, is_numbered=True)
        except UsageError as error:
            self.problem = f"the cluster has no name: {error}"
        else:
            self.name = self._file.stem

    def publish(self, address: str, monitor_address: str, page: str = "") -> None:
        if self._file is not None:
            self._cluster = RunningCluster(self.name, address, monitor_address, page, os.getpid())
            try:
                self._file.publish(json.dumps(self._cluster).encode())
            except OSError as error:  # the disk is full
                self.problem = f"the cluster has no name: {error}"

    def refresh(self) -> None:
        if self._file is not None:
            self._file.refresh()
            if self._file.stem != self.name and self._cluster is not None:
                self.name = self._file.stem
                self.publish(*self._cluster[1:4])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


_own_files: WeakSet[OwnFile] = WeakSet()


def is_name(text: object) -> bool:
    """Return whether a text is a valid cluster name rather than an address."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def name_from(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:MAX_NAME_CHARACTERS] or "cluster"


def running() -> list[RunningCluster]:
    """Return this user's running clusters, sorted by name. Raises UsageError if the directory is not this user's."""
    # Later versions may have more fields.
    found = [RunningCluster(*json.loads(text)[: len(RunningCluster._fields)]) for text in texts_of_running(_SUFFIX)]
    return sorted(found)


def find(name: str) -> RunningCluster:
    """Return the running cluster with this name. Raises UsageError, and UnreachableError with a list of clusters."""
    clusters = running()
    for cluster in clusters:
        if cluster.name == name:
            return cluster
    raise UnreachableError(f"no cluster is named {name!r}; {_listed(clusters)}")


def find_only() -> RunningCluster:
    """Return the only running cluster. Raises UsageError with a list unless there is exactly one."""
    clusters = running()
    if len(clusters) != 1:
        raise UsageError(f"give the name of a cluster, or an address; {_listed(clusters)}")
    return clusters[0]


def page_at(address: str) -> str:
    """Return the link to the web page of the cluster at a scheduler's address, or an empty string."""
    try:
        return next((cluster.page for cluster in running() if cluster.address == address), "")
    except UsageError:
        return ""


def private_path(name: str) -> Path:
    with private_directory():
        return _path() / name


def _listed(clusters: list[RunningCluster]) -> str:
    if not clusters:
        if not HAS_NAMES:
            return "clusters have no names on Windows: give the scheduler's address"
        return "this user runs none on this host (`scaler local` starts one)"
    return "running clusters: " + ", ".join(f"{cluster.name} ({cluster.address})" for cluster in clusters)


@contextlib.contextmanager
def private_directory() -> Iterator[int]:
    """Yield a descriptor of the directory, creating it if missing. Holds a lock, so that readers and writers
    alternate."""
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
            after.callback(fcntl.flock, directory, fcntl.LOCK_UN)  # a forked child may also hold the descriptor
            yield directory
        except OSError as error:
            why = error.strerror
            raise UsageError(f"cannot store the names of running clusters in {path}: {why}; {_REMEDY}") from None


_REMEDY = f"remove it, or set {RUNTIME_DIRECTORY_VARIABLE} to a directory of your own"


def _path() -> Path:
    # Without a login session, such as in cron, the variable is unset, but the directory may exist.
    runtime = Path(os.environ.get(RUNTIME_DIRECTORY_VARIABLE) or f"/run/user/{os.geteuid()}")
    with contextlib.suppress(OSError):
        if runtime.is_absolute() and runtime.stat().st_uid == os.geteuid():  # with sudo, it may be another user's
            return runtime / "scaler"
    return Path(f"/tmp/scaler-{os.geteuid()}")  # noqa: S108 (refused unless it is this user's own)


def texts_of_running(suffix: str) -> list[bytes]:
    """Return the files of running processes, and delete stale files. Raises UsageError if there is no private
    directory."""
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
    """Lock a file until it is closed; return False if it is already locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _after_fork() -> None:
    for file in _own_files:
        file.close(is_parents=True)


after_fork(_after_fork)
