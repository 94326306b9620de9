"""`SchedulerClusterCombo`: a local scheduler, object storage, and workers for a Python program."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from types import TracebackType
from typing import Any, Self, TypeVar, cast, get_type_hints

from scaler.cluster.launcher import check_policy, components_of, open_page
from scaler.cluster.supervision import STOP_SECONDS, ReportLine
from scaler.cluster.supervisor import PORTS_OF_A_SCHEDULER, ReservedPorts, Supervisor
from scaler.config.addresses import local_address
from scaler.config.clusters import LOCAL, local_config
from scaler.config.compatibility import rename_arguments, without_retired
from scaler.config.load import Sources
from scaler.config.servers import scheduler_model
from scaler.config.setting import describe
from scaler.config.worker_managers import ClusterConfig
from scaler.errors import ComponentError, UsageError, nearest
from scaler.grammar import counted
from scaler.registry import Registration

_log = logging.getLogger(__name__)

C = TypeVar("C", bound=Callable[..., None])

_JOIN_MARGIN_SECONDS = 5.0
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_GIVEN = (
    "bind_address",
    "scheduler_address",
    "worker_scheduler_address",
    "advertised_object_storage_address",
    "num_of_workers",
)


_OWN_DEFAULTS: Mapping[str, object] = {
    "logging_level": "WARNING",
    "logging_paths": ("/dev/stderr",),
    "worker_manager_id": LOCAL,
    "per_worker_capabilities": "",
}
"""The log goes to stderr, because stdout belongs to the program."""


def _settings() -> Iterator[inspect.Parameter]:
    for model in (ClusterConfig, scheduler_model()):
        hints = get_type_hints(model)
        for item in describe(model).values():
            if item.name not in _GIVEN:
                default = _OWN_DEFAULTS.get(item.name, None if item.default is MISSING else item.default)
                yield inspect.Parameter(item.name, KEYWORD_ONLY, default=default, annotation=hints[item.name])
    yield inspect.Parameter("per_worker_queue_size", KEYWORD_ONLY, default=None, annotation=int | None)


def _with_settings(constructor: C) -> C:
    """Add the settings to the signature. An unknown keyword raises a TypeError that names the nearest setting."""
    *own, _ = inspect.signature(constructor, eval_str=True).parameters.values()
    parameters = {each.name: each for each in (*own, *_settings())}
    parameters |= {each.name: each for each in own}
    known = [*parameters][1:]

    @functools.wraps(constructor)
    def checked(self: object, *arguments: Any, **given: Any) -> None:
        given = without_retired(given)
        names = tuple(given.get("extensions") or ())
        added = [item.name for item in fields(scheduler_model(names))] if names else []
        if unknown := next((name for name in given if name not in known and name not in added), None):
            near = nearest(unknown, known)
            raise TypeError(f"SchedulerClusterCombo() got an unexpected keyword argument {unknown!r}{near}")
        constructor(self, *arguments, **given)

    checked.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    checked.__annotations__ = {name: each.annotation for name, each in parameters.items()} | {"return": None}
    return cast("C", checked)


class SchedulerClusterCombo:
    """A scheduler with its object storage and local workers, for the lifetime of this object.

    When the constructor returns, the scheduler listens and the workers are starting. The cluster stops on `shutdown`,
    at the end of a `with` block, on garbage collection, and when the program exits in any way. No `if __name__ ==
    "__main__"` is needed. Forked children do not stop the cluster.

    Example:
        ```python
        with SchedulerClusterCombo(n_workers=2) as cluster, Client(cluster.get_address()) as client:
            print(client.submit(pow, 2, 10).result())    # 1024
        ```
    """

    @_with_settings
    def __init__(
        self,
        address: str | None = None,
        n_workers: int | None = None,
        *,
        monitor_address: str | None = None,
        object_storage_address: str | None = None,
        name: str | None = None,
        web_port: int | None = None,
        **settings: Any,
    ) -> None:
        """Start the cluster.

        Args:
            address: address of the scheduler. Default: a free port on loopback.
            n_workers: number of workers, or 0. Default: the number of CPUs minus 1, at least 1.
            monitor_address: address for monitors. Default: the scheduler's port + 2.
            object_storage_address: start a separate object storage there. Default: it is part of the scheduler's
                process.
            name: name for `Client(name)` and this user's commands. If the name is taken, the next free one is used
            (`name-2`). web_port: port of the web page, or the next free one. Default: no page.
            settings: keys of [scheduler] and [cluster], listed in docs/settings.md. A key of both sections applies to
                both. per_worker_queue_size is an alias of per_worker_task_queue_size.

        Raises:
            UsageError: An argument is invalid.
            ComponentError: A component cannot start.
        """
        if n_workers is not None and (not isinstance(n_workers, int) or n_workers < 0):
            raise UsageError(f"n_workers = {n_workers!r}: must be a whole number, at least 0")
        rename_arguments(settings)
        settings |= {"monitor_address": monitor_address, "num_of_workers": n_workers or None, "web_port": web_port}
        implied = {**_OWN_DEFAULTS, **{key: value for key, value in settings.items() if value is not None}}
        self._is_made = threading.Event()
        with contextlib.ExitStack() as after:
            # Another server may listen at a given address, so do not connect before our scheduler has bound it.
            together = address is None and object_storage_address is None
            if address is None:
                ports = ReservedPorts(PORTS_OF_A_SCHEDULER)
                after.callback(ports.release)  # held until the end, because a restarted server needs its port
                address = ports.address()
            config = local_config(
                Sources(implied=implied),
                address,
                storage_address=object_storage_address,
                has_workers=n_workers != 0,
                has_page=web_port is not None,
            )
            check_policy(config)
            self._n_workers = sum(manager.max_task_concurrency for manager in config.worker_managers)
            self._address = local_address(config.scheduler.bind_address)
            self._monitor_address = local_address(config.scheduler.monitor_address)
            listening, self._page = open_page(config, after, _log.warning)
            self._registration = registration = None if name is None else Registration(name)
            on_ready = None
            if registration is not None:
                after.callback(registration.close)
                if registration.problem:
                    _log.warning(registration.problem)
                on_ready = functools.partial(registration.publish, self._address, self._monitor_address, self._page)
            self._supervisor = Supervisor(
                components_of(config, listening),
                together=together,
                report=functools.partial(_report, self._is_made),
                on_ready=on_ready,
                registration=registration,
            )
            self._start(after)
        self._is_made.set()

    def _start(self, after: contextlib.ExitStack) -> None:
        # A dedicated thread starts the processes and outlives them, because a worker may ask the system for a signal
        # when the thread that started it exits.
        run = functools.partial(_run, self._supervisor, after.pop_all())
        self._thread = thread = threading.Thread(target=run, name="scaler-combo", daemon=True)
        self._end = weakref.finalize(self, _end, self._supervisor, thread, os.getpid())
        try:
            thread.start()
            self._supervisor.settled.wait()
        except BaseException:
            self._end()
            raise
        if not self._supervisor.supervision.ready:
            self._end()
            raise ComponentError(
                self._supervisor.supervision.failure or "the components ended immediately after starting"
            )

    def get_address(self) -> str:
        """Return the scheduler's address, for `Client`."""
        return self._address

    def get_monitor_address(self) -> str:
        """Return the address for monitors."""
        return self._monitor_address

    def get_object_storage_address(self) -> str:
        """Return the address of the object storage."""
        return self._supervisor.supervision.addresses["scheduler"]["object_storage"]

    def get_name(self) -> str:
        """Return the name under which this user's programs and commands find the cluster, or an empty string."""
        registration = self._registration
        return "" if registration is None or registration.problem else registration.name

    def get_page(self) -> str:
        """Return the link of the web page, or an empty string."""
        return self._page

    @property
    def failure(self) -> str | None:
        """The failure that ended the cluster, or None.

        Failed components are restarted. A component that fails too often ends the cluster.
        """
        return self._supervisor.supervision.failure

    def shutdown(self) -> None:
        """Stop workers, scheduler, and object storage, and wait for them to exit. Idempotent."""
        if end := self._end.detach():  # at interpreter shutdown, calling the finalizer directly has no effect
            _, function, arguments, _ = end
            function(*arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<SchedulerClusterCombo {self._address}, {counted(self._n_workers, 'worker')}, {self._state()}>"

    def _state(self) -> str:
        if self.failure is not None:
            return self.failure
        restarts = "".join(f"; {name}: {text}" for name, text in list(self._supervisor.supervision.restarts.items()))
        if not self._end.alive:
            return "stopped"
        return f"runs{restarts}" if self._thread.is_alive() else "its processes have ended"


def _report(is_made: threading.Event, line: ReportLine) -> None:
    # Earlier failures are part of the raised error. No reference to the combo, so that it can be garbage-collected.
    if line.is_failure and is_made.is_set():
        _log.error(line.text)


def _run(supervisor: Supervisor, after: contextlib.ExitStack) -> None:
    with after:
        supervisor.run()


def _end(supervisor: Supervisor, thread: threading.Thread, owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return  # in a forked child: the components belong to the parent
    supervisor.stop()
    if thread is threading.current_thread() or thread.ident is None:
        return  # garbage collection ran in this thread, which is about to exit
    try:
        thread.join(STOP_SECONDS + _JOIN_MARGIN_SECONDS)
    except KeyboardInterrupt:
        supervisor.stop(hurry=True)
        thread.join(_JOIN_MARGIN_SECONDS)
        raise
