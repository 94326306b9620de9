"""The interface to services that run workers.

A *unit* can be started and stopped: a process, a container, a job. A backend keeps as little state as possible and
queries its service instead. All methods except `fileno` may block for a bounded time. One thread calls them, one at a
time.

States of a unit: WAITING (in a shared queue), PENDING (started, not running yet), RUNNING, STOPPING, FAILED (ended on
its own, with a reason), and STOPPED (ended on request). Ended units stay listed for a while, with their reasons.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

from scaler._version import __version__
from scaler.config.addresses import addresses_of, is_loopback, local_address
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import ScalerError, UsageError
from scaler.net.access import Access
from scaler.plugins import load, worker_manager_type
from scaler.processes import signal_name
from scaler.protocol.messages import Role, UnitFacts, UnitState, UnitStatus

_log = logging.getLogger(__name__)

ENDED = (UnitState.FAILED, UnitState.STOPPED)
ENDED_SHOWN = 64
ENDED_SHOWN_SECONDS = 300.0
MAX_MESSAGE_CHARACTERS = 300
Unit = UnitStatus
"""A unit's current state. age_seconds: since its start. reason: display text. remaining_seconds: until the service ends
the unit, such as at a job's time limit; the scheduler drains the unit before. 0: no limit."""


class BackendError(ScalerError):
    """A backend failure. Equal texts count as the same failure. started: units that started despite the failure.
    is_temporary: a retry may succeed soon."""

    fewer_may_start = False  # the whole request was refused; a smaller one may be accepted

    def __init__(self, text: str, started: Sequence[str] = (), *, is_temporary: bool = False) -> None:
        super().__init__(text)
        self.started = tuple(started)
        self.is_temporary = is_temporary


