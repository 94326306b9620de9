"""A connector's reactions to a server's answers, refusals, and silence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from scaler.net.connection import Broken, ConnectionRefused, Resumed, Welcomed
from scaler.net.connector_core import ConnectorCore
from scaler.net.transport import (
    HANDSHAKE_SECONDS,
    MAX_MALFORMED_IN_A_ROW,
    CloseRequested,
    Command,
    Deliver,
    EnvelopeReceived,
    Input,
    LinkLost,
    LinkOpened,
    MalformedReceived,
    StartSession,
)
from scaler.net.versions import own_hello
from scaler.object_storage.messages import StatStorage
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    Acknowledge,
    Goodbye,
    Heartbeat,
    Hello,
    RefusalReason,
    Refused,
    Role,
    Welcome,
)
from scaler.protocol.session import Header, OutboxLimits
from scaler.scheduler.core.durability import RECOVERY_SECONDS
from tests.unit.net.test_listener_core import SESSION_ID, Link, cuts, envelope, sent

WELCOME = Welcome(False, 1, lease_seconds=60.0, heartbeat_seconds=2.0)


class Story:
    """A connector whose connection was opened at 0 s."""

    def __init__(self, answer: Welcome | None = None, address: str = "") -> None:
        hello = replace(own_hello(Role.CLIENT), compression="zstd")
        self.core = ConnectorCore(SESSION_ID, hello, OutboxLimits(), 0.0, address)
        self.link = Link()
        self.core.step([], 0.0)
        assert [type(message) for message in self.opens()] == [Hello]
        if answer is not None:
            self.begun = self.takes(0.0, envelope(self.link, answer))

    def opens(self) -> list[object]:
        return [message for _, message in sent(self.core.step([LinkOpened(self.link)], 0.0))]

    def takes(self, now: float, *inputs: Input) -> list[Command]:
        """Return the commands of all steps until nothing is left to do."""
        commands = self.core.step(inputs, now)
        return commands + (self.takes(now) if any(isinstance(command, Deliver) for command in commands) else [])


def events(commands: Sequence[Command]) -> list[object]:
    return [event for command in commands if isinstance(command, Deliver) for event in command.events]


def nonsense(story: Story) -> EnvelopeReceived:
    return envelope(story.link, StatStorage(1))._replace(body=b"nonsense")


def test_welcome_is_acknowledged_and_starts_heartbeats_and_compression() -> None:
    story = Story(replace(WELCOME, compression="zstd"))
    assert [type(event) for event in events(story.begun)] == [Welcomed]
    assert StartSession(story.link, compresses=True) in story.begun
    assert [message for _, message in sent(story.begun)] == [Acknowledge()]
    assert story.core.wake_at == 2.0
    assert [type(message) for _, message in sent(story.takes(2.0))] == [Heartbeat]


def test_server_that_answers_hello_with_nonsense_or_silence_is_disconnected_at_once() -> None:
    for answer in (
        envelope(story_link := Link(), WELCOME, bytes(16)),
        EnvelopeReceived(story_link, Header(PROTOCOL_VERSION, 1, SESSION_ID, 0, 0).pack(), b""),
        EnvelopeReceived(story_link, Header(PROTOCOL_VERSION, 0, SESSION_ID, 0, 0).pack(), b"nonsense"),
        None,
    ):
        story = Story()
        inputs = [] if answer is None else [answer._replace(link=story.link)]
        assert cuts(story.takes(HANDSHAKE_SECONDS if answer is None else 1.0, *inputs)) == [story.link]


@pytest.mark.parametrize("malformed", [nonsense, lambda story: MalformedReceived(story.link, "no header")])
def test_connector_sends_a_goodbye_after_repeated_malformed_messages(malformed: Callable[[Story], Input]) -> None:
    story = Story(WELCOME)
    for _ in range(MAX_MALFORMED_IN_A_ROW - 1):
        commands = story.takes(1.0, malformed(story))
        assert cuts(commands) == [story.link]
        assert [type(event) for event in events(commands)] == [Broken]
        story.core.step([], story.core.wake_at)
        story.opens()
        resumed = story.takes(1.0, envelope(story.link, replace(WELCOME, resumed=True)))
        assert [type(event) for event in events(resumed)] == [Resumed]
    story.core.send(StatStorage(1))
    commands = story.takes(1.0, malformed(story))
    assert [type(event) for event in events(commands)] == [ConnectionRefused]
    assert [type(message) for _, message in sent(commands)] == [Goodbye]


def test_server_goodbye_ends_the_connection_but_not_the_session() -> None:
    story = Story(WELCOME)
    commands = story.takes(1.0, envelope(story.link, Goodbye("it restarts")))
    assert (cuts(commands), events(commands)) == ([story.link], [Broken(SESSION_ID[:8])])
    assert story.core.last_error == "the server closed the connection: it restarts"


def test_closing_connector_flushes_its_queue_then_sends_a_goodbye() -> None:
    story = Story(WELCOME)
    story.core.send(StatStorage(1))
    assert [message for _, message in sent(story.takes(1.0, CloseRequested("done")))] == [
        StatStorage(1),
        Goodbye("done"),
    ]


@pytest.mark.parametrize(
    ("was_welcomed", "refused_after", "attempts"), [(False, 1, 1), (False, 2, 2), (True, 1, 1), (True, 2, None)]
)
def test_connector_gives_up_only_after_a_certain_refusal(
    was_welcomed: bool, refused_after: int, attempts: int | None
) -> None:
    story = Story(WELCOME if was_welcomed else None)
    for attempt in range(1, 4):
        lost = story.takes(1.0, LinkLost(story.link, "the key is not known", refused_after))
        refused = [event for event in events(lost) if isinstance(event, ConnectionRefused)]
        if attempt == attempts:
            assert [event.refused.reason for event in refused] == [RefusalReason.CREDENTIAL]
            return
        assert refused == []
        story.core.step([], story.core.wake_at)
        story.opens()
    assert attempts is None


BOTH = "tcp://a:1, tcp://b:1"
NOT_HERE = Refused(RefusalReason.STANDBY, "tcp://b:1 is the scheduler")


def test_connector_tries_the_next_address_after_a_failure_but_returns_to_the_one_that_welcomed_it() -> None:
    story = Story(address=BOTH)
    assert story.core.address == "tcp://a:1"
    story.takes(0.0, LinkLost(story.link, "nothing listens there"))
    assert story.core.address == "tcp://b:1"
    story.core.step([], story.core.wake_at)
    story.opens()
    story.takes(1.0, envelope(story.link, WELCOME))
    story.takes(2.0, LinkLost(story.link, "it broke"))
    assert story.core.address == "tcp://b:1"
    story.core.step([], story.core.wake_at)
    story.takes(3.0, LinkLost(None, "nothing listens there"))
    assert story.core.address == "tcp://a:1"


@pytest.mark.parametrize("answer", [None, WELCOME])
def test_connector_tries_the_next_address_if_a_server_serves_no_peers(answer: Welcome | None) -> None:
    story = Story(answer, BOTH)
    commands = story.takes(1.0, envelope(story.link, NOT_HERE))
    assert not [event for event in events(commands) if isinstance(event, ConnectionRefused)]
    assert (story.core.address, story.core.last_error) == ("tcp://b:1", NOT_HERE.text)
    alone = Story(answer, "tcp://a:1")
    assert events(alone.takes(1.0, envelope(alone.link, NOT_HERE))) == [ConnectionRefused(NOT_HERE)]


def test_connector_leaves_a_scheduler_of_an_earlier_epoch_and_drops_no_message() -> None:
    story = Story(replace(WELCOME, epoch=2), BOTH)
    story.core.send(StatStorage(1))
    story.takes(1.0, LinkLost(story.link, "it froze"))
    story.core.step([], story.core.wake_at)
    story.opens()
    assert events(story.takes(2.0, envelope(story.link, replace(WELCOME, epoch=1)))) == []
    assert story.core.address == "tcp://b:1"
    story.core.step([], story.core.wake_at)
    story.opens()
    resumed = story.takes(3.0, envelope(story.link, replace(WELCOME, epoch=2, resumed=True)))
    assert [type(event) for event in events(resumed)] == [Resumed]
    assert StatStorage(1) in [message for _, message in sent(resumed)]


def test_connector_leaves_a_silent_server_for_the_next_address() -> None:
    story = Story(WELCOME, BOTH)
    story.core.send(StatStorage(1))
    story.takes(1.0)
    commands = story.takes(1.0 + WELCOME.lease_seconds / 2)
    assert (cuts(commands), story.core.address) == ([story.link], "tcp://b:1")


@pytest.mark.parametrize("address", ["tcp://a:1", BOTH])
def test_connector_dials_each_address_again_before_a_restarted_scheduler_releases_its_tasks(address: str) -> None:
    slowest = b"\xff" * len(SESSION_ID)
    core = ConnectorCore(slowest, own_hello(Role.CLIENT), OutboxLimits(), 0.0, address)
    dialled, now = dict[str, float](), 0.0
    core.step([], now)
    for _ in range(40):
        core.step([LinkLost(None, "nothing listens there")], now)
        now = core.wake_at
        core.step([], now)
        assert now - dialled.get(core.address, now) < RECOVERY_SECONDS
        dialled[core.address] = now
    assert len(dialled) == len(address.split(","))
