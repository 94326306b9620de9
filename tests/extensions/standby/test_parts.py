"""A scheduler's part and a standby in this process, each with a simulated partner."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scaler.config.load import model_of
from scaler.config.servers import SchedulerConfig, scheduler_model
from scaler.errors import UsageError
from scaler.extensions.standby import main as standby_main
from scaler.extensions.standby.core import framed
from scaler.extensions.standby.first import FollowedSteps
from scaler.extensions.standby.lease import Lease
from scaler.extensions.standby.messages import Following, JournalBytes
from scaler.extensions.standby.standby import Standby
from scaler.extensions.standby.term import Term, read_term, write_term
from scaler.net.connection import Closed, ListenerEvent, Received, TryAgain
from scaler.net.server_access import ServerAccess
from scaler.net.versions import own_hello
from scaler.protocol import messages as m
from tests.integration.free_ports import free_addresses
from tests.integration.settings_rig import Peer, Stage, on_a_scheduler
from tests.waiting import soon

B = "tcp://b:1"
CLUSTER = "0123456789abcdef"


def config_of(directory: Path, **settings: Any) -> SchedulerConfig:
    given = {"bind_address": "tcp://127.0.0.1:1", "object_storage_address": "tcp://127.0.0.1:1", **settings}
    return model_of(scheduler_model(), {**given, "state_directory": str(directory)})


class Frame(SimpleNamespace):
    """What a scheduler's part uses of the server."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(config=config_of(directory, **settings), loop=asyncio.get_running_loop(), stop=asyncio.Event())
        self.storage, self.guests = SimpleNamespace(on_refused=None), dict[bytes, Any]()
        self.sent: list[Any] = []
        self.forgotten: list[bytes] = []
        self.listener = SimpleNamespace(
            send=lambda _, message: self.sent.append(message), forget=lambda peer, _: self.forgotten.append(peer)
        )
        self.perform = self.step = lambda _: None
        self.welcome = lambda _: m.Welcome(False, 1, 10.0, 2.0)

    def take(self, peer: bytes, number: int, received: int) -> None:
        if peer not in self.guests:
            assert isinstance(self.greet(peer, own_hello(m.Role.SCHEDULER)), m.Welcome)
        self.guests[peer](Received(peer, Following(B, number, received, 0.0, False)))

    async def follow(self, peer: bytes) -> None:
        """Bring a standby in step."""
        self.take(peer, 0, 0)
        await soon(lambda: sum(len(each.data) for each in self.sent))
        self.take(peer, 1, 12)


def begin(directory: Path, **settings: Any) -> tuple[Frame, FollowedSteps]:
    frame: Any = Frame(directory, **settings)
    steps = FollowedSteps(frame)
    steps.recover()
    return frame, steps


def run(main: Callable[[], Any]) -> None:
    asyncio.run(main())


def test_scheduler_stops_only_if_its_storage_has_another_scheduler(tmp_path: Path) -> None:
    async def main() -> None:
        frame, steps = begin(tmp_path)
        with closing(steps):
            await soon(lambda: frame.storage.on_refused)
            for reason in {*m.RefusalReason} - {m.RefusalReason.STANDBY}:
                frame.storage.on_refused(m.Refused(reason, "no"))
            assert not frame.stop.is_set()
            assert read_term(frame.config) is None
            frame.storage.on_refused(m.Refused(m.RefusalReason.STANDBY, "another scheduler uses it"))
            assert frame.stop.is_set()
            assert read_term(frame.config) == Term(serves=False)

    run(main)


