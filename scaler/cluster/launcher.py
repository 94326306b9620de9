"""`scaler FILE` and `scaler local`: starts components in order, supervises them, and stops them in reverse.

Exits with 0 after a requested stop (SIGINT, SIGTERM, SIGHUP) or an orderly end, 1 after a failure, and 2 if a component
rejected its settings. A second signal kills the remaining processes. A parent program may set SCALER_READY_FD to
receive a line when all components are ready, and SCALER_PARENT_PID to stop all components when the parent exits.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from functools import partial

from scaler.cluster.supervision import ComponentProcess, ReportLine
from scaler.cluster.supervisor import PORTS_OF_A_SCHEDULER, ReservedPorts, Supervisor, component
from scaler.config.addresses import local_address
from scaler.config.clusters import LauncherConfig
from scaler.config.setting import SettingsModel
from scaler.errors import UsageError
from scaler.monitor.web.page import link_to_show, listen, page_of
from scaler.output import STDERR, STDOUT, OutputStreams
from scaler.policy.load import check_managers, load_policy
from scaler.process_state import leave_removed_directory, open_standard_descriptors, restore_signals
from scaler.processes import PARENT_PID_VARIABLE, READY_FD_VARIABLE, STOP_SIGNALS, handling_signals
from scaler.registry import Registration

SERVICE_GRACE_SECONDS = 24.0  # extra stop time for a worker manager that stops units through a service


def run(request: LauncherConfig | Callable[[str], LauncherConfig]) -> int:
    """Run until all components end; return the exit code. Raises UsageError for invalid settings before any start.
    request: a configuration, or a function that takes a free address for the scheduler and returns one."""
    restore_signals()
    open_standard_descriptors()
    leave_removed_directory()
    ready_fd = os.environ.pop(READY_FD_VARIABLE, None)
    parent_pid = os.environ.pop(PARENT_PID_VARIABLE, None)
    if ready_fd is not None:
        os.set_inheritable(int(ready_fd), False)
    output = OutputStreams()
    with contextlib.ExitStack() as after:
        after.callback(output.close)
        if isinstance(request, LauncherConfig):
            config = request
        else:
            ports = ReservedPorts(PORTS_OF_A_SCHEDULER)
            after.callback(ports.release)  # held until the end, because a restarted server needs its port
            config = request(ports.address())
        check_policy(config)
        registration = Registration(config.name)
        after.callback(registration.close)
        listening, page = open_page(config, after, lambda text: _print(output, ReportLine(text, is_failure=True)))

        def on_ready() -> None:
            _publish(config, registration, page, output)
            if ready_fd is not None:
                with contextlib.suppress(BrokenPipeError), os.fdopen(int(ready_fd), "w") as pipe:
                    pipe.write(json.dumps({"component": "scaler", "pid": os.getpid(), "addresses": {}}) + "\n")

        parent = None if parent_pid is None else int(parent_pid)
        report = partial(_print, output)
        components = components_of(config, listening)
        supervisor = Supervisor(
            components, report=report, on_ready=on_ready, registration=registration, parent_pid=parent, output=output
        )
        with handling_signals(STOP_SIGNALS, lambda _, count: supervisor.stop(hurry=count > 1)):
            return supervisor.run()


def components_of(config: LauncherConfig, listening: socket.socket | None = None) -> list[ComponentProcess]:
    """Return the components in starting order. listening: the web page's socket, or None without a page."""
    servers: tuple[tuple[str, SettingsModel | None, socket.socket | None], ...] = (
        ("object-storage-server", config.object_storage_server, None),
        ("scheduler", config.scheduler, None),
        ("web-ui", None if listening is None else config.webui, listening),
    )
    processes = [component(name, model, optional=True) for name, model in config.processes.items()]
    return (
        [component(kind, model, listening=bound) for kind, model, bound in servers if model is not None]
        + [
            component(
                "worker-manager",
                manager,
                name=f"worker manager {manager.worker_manager_id}",
                grace_seconds=0.0 if manager.type == "baremetal_native" else SERVICE_GRACE_SECONDS,
                independent=manager.type != "baremetal_native",
            )
            for manager in config.worker_managers
        ]
        + processes
    )


def check_policy(config: LauncherConfig) -> None:
    policy = load_policy(config.scheduler.policy_engine_type, config.scheduler.policy_content)
    scaled = [each.worker_manager_id for each in config.worker_managers if getattr(each, "mode", "") != "fixed"]
    check_managers(policy, [each.worker_manager_id for each in config.worker_managers], scaled)


def open_page(
    config: LauncherConfig, after: contextlib.ExitStack, warn: Callable[[str], None]
) -> tuple[socket.socket | None, str]:
    """Return the web page's socket, which `after` closes, and its link; None and an empty string without a page."""
    if config.webui is None:
        return None, ""
    try:
        listening = after.enter_context(listen(config.webui.web_host, config.webui.web_port))
    except UsageError as error:
        warn(f"no web page: {error}")
        return None, ""
    return listening, page_of(listening, is_encrypted=config.webui.web_certificate_file is not None)


def _publish(config: LauncherConfig, registration: Registration, page: str, output: OutputStreams) -> None:
    address, name = local_address(config.scheduler.bind_address), registration.name
    registration.publish(address, local_address(config.scheduler.monitor_address), page)
    if registration.problem:
        _print(output, ReportLine(registration.problem, is_failure=True))
    elif name != config.name:
        _print(output, ReportLine(f"the name {config.name} is taken; this cluster is named {name}"))
    page = page if config.webui is None else link_to_show(config.webui, page)
    by_name = "" if registration.problem else f'Client("{name}") or '
    _print(output, ReportLine(f'connect with {by_name}Client("{address}"){f"; web page {page}" if page else ""}'))


def _print(output: OutputStreams, report: ReportLine) -> None:
    output.write(STDERR if report.is_failure else STDOUT, f"scaler: {report.text}\n".encode())
