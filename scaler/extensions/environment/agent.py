"""Reports differences between a worker's and a client's packages, and the states of environments."""

from __future__ import annotations

import time
from functools import partial

from scaler.extensions.environment.messages import EnvironmentState
from scaler.protocol.messages import PackagesDiffer, WorkerHeartbeat
from scaler.worker.agent.processors import ProcessorAgent
from scaler.worker.agent.shell import Agent
from scaler.worker.fork_server import MAX_REASON_BYTES, ForkServer
from scaler.worker.frames import Note, ToAgent


def report_packages(agent: Agent) -> None:
    def report(_number: int, note: Note, _descriptors: list[int]) -> None:
        function, _, text = note.text.decode("utf-8", "replace").partition("\n")
        agent.send(PackagesDiffer(note.identifier, function, text))

    agent.on_note[ToAgent.PACKAGES_DIFFER] = report
    if isinstance(agent, ProcessorAgent):
        preparing: dict[bytes, tuple[ForkServer, float]] = {}
        agent.environment_module = "scaler.extensions.environment.prepare"
        agent.on_environment = partial(_changed, agent, preparing)
        agent.on_heartbeat.append(partial(_tell, agent, preparing))


def _changed(
    agent: Agent, preparing: dict[bytes, tuple[ForkServer, float]], environment: bytes, server: ForkServer | None
) -> None:
    if server is None:
        preparing.pop(environment, None)
    else:
        preparing.setdefault(environment, (server, time.monotonic()))
    agent.send(EnvironmentState(environment, server is None))


def _tell(agent: Agent, preparing: dict[bytes, tuple[ForkServer, float]], _heartbeat: WorkerHeartbeat) -> None:
    for environment, (server, begin) in preparing.items():
        if text := server.reason(MAX_REASON_BYTES):
            text = f"{text}, {time.monotonic() - begin:.0f} s so far"
            agent.send(EnvironmentState(environment, False, text))