@pytest.mark.parametrize("is_followed", [True, False])
def test_scheduler_whose_disk_hangs_leaves_its_lease_to_a_standby_in_step(
    is_followed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals = list[str]()

    async def renew(_lease: Lease, _epoch: int, standby: Callable[[], str] = lambda: "") -> None:
        renewals.append(standby())

    async def main() -> None:
        frame, steps = begin(tmp_path, standby_lease="s3://bucket/key", standby_lease_seconds=0.06)
        with closing(steps):
            if is_followed:
                await frame.follow(b"1")
                await soon(lambda: B in renewals)
            monkeypatch.setattr(FollowedSteps, "complaint", "the disk does not respond")
            del renewals[:]
            await soon(frame.stop.is_set if is_followed else lambda: len(renewals) > 9)
            assert len(renewals) < 2 if is_followed else not frame.stop.is_set()

    monkeypatch.setattr(Lease, "renew", renew)
    run(main)


def test_scheduler_with_a_full_disk_still_follows_promotions_and_standbys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise UsageError("the disk is full")

    async def main() -> None:
        frame, steps = begin(tmp_path)
        with closing(steps):
            monkeypatch.setattr("scaler.extensions.standby.first.write_term", fail)
            await frame.follow(b"1")
            assert steps.journal.source.is_in_step
            steps.step_down("another one was promoted")
            assert frame.stop.is_set()

    run(main)
    assert [each.message for each in caplog.records if each.levelno == logging.ERROR].count("the disk is full") == 3


def test_reports_from_an_earlier_session_do_not_replace_the_present_one(tmp_path: Path) -> None:
    async def main() -> None:
        frame, steps = begin(tmp_path)
        with closing(steps):
            await frame.follow(b"1")
            frame.take(b"2", 0, 0)
            frame.take(b"1", 1, 12)
            assert (steps.journal.source.peer, frame.forgotten) == (b"2", [b"1"])

    run(main)


@pytest.mark.parametrize("is_copied", [True, False])
def test_promoted_standby_stops_the_scheduler_and_never_lets_it_continue_alone(tmp_path: Path, is_copied: bool) -> None:
    end = framed(1, b"")

    async def main() -> None:
        first, second = free_addresses(count=2)
        reports, epochs, ended, followers = list[Following](), list[int](), list[object](), list[bytes]()

        def admit(_peer: bytes, hello: m.Hello, _identity: object) -> m.Welcome | m.Refused | TryAgain:
            epochs.append(hello.epoch)
            if hello.epoch and epochs.count(hello.epoch) < 3:
                listener.send(followers[0], JournalBytes(0.0, 0.0, b"" if is_copied else end))  # too late
                return TryAgain("soon")
            if hello.epoch:
                return m.Refused(m.RefusalReason.STANDBY, "this scheduler has stopped")
            return m.Welcome(False, 1, 10.0, 2.0, owner_token=CLUSTER.encode(), epoch=1)

        def take(events: list[ListenerEvent]) -> None:
            for event in events:
                match event:
                    case Received(peer, Following() as report):
                        data = b"" if peer in followers else framed(0, b"record") + (end if is_copied else b"")
                        reports.append(report)
                        followers.append(peer)
                        listener.send(peer, JournalBytes(report.at, 3.0 if report.number else 0.0, data))
                    case Closed():
                        ended.append(event)

        config = config_of(tmp_path, bind_address=second, standby_of=first, standby_timeout_seconds=0.2)
        access = ServerAccess(config, m.Server.SCHEDULER, [first])
        listener = access.listen(first, admit, take)
        with closing(access), closing(listener):
            standby = Standby(config, Term(serves=False))
            if not is_copied:
                write_term(config, Term(serves=False))
                (tmp_path / "scheduler").mkdir(mode=0o700)
            await soon(lambda: any(report.number if is_copied else report.received for report in reports))

            async def is_promoted() -> bool:
                return await standby.promote(force=not is_copied) == ""

            await soon(is_promoted)
            assert epochs == [0, 2, 2, 2], "it stops before the promoted one serves"
            standby.promoted.set_result(True)
            standby.close()
            await soon(lambda: ended)
        assert not any(report.leaves for report in reports)
        assert read_term(config) == Term(2, True, "", True, CLUSTER if is_copied else "")

    run(main)


def test_running_scheduler_stops_for_its_standby_and_refuses_a_second_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "scaler")

    async def main() -> None:
        first, _, _, second, third = free_addresses(count=5)
        with closing(Stage(config_of(tmp_path / "a", bind_address=first))) as stage:
            config = config_of(tmp_path / "b", bind_address=second, standby_of=first)
            standby = Standby(config, Term(serves=False))
            await soon(lambda: f"in step with {first}" in caplog.text)
            other = Standby(config_of(tmp_path / "c", bind_address=third, standby_of=first), Term(serves=False))
            await soon(lambda: f"the scheduler already has the standby {second}: stop one of the two" in caplog.text)
            other.close()
            assert await standby.promote(force=False) == ""
            assert stage.stop.is_set()
            standby.promoted.set_result(True)
            standby.close()

    run(main)


@contextmanager
def answering(address: str, answer: m.Welcome | m.Refused, directory: Path) -> Iterator[Any]:
    """Yield a configuration, while a server at this address gives every peer this answer."""
    config = config_of(directory, bind_address=address)
    access = ServerAccess(config, m.Server.SCHEDULER, [address])
    with closing(access), closing(access.listen(address, lambda *_: answer, lambda _: None)):
        yield config


def welcome(epoch: int, cluster: str) -> m.Welcome:
    return m.Welcome(False, 1, 10.0, 2.0, owner_token=cluster.encode(), epoch=epoch)


