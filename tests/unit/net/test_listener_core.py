"""What a listener reports about connections: refused peers, and those that never identified themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaler.net.identity import LOCAL
from scaler.net.listener_core import ListenerCore
from scaler.net.transport import (
    IDENTIFY_SECONDS,
    Admit,
    Admitted,
    Command,
    Cut,
    Deliver,
    EnvelopeReceived,
    Input,
    LinkLost,
    LinkOpened,
    Report,
)
from scaler.net.versions import own_hello
from scaler.protocol.codec import encode
from scaler.protocol.messages import PROTOCOL_VERSION, Goodbye, Hello, RefusalReason, Refused, Role, Server, Welcome
from scaler.protocol.session import Envelope, Header, OutboxLimits

SESSION_ID = bytes(range(16))


class Link:
    passes_descriptors = False
    identity = LOCAL

    def transmit(self, envelopes: Sequence[Envelope]) -> bool:
        return bool(envelopes) or True

    def cut(self) -> None: ...


def answer(hello: Hello) -> Welcome | Refused:
    if hello.role is Role.WORKER:
        return Refused(RefusalReason.VERSION, "too old")
    return Welcome(False, 1, lease_seconds=60.0, heartbeat_seconds=2.0)


def performed(core: ListenerCore, inputs: list[Input]) -> list[Command]:
    """The commands of all steps until nothing is left to do; greetings are answered as a component does."""
    commands: list[Command] = []
    while True:
        step = core.step(inputs, 0.0)
        commands += step
        inputs = [Admitted(answer(command.hello)) for command in step if isinstance(command, Admit)]
        if not inputs and not any(isinstance(command, Deliver) for command in step):
            return commands


@pytest.fixture
def core() -> ListenerCore:
    return ListenerCore(Server.OBJECT_STORAGE, OutboxLimits())


def envelope(link: Link, message: Hello | Goodbye) -> EnvelopeReceived:
    header = Header(PROTOCOL_VERSION, 0, SESSION_ID, 0, 0).pack()
    return EnvelopeReceived(link, header, encode(message))


def reports(commands: Sequence[Command]) -> list[Command]:
    return [command for command in commands if isinstance(command, Report)]


def test_a_connection_that_ends_before_any_envelope_is_reported_with_its_origin(core: ListenerCore) -> None:
    link = Link()
    assert not reports(core.step([LinkOpened(link, "10.0.0.7 port 99")], 0.0))
    (report,) = reports(core.step([LinkLost(link)], 1.0))
    assert report == Report(
        "a connection from 10.0.0.7 port 99 ended before anything of this protocol came", is_refusal=False
    )


def test_a_peer_that_said_hello_and_goodbye_is_not_reported(core: ListenerCore) -> None:
    link = Link()
    arrived: list[Input] = [
        LinkOpened(link),
        envelope(link, own_hello(Role.CLIENT)),
        envelope(link, Goodbye("")),
        LinkLost(link),
    ]
    assert not reports(performed(core, arrived))


def test_a_refused_peer_is_reported_as_refused_only(core: ListenerCore) -> None:
    link = Link()
    arrived: list[Input] = [LinkOpened(link), envelope(link, own_hello(Role.WORKER)), LinkLost(link)]
    assert reports(performed(core, arrived)) == [Report("too old", is_refusal=True)]


def test_a_silent_connection_is_cut_when_its_time_is_over(core: ListenerCore) -> None:
    link = Link()
    core.step([LinkOpened(link)], 5.0)
    assert core.wake_at == 5.0 + IDENTIFY_SECONDS
    assert core.step([], core.wake_at - 0.1) == []
    assert Cut(link) in core.step([], core.wake_at)
