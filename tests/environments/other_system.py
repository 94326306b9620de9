"""A pytest plugin that removes features of Linux that another system lacks from this process.

`-p tests.environments.other_system` with OTHER_SYSTEM=darwin or win32. The standard library and other packages are
imported before, for the system that is really here: only Scaler's own code is tested.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import importlib
import mmap
import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

VARIABLE = "OTHER_SYSTEM"
CLUSTER = "CLUSTER_OF_TESTS"
"""Environment variable: the address of a cluster that the fixture `cluster` uses instead of starting one."""
_PACKAGES = (
    "concurrent.futures.process",
    "concurrent.futures.thread",
    "cloudpickle",
    "hypothesis",
    "logging.handlers",
    "multiprocessing.pool",
    "multiprocessing.shared_memory",
    "numpy",
    "psutil",
    "shutil",
    "ssl",
    "subprocess",
    "tempfile",
    "tqdm",
    "uuid",
    "zmq",
    "zmq.auth",
    "zmq.utils.monitor",
)
_LINUX = {
    os: (
        "eventfd",
        "memfd_create",
        "pidfd_open",
        "sched_getaffinity",
        "MFD_ALLOW_SEALING",
        "MFD_CLOEXEC",
        "P_PIDFD",
        "splice",
    ),
    select: ("epoll",),
    signal: ("pidfd_send_signal",),
    socket: ("SO_PEERCRED", "MSG_CMSG_CLOEXEC", "TCP_INFO"),
    fcntl: tuple(name for name in dir(fcntl) if "SEAL" in name),
    mmap: ("MADV_HUGEPAGE", "MAP_NORESERVE", "MAP_POPULATE"),
}
_UNIX = {
    os: (
        "fork",
        "register_at_fork",
        "geteuid",
        "getuid",
        "getgid",
        "getpgid",
        "killpg",
        "setsid",
        "fchmod",
        "fchown",
        "statvfs",
        "fstatvfs",
        "sysconf",
        "getloadavg",
        "posix_spawn",
        "pread",
        "pwrite",
        "sendfile",
        "waitid",
        "wait4",
        "O_NOFOLLOW",
        "O_CLOEXEC",
        "O_DIRECTORY",
        "O_NONBLOCK",
    ),
    select: ("poll",),
    signal: (
        "SIGKILL",
        "SIGHUP",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "SIGCHLD",
        "SIGALRM",
        "SIGSTOP",
        "SIGCONT",
        "pthread_sigmask",
        "setitimer",
    ),
    socket: ("AF_UNIX", "SCM_RIGHTS", "CMSG_LEN"),
    mmap: tuple(name for name in dir(mmap) if name.startswith(("MAP_", "MADV_", "PROT_"))),
}
_UNIX_MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty")


def pretend(system: str) -> None:
    """Make this process look like `darwin` or `win32` from now on."""
    for name in _PACKAGES:
        importlib.import_module(name)
    unix = socket.AF_UNIX
    selectors.DefaultSelector = selectors.SelectSelector if system == "win32" else selectors.PollSelector  # type: ignore[assignment,misc]
    for lacking in (_LINUX, _UNIX) if system == "win32" else (_LINUX,):
        for module, names in lacking.items():
            for name in names:
                vars(module).pop(name, None)
    if system == "win32":
        socket.socketpair = partial(socket.socketpair, unix)  # its own is a TCP one
        for name in _UNIX_MODULES:
            sys.modules[name] = None  # type: ignore[assignment]
        asyncio.new_event_loop = _proactor_loop
        vars(asyncio)["WindowsSelectorEventLoopPolicy"] = _SelectorPolicy
        asyncio.DefaultEventLoopPolicy._loop_factory = staticmethod(_proactor_loop)  # type: ignore[attr-defined]  # noqa: SLF001
    sys.platform = system
    sys.addaudithook(_refuse)


class _SelectorPolicy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = asyncio.SelectorEventLoop


def _proactor_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that cannot wait for descriptors, like the default loop of Windows."""
    loop = asyncio.SelectorEventLoop()
    # The loop's own wakeup is already added.
    loop.add_reader = loop.add_writer = _not_implemented  # type: ignore[method-assign,assignment]
    return loop


def _not_implemented(*_: object) -> NoReturn:
    raise NotImplementedError


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Reject, in an audit hook, Linux-only features that no attribute represents."""
    refuse: Callable[[Any], None] | None = _REFUSED.get(event)
    if refuse is not None:
        refuse(arguments)


def _no_proc(arguments: tuple[Any, ...]) -> None:
    path = arguments[0]
    if isinstance(path, str) and path.startswith("/proc/self"):  # the guards of tests inspect other processes
        raise FileNotFoundError(2, "No such file or directory", path)


def _no_abstract_socket(arguments: tuple[Any, ...]) -> None:
    address = arguments[1]
    if isinstance(address, str | bytes) and address[:1] in ("\0", b"\0"):
        raise OSError(22, "Invalid argument")


def _no_prctl(arguments: tuple[Any, ...]) -> None:
    if arguments[1] in ("prctl", "malloc_trim", "mallopt"):
        raise AttributeError(arguments[1])


_REFUSED: dict[str, Callable[[Any], None]] = {
    "open": _no_proc,
    "os.listdir": _no_proc,
    "os.scandir": _no_proc,
    "socket.connect": _no_abstract_socket,
    "socket.bind": _no_abstract_socket,
    "ctypes.dlsym": _no_prctl,
}
assert ctypes  # its symbols are rejected from here on


def pytest_collection() -> None:
    """Pretend before the first import of a test, and thus of Scaler."""
    assert "scaler" not in sys.modules
    pretend(os.environ[VARIABLE])
    # Tests that name features of clusters and tasks only.
    sys.modules["scaler.cluster.combo"] = SimpleNamespace(SchedulerClusterCombo=SimpleNamespace)  # type: ignore[assignment]
    sys.modules["scaler.worker.processor.context"] = SimpleNamespace(current=lambda: None, refusal="")  # type: ignore[assignment]
