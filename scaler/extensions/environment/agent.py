"""Reports packages of a worker that differ from a client's, and the state of environments."""

from __future__ import annotations

from scaler.extensions.environment.messages import EnvironmentState
from scaler.protocol.messages import PackagesDiffer
from scaler.worker.agent.processors import ProcessorAgent
from scaler.worker.agent.shell import Agent
from scaler.worker.frames import Note, ToAgent


def report_packages(agent: Agent) -> None:
    def report(_number: int, note: Note, _descriptors: list[int]) -> None:
        function, _, text = note.text.decode("utf-8", "replace").partition("\n")
        agent.send(PackagesDiffer(note.identifier, function, text))

    agent.on_note[ToAgent.PACKAGES_DIFFER] = report
    if isinstance(agent, ProcessorAgent):
        agent.environment_module = "scaler.extensions.environment.prepare"
        agent.on_environment = lambda environment, server: agent.send(EnvironmentState(environment, server is None))