@pytest.mark.parametrize(
    ("answer", "is_replaced", "said"),
    [
        (welcome(2, CLUSTER), True, ""),
        (welcome(2, ""), True, ""),  # an earlier version
        (welcome(1, CLUSTER), False, ""),
        (m.Refused(m.RefusalReason.STANDBY, "a standby"), False, ""),
        (welcome(2, CLUSTER[::-1]), False, "was promoted, so this one serves: {} is the scheduler of another cluster"),
        (
            m.Refused(m.RefusalReason.VERSION, "too old"),
            False,
            "was promoted, so this one serves: {} refused .* too old",
        ),
        (None, False, "was promoted, so this one serves: {} does not answer"),
    ],
)
def test_restarted_scheduler_asks_its_partner_whether_it_was_replaced(
    answer: Any,
    is_replaced: bool,
    said: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partner = free_addresses(count=1)[0]
    served = []

    async def main() -> None:
        config = config_of(tmp_path, bind_address=free_addresses(count=1)[0])
        write_term(config, Term(1, True, partner, cluster=CLUSTER))
        component: Any = SimpleNamespace(stop=asyncio.Event(), ready=lambda _: component.stop.set())

        async def serve(*_: object) -> int:
            served.append(True)
            component.stop.set()
            return 0

        with answering(partner, answer, tmp_path / "partner") if answer else nullcontext():
            await standby_main.main(config, component, serve)

    monkeypatch.setattr(standby_main, "ASK_SECONDS", 20.0 if answer else 0.2)
    run(main)
    assert bool(served) is not is_replaced
    assert re.search(said.format(partner), caplog.text)
    assert ("cannot determine" in caplog.text) is bool(said)


def test_scheduler_stops_for_its_own_cluster_alone(tmp_path: Path) -> None:
    async def main() -> None:
        frame, steps = begin(tmp_path)
        with closing(steps):
            hello = replace(own_hello(m.Role.SCHEDULER), epoch=2, owner_token=CLUSTER.encode())
            own = frame.greet(b"1", hello).owner_token
            assert not frame.stop.is_set()
            assert own == frame.greet(b"2", hello).owner_token != CLUSTER.encode()
            assert read_term(frame.config) == Term(cluster=own.decode())
            assert frame.greet(b"3", replace(hello, owner_token=own)).reason is m.RefusalReason.STANDBY
            assert frame.stop.is_set()

    run(main)


def test_scheduler_dials_its_partner_at_most_once(tmp_path: Path) -> None:
    async def main() -> None:
        partner, first = free_addresses(count=2)
        greeted = list[m.Hello]()

        def admit(_peer: bytes, hello: m.Hello, _identity: object) -> m.Refused:
            greeted.append(hello)
            return m.Refused(m.RefusalReason.STANDBY, "")

        async def serve(*_: object) -> int:
            with closing(Stage(config)) as stage:
                await stage.peer(m.Role.CLIENT, m.ClientDetails("c"))
            component.stop.set()
            return 0

        config = config_of(tmp_path, bind_address=first)
        access = ServerAccess(config, m.Server.SCHEDULER, [partner])
        with closing(access), closing(access.listen(partner, admit, lambda _: None)):
            for term, count in ((Term(1, True, partner, False, CLUSTER), 1), (Term(2, True, "", True, CLUSTER), 1)):
                write_term(config, term)
                component: Any = SimpleNamespace(stop=asyncio.Event(), ready=None)
                await standby_main.main(config, component, serve)
                assert len(greeted) == count

    run(main)


def test_scheduler_remembers_its_standby_before_the_standby_is_in_step(tmp_path: Path) -> None:
    async def main() -> None:
        frame, steps = begin(tmp_path)
        with closing(steps):
            frame.take(b"1", 0, 0)
            assert not steps.journal.source.is_in_step
            term = read_term(frame.config)
            assert term is not None
            assert term.partner == B

    run(main)


def test_schedulers_with_and_without_a_journal_begin_with_the_same_epoch(tmp_path: Path) -> None:
    epochs = list[int]()

    async def ask(stage: Stage) -> None:
        peer = await stage.peer(m.Role.CLIENT, m.ClientDetails("c"))
        epochs.append((await peer.welcomed()).epoch)

    on_a_scheduler(ask)
    on_a_scheduler(ask, state_directory=str(tmp_path))
    assert epochs == [1, 1], "peers refuse an earlier one after a change of state_directory"


def test_standby_keeps_its_copy_if_the_scheduler_has_lost_its_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        first, second = free_addresses(count=2)
        config = config_of(tmp_path, bind_address=second, standby_of=first)
        (tmp_path / "scheduler").mkdir(mode=0o700)
        with answering(first, welcome(1, CLUSTER[::-1]), tmp_path / "first"):
            standby = Standby(config, Term(1, False, first, True, CLUSTER))
            await soon(lambda: f"{first} has lost the journal" in caplog.text)
            assert not (tmp_path / "standby").exists()
            assert "use --force to promote it" in await standby.promote(force=False)
            assert await standby.promote(force=True) == ""
            standby.close()

    run(main)


def test_promotion_needs_a_copy_and_recovers_one_between_two_renames(tmp_path: Path) -> None:
    async def main() -> None:
        config = config_of(tmp_path, bind_address=free_addresses(count=1)[0])
        write_term(config, Term(1, False, "", True))
        standby = Standby(config, Term(1, False, "", True))
        assert "it has no complete copy" in await standby.promote(force=True)
        peer = Peer(standby.address, m.Role.CLIENT, m.ClientDetails("c"))
        refused = await peer.until(lambda: peer.refused)
        assert "no longer the scheduler: connect to its successor, or specify both addresses" in refused.text
        peer.connector.close()
        standby.close()
        (tmp_path / "scheduler.earlier").mkdir()
        standby = Standby(config, Term(1, False, "", True))
        assert await standby.promote(force=True) == ""
        standby.close()
        assert (tmp_path / "scheduler").is_dir()

    run(main)
