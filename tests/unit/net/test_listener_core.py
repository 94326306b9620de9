"""What a listener reports about connections: refused peers, and those that never identified themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaler.net.identity import LOCAL
from scaler.net.listener_core import MAX_UNIDENTIFIED, ListenerCore
from scaler.net.transport import (
    IDENTIFY_SECONDS,
    Admit,
    Admitted,
    Command,
    Cut,
    Deliver,
    EnvelopeReceived,
    Input,
    LiftLimits,
    LinkLost,
    LinkOpened,
    Report,
)
from scaler.net.versions import own_hello
from scaler.protocol.codec import encode
from scaler.protocol.messages import (
    MAX_HELLO_BYTES,
    PROTOCOL_VERSION,
    Goodbye,
    Hello,
    RefusalReason,
    Refused,
    Role,
    Server,
    Welcome,
)
from scaler.protocol.session import Envelope, Header, OutboxLimits

SESSION_ID = bytes(range(16))


class Link:
    passes_descriptors = False
    identity = LOCAL

    def transmit(self, envelopes: Sequence[Envelope]) -> bool:
        return bool(envelopes) or True

    def lift_limits(self) -> None: ...

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


def cuts(commands: Sequence[Command]) -> list[object]:
    return [command.link for command in commands if isinstance(command, Cut)]


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


# -- limits of unidentified peers --------------------------------------------------------------------------------------


def test_beyond_the_limit_the_oldest_unidentified_connection_of_the_busiest_source_is_cut(core: ListenerCore) -> None:
    quiet, first, second, *others = (Link() for _ in range(MAX_UNIDENTIFIED + 2))
    assert not cuts(core.step([LinkOpened(quiet, "", "10.0.0.1")], 0.0))
    opened = [LinkOpened(link, "", "10.0.0.2") for link in (first, second, *others)]
    assert cuts(core.step(opened[:-2], 1.0)) == []
    assert cuts(core.step(opened[-2:], 2.0)) == [first, second]


def test_connections_with_a_session_or_gone_count_no_more_as_unidentified(core: ListenerCore) -> None:
    links = [Link() for _ in range(MAX_UNIDENTIFIED)]
    opened: list[Input] = [LinkOpened(link) for link in links]
    performed(core, [*opened, envelope(links[0], own_hello(Role.CLIENT)), LinkLost(links[1])])
    assert cuts(core.step([LinkOpened(Link()), LinkOpened(Link())], 0.0)) == []
    assert cuts(core.step([LinkOpened(Link())], 0.0)) == [links[2]]


def test_when_descriptors_are_scarce_one_unidentified_connection_makes_room_for_each_new_one(
    core: ListenerCore,
) -> None:
    member, silent, new = Link(), Link(), Link()
    performed(core, [LinkOpened(member), envelope(member, own_hello(Role.CLIENT)), LinkOpened(silent)])
    assert cuts(core.step([LinkOpened(new, is_scarce=True)], 0.0)) == [silent]
    assert cuts(core.step([LinkOpened(Link(), is_scarce=True)], 0.0)) == [new]


def test_what_is_no_hello_by_its_size_alone_is_not_decoded(core: ListenerCore) -> None:
    link = Link()
    hello = envelope(link, own_hello(Role.CLIENT))
    large = hello._replace(body=hello.body + bytes(MAX_HELLO_BYTES))
    laden = hello._replace(attachments=[memoryview(b"x")])
    assert not [command for command in core.step([LinkOpened(link), large, laden], 0.0) if isinstance(command, Admit)]
    assert [command for command in core.step([hello], 0.0) if isinstance(command, Admit)]


def test_a_link_takes_more_than_a_hello_when_its_peer_is_welcomed(core: ListenerCore) -> None:
    member, refused = Link(), Link()
    commands = performed(core, [LinkOpened(member), envelope(member, own_hello(Role.CLIENT))])
    assert LiftLimits(member) in commands
    commands = performed(core, [LinkOpened(refused), envelope(refused, own_hello(Role.WORKER))])
    assert LiftLimits(refused) not in commands