class EndedUnits:
    def __init__(self) -> None:
        self._units: deque[tuple[float, Unit]] = deque(maxlen=ENDED_SHOWN)

    def add(self, unit: Unit, now: float) -> None:
        self._units.append((now, unit))

    def shown(self, now: float) -> list[Unit]:
        return [unit for at, unit in self._units if now - at <= ENDED_SHOWN_SECONDS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(UnitFacts):
    """The capacity of a backend. The setting unit_price overrides its price.

    max_units, starting (maximum concurrent starts): None for no limit. stop_seconds: time limit
    for stopping all units when the manager ends. outlive_manager: units survive their manager, and its successor adopts
    them. A refused manager leaves them running and does not await STOPPING units.
    """

    max_units: int | None
    starting: int | None = None
    stop_seconds: float = 8.0
    outlive_manager: bool = False

    @classmethod
    def of_units(cls, unit_slots: int, max_units: int | None, **fields: Any) -> Capacity:
        max_slots = -1 if max_units is None else max_units * unit_slots
        return cls(unit_slots=unit_slots, max_slots=max_slots, max_units=max_units, **fields)


class Backend(Protocol):
    """Starts, stops, and lists units. Ids of units are never reused."""

    @property
    def capacity(self) -> Capacity:
        """Does not change."""

    def start(self, count: int) -> list[str]:
        """Start units and return their ids. Raises BackendError if some units could not be started."""

    def stop(self, unit_ids: Sequence[str]) -> None:
        """Begin to stop units. Ignores ended and stopping units. Raises BackendError."""

    def list(self) -> list[Unit]:
        """Return all units, including recently ended ones. Raises BackendError."""

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when the result of `list` changes, or None."""

    def close(self) -> None:
        """End remaining units that do not outlive the manager, and release all resources."""


def access_of(config: WorkerManagerConfig) -> Access:
    """Return how a manager authenticates. Reads the credential once: it may be a pipe. Raises ConfigError."""
    return _access(config.credentials, config.insecure_no_auth, config.worker_manager_id, config.compression)


@cache
def _access(credentials: str | None, insecure_no_auth: bool, manager_id: str, compression: str) -> Access:
    return Access.of(credentials, insecure_no_auth, Role.MANAGER, manager_id, compression)


def units_credential(config: WorkerManagerConfig) -> str:
    """Return the units' worker credential as text, or an empty string. Raises ConfigError."""
    own = access_of(config).credential
    return "" if own is None else own.for_units().to_text()


def most_units(max_task_concurrency: int, unit_slots: int) -> int | None:
    return None if max_task_concurrency < 0 else -(-max_task_concurrency // unit_slots)


def owner_digest(config: WorkerManagerConfig, characters: int) -> str:
    """Return the mark that identifies the manager's units to its later processes."""
    whole = f"{config.worker_manager_id}\0{config.worker_scheduler_address}"
    return hashlib.sha256(whole.encode()).hexdigest()[:characters]


def load_backend(config: WorkerManagerConfig) -> Backend:
    return cast("Callable[[WorkerManagerConfig], Backend]", load(worker_manager_type(config.type).backend))(config)


def short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 3] + "..."


FIRST_ANSWER_SECONDS = 0.75  # a stopping process waits this long to create the backend, and this long to list units

_Result = TypeVar("_Result")
_threads: WeakSet[CallThread] = WeakSet()


class CallThread:
    """Makes calls one at a time, in a daemon thread so that a hanging call does not keep the process alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._unfinished: list[Future[object]] = []
        _threads.add(self)
        threading.Thread(target=self._run, name="backend", daemon=True).start()

    def call(self, function: Callable[..., _Result], *arguments: object) -> asyncio.Future[_Result]:
        """Call a function in the thread; return its result on the running loop. Skips calls cancelled in the queue."""
        answer: Future[_Result] = Future()

        def make() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(function(*arguments))
                except BaseException as error:  # noqa: BLE001 (raised again where the result is awaited)
                    answer.set_exception(error)

        self._unfinished = [each for each in self._unfinished if not each.done()] + [answer]  # type: ignore[list-item]
        self._calls.put(make)
        return asyncio.wrap_future(answer)

    @property
    def is_busy(self) -> bool:
        return any(not each.done() for each in self._unfinished)

    def shutdown(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (make := self._calls.get()) is not None:
            make()


def has_calls_left() -> bool:
    return any(thread.is_busy for thread in list(_threads))


async def answered_before(call: asyncio.Future[Any], end: asyncio.Event) -> bool:
    """Wait for a call. If the process is stopped first, cancel the call and return False."""
    ending = asyncio.create_task(end.wait())
    try:
        await asyncio.wait({call, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            await asyncio.wait({call}, timeout=FIRST_ANSWER_SECONDS)
        return not call.cancel()
    finally:
        ending.cancel()


CONTAINER = "worker"
WORKER_COMMAND = ("python", "-P", "-m", "scaler.worker")  # -P: no file in the working directory shadows a module


def require_image(image: str | None, setting: str) -> str:
    if image is not None:
        return image
    raise UsageError(
        f"{setting} is missing: workers need an image that contains this version of scaler. Build one "
        f"{making_an_image(setting)}"
    )


def making_an_image(setting: str) -> str:
    from importlib.metadata import version  # noqa: PLC0415 (slow, and for this text only)

    python, cloudpickle = f"{sys.version_info.major}.{sys.version_info.minor}", version("cloudpickle")
    return (
        f"in a checkout of scaler: docker build -f docker/worker.Dockerfile --build-arg PYTHON_VERSION={python} "
        f"--build-arg REQUIREMENTS=cloudpickle=={cloudpickle} -t REGISTRY/scaler-worker:{__version__} . && "
        f"docker push REGISTRY/scaler-worker:{__version__}, and set {setting} to that name"
    )


def worker_document(
    config: WorkerManagerConfig,
    slots: int,
    *,
    unit_id: str = "",
    unit_id_from: str = "unit_id",
    stop_grace_seconds: float,
) -> str:
    """Return the value of SCALER_WORKER_CONFIG for a container, whose worker logs to stdout."""
    worker = config.worker_config(unit_id, slots, unit_id_from=unit_id_from, stop_grace_seconds=stop_grace_seconds)
    return replace(worker, logging_paths=("/dev/stdout",), logging_config_file=None).to_json()


def worker_container(containers: Sequence[dict[str, Any]], source: str) -> dict[str, Any]:
    """Return the container named `worker`, or the only one. source: names their origin in a UsageError."""
    named = [container for container in containers if container.get("name") == CONTAINER]
    if not named and len(containers) > 1:
        names = ", ".join(str(container.get("name")) for container in containers)
        raise UsageError(f"{source} has the containers {names}: name the worker's container {CONTAINER!r}")
    return (named or list(containers))[0]


def exit_text(code: int) -> str:
    name = signal_name(code - 128)
    return f"exit code {code}{f' ({name})' if name else ''}"


def warn_of_loopback(what: str, address: str) -> None:
    if is_loopback(local_address(addresses_of(address)[0])):
        text = "%s cannot reach the scheduler at %s: set worker_scheduler_address to an address that they can reach"
        _log.warning(text, what, address)
