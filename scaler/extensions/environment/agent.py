"""Reports differences between a worker's and a client's packages, and the states of environments."""

from __future__ import annotations

import time

from scaler.extensions.environment.messages import EnvironmentState
from scaler.protocol.messages import PackagesDiffer, WorkerHeartbeat
from scaler.worker.agent.processors import ProcessorAgent
from scaler.worker.agent.shell import Agent
from scaler.worker.fork_server import MAX_REASON_BYTES, ForkServer
from scaler.worker.frames import Note, ToAgent


def report_packages(agent: Agent) -> None:
    preparing: dict[bytes, tuple[ForkServer, float]] = {}

    def report(_number: int, note: Note, _descriptors: list[int]) -> None:
        function, _, text = note.text.decode("utf-8", "replace").partition("\n")
        agent.send(PackagesDiffer(note.identifier, function, text))

    def report_state(environment: bytes, server: ForkServer | None) -> None:
        if server is None:
            preparing.pop(environment, None)
        else:
            preparing.setdefault(environment, (server, time.monotonic()))
        agent.send(EnvironmentState(environment, server is None))

    def report_progress(_heartbeat: WorkerHeartbeat) -> None:
        for environment, (server, begin) in preparing.items():
            if text := server.reason(MAX_REASON_BYTES):
                text = f"{text}, {time.monotonic() - begin:.0f} s so far"
                agent.send(EnvironmentState(environment, False, text))

    agent.on_note[ToAgent.PACKAGES_DIFFER] = report
    if isinstance(agent, ProcessorAgent):
        agent.environment_module = "scaler.extensions.environment.prepare"
        agent.on_environment = report_state
        agent.on_heartbeat.append(report_progress)
