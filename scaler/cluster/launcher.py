"""`scaler FILE`: every component of one file, started in order, watched, and stopped in reverse.

It ends with 0 when it was told to stop (SIGINT, SIGTERM, SIGHUP) or the components ended in order, with 1 when one of
them failed, and with 2 when that one could not be started with its settings. A second signal kills what is left. A
program that starts it may ask for what it asks of its components: to be told when all are ready (SCALER_READY_FD), and
to be survived by none of them (SCALER_PARENT_PID).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from scaler.cluster.components import SCHEDULER_TIER, STORAGE_TIER, WORKERS_TIER, component
from scaler.cluster.supervision import Component
from scaler.cluster.supervisor import Supervisor
from scaler.config.commands import LauncherConfig
from scaler.config.files import BAREMETAL_NATIVE
from scaler.policy.load import load_policy
from scaler.processes import PARENT_PID_VARIABLE, READY_FD_VARIABLE

SERVICE_PATIENCE_SECONDS = 24.0
"""How much longer a worker manager may take to end whose units a service stops for it."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(config: LauncherConfig) -> int:
    """Run everything that the file describes until it ends, and return the exit code.

    Raises UsageError, before anything is started, when there is no such policy.
    """
    load_policy(config.scheduler.policy_engine_type, config.scheduler.policy_content)
    ready_fd = os.environ.pop(READY_FD_VARIABLE, None)
    parent_pid = os.environ.pop(PARENT_PID_VARIABLE, None)
    supervisor = Supervisor(
        components_of(config),
        announce=lambda text: _tell(1, text),
        complain=lambda text: _tell(2, text),
        parent_pid=None if parent_pid is None else int(parent_pid),
    )
    if ready_fd is not None:
        os.set_inheritable(int(ready_fd), False)
        threading.Thread(target=_report_ready, args=(supervisor, int(ready_fd)), daemon=True).start()
    with _stopped_by_signals(supervisor):
        return supervisor.run()


def _report_ready(supervisor: Supervisor, ready_fd: int) -> None:
    supervisor.wait_settled()
    with contextlib.suppress(BrokenPipeError), os.fdopen(ready_fd, "w") as pipe:
        if supervisor.ready:
            pipe.write(json.dumps({"component": "scaler", "pid": os.getpid(), "addresses": {}}) + "\n")


def components_of(config: LauncherConfig) -> list[Component]:
    """Return the components of a file in the order of their start."""
    found: list[Component] = []
    if config.object_storage_server is not None:
        found.append(component("object-storage-server", config.object_storage_server, tier=STORAGE_TIER))
    found.append(component("scheduler", config.scheduler, tier=SCHEDULER_TIER))
    if config.webui is not None:
        found.append(component("web-ui", config.webui, tier=WORKERS_TIER))
    found.extend(
        component(
            "worker-manager",
            manager,
            tier=WORKERS_TIER,
            name=f"worker manager {manager.worker_manager_id}",
            patience_seconds=0.0 if manager.type == BAREMETAL_NATIVE else SERVICE_PATIENCE_SECONDS,
        )
        for manager in config.worker_managers
    )
    return found


@contextlib.contextmanager
def _stopped_by_signals(supervisor: Supervisor) -> Iterator[None]:
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        supervisor.stop(hurry=len(received) > 1)

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _tell(fd: int, text: str) -> None:
    # Unbuffered, so that these lines and those of the components stay in their order.
    line = f"scaler: {text}\n".encode()
    with contextlib.suppress(OSError):  # nobody reads it any more
        while line:
            line = line[os.write(fd, line) :]
