"""`scaler FILE`: every component of one file, started in order, watched, and stopped in reverse.

The exit code is 0 after a requested stop (SIGINT, SIGTERM, SIGHUP) or an orderly end of the components, 1 after a
failure, 2 when a component could not start with its settings. A second signal kills the remaining processes. A program
that starts it may use the protocol of its components: SCALER_READY_FD for a line when all are ready, and
SCALER_PARENT_PID so that none of them outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading

from scaler.cluster.supervision import ComponentProcess, ReportLine
from scaler.cluster.supervisor import Supervisor, component
from scaler.config.commands import LauncherConfig
from scaler.policy.load import check_managers, load_policy
from scaler.processes import PARENT_PID_VARIABLE, READY_FD_VARIABLE, handling_signals

SERVICE_GRACE_SECONDS = 24.0
"""Additional time to end for a worker manager whose units are stopped by a service."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(config: LauncherConfig) -> int:
    """Run everything that the file describes until it ends, and return the exit code.

    Raises UsageError, before anything is started, for an unknown policy, and for one that misspells a worker manager.
    """
    policy = load_policy(config.scheduler.policy_engine_type, config.scheduler.policy_content)
    scaled = [each.worker_manager_id for each in config.worker_managers if getattr(each, "mode", "") != "fixed"]
    check_managers(policy, [each.worker_manager_id for each in config.worker_managers], scaled)
    ready_fd = os.environ.pop(READY_FD_VARIABLE, None)
    parent_pid = os.environ.pop(PARENT_PID_VARIABLE, None)
    supervisor = Supervisor(
        components_of(config), report=_print, parent_pid=None if parent_pid is None else int(parent_pid)
    )
    if ready_fd is not None:
        os.set_inheritable(int(ready_fd), False)
        threading.Thread(target=_report_ready, args=(supervisor, int(ready_fd)), daemon=True).start()
    with handling_signals(STOP_SIGNALS, lambda _, count: supervisor.stop(hurry=count > 1)):
        return supervisor.run()


def components_of(config: LauncherConfig) -> list[ComponentProcess]:
    """Return the components of a file in the order of their start."""
    servers = (
        ("object-storage-server", config.object_storage_server),
        ("scheduler", config.scheduler),
        ("web-ui", config.webui),
    )
    return [component(kind, model) for kind, model in servers if model is not None] + [
        component(
            "worker-manager",
            manager,
            name=f"worker manager {manager.worker_manager_id}",
            grace_seconds=0.0 if manager.type == "baremetal_native" else SERVICE_GRACE_SECONDS,
        )
        for manager in config.worker_managers
    ]


def _report_ready(supervisor: Supervisor, ready_fd: int) -> None:
    supervisor.wait_settled()
    with contextlib.suppress(BrokenPipeError), os.fdopen(ready_fd, "w") as pipe:
        if supervisor.supervision.ready:
            pipe.write(json.dumps({"component": "scaler", "pid": os.getpid(), "addresses": {}}) + "\n")


def _print(report: ReportLine) -> None:
    # Unbuffered, so that these lines and those of the components stay in their order.
    line = f"scaler: {report.text}\n".encode()
    with contextlib.suppress(OSError):  # the stream has no reader any more
        while line:
            line = line[os.write(2 if report.is_failure else 1, line) :]
