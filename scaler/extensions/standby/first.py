"""The scheduler that a standby follows. While the standby is in step, steps also wait for the standby's disk."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from scaler.errors import UsageError
from scaler.extensions.durability.ledger import JournalChanged
from scaler.extensions.durability.steps import DurableSteps, journal_directory
from scaler.extensions.standby.core import FollowedStream
from scaler.extensions.standby.lease import Lease
from scaler.extensions.standby.messages import Following
from scaler.extensions.standby.term import Term, read_term, write_term
from scaler.journal.directory import JournalDirectory
from scaler.journal.journal import Journal, _Disk
from scaler.net.connection import Closed, ListenerEvent, Received
from scaler.protocol import messages as m
from scaler.scheduler.core.commands import DurabilitySaid

if TYPE_CHECKING:
    from scaler.scheduler.server import SchedulerServer

BASE_RECORDS = 256
_log = logging.getLogger(__name__)


class FollowedJournal(Journal):
    """durable: number of the last record on this disk and, while the standby is in step, on the standby's disk."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.source = FollowedStream(0.0)
        super().__init__(*args, **options)

    def append(self, body: bytes) -> None:
        super().append(body)
        self.source.appended(self.written, body, self._loop.time())

    def _set(self, disk: _Disk) -> _Disk:
        self.on_disk = super()._set(disk)
        self.durable = int(min(disk.durable, self.source.limit))
        return disk

    @property
    def waiting_seconds(self) -> float:  # excludes waits for the standby
        return super().waiting_seconds if self.on_disk.durable < self.written else 0.0

    def refresh(self) -> None:
        """Update `durable` after the standby has confirmed records, or when steps no longer wait for the standby."""
        self._set(self.on_disk)
        self._on_change()


class FollowedSteps(DurableSteps):
    make_journal = FollowedJournal
    journal: FollowedJournal

    def __init__(self, frame: SchedulerServer) -> None:
        path = journal_directory(frame.config.state_directory)
        super().__init__(path, frame.perform, lambda *change: frame.step([DurabilitySaid(JournalChanged(*change))]))
        self._frame = frame
        self._config = cast("Any", frame.config)
        self._term = read_term(frame.config) or Term()
        self._source = self.journal.source
        self._source.timeout_seconds = self._config.standby_timeout_seconds
        self._was_in_step = self._is_leaving = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._tick_timer: asyncio.TimerHandle | None = None
        self._lease = Lease.of(self._config)
        self._renewed_at = frame.loop.time()
        frame.epoch, frame.greet = self._term.epoch, self._greet
        frame.loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._frame.storage.on_refused = self._on_refused
        if self._lease is not None:
            self._run(self._renew(self._lease))

    def _on_refused(self, refused: m.Refused) -> None:
        if refused.reason is m.RefusalReason.STANDBY:
            self.step_down(refused.text)

    def _run(self, work: Any) -> None:
        task = self._frame.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, lease: Lease) -> None:
        """Renew the lease, or stop before it expires. By its own clock, the standby waits longer."""
        seconds, loop = self._config.standby_lease_seconds, self._frame.loop
        while True:
            began = loop.time()
            try:
                async with asyncio.timeout(seconds / 6):
                    # If the disk hangs, a standby in step should take over.
                    hangs = self.complaint if self._source.is_in_step else ""
                    why = hangs or await lease.renew(self._term.epoch, self._in_step)
            except TimeoutError:
                why = "the lease store did not answer"
            if why is None:
                self._renewed_at = began
                self._tick()
            elif lease.is_lost or loop.time() - self._renewed_at >= seconds / 2:
                self.step_down(why)
                return
            await asyncio.sleep(max(0.0, min(seconds / 6, began + seconds / 6 - loop.time())))

    def _in_step(self) -> str:
        return self._source.address if self._source.is_in_step else ""

    def step_down(self, why: str) -> None:
        """Stop serving peers and acknowledging tasks."""
        if self._frame.stop.is_set():
            return
        _log.error("this scheduler stops serving: %s", why)
        self._perform = lambda _commands: None
        self._held.clear()
        self._frame.stop.set()
        self._note_term(serves=False)

    def _note_term(self, **changed: Any) -> None:
        """Update the term file. If writing fails, the epochs decide after a restart."""
        self._term = self._term._replace(**changed)
        try:
            write_term(self._config, self._term)
        except UsageError as error:
            _log.error("%s", error)

    # -- the standby

    def _greet(self, peer: bytes, hello: m.Hello) -> m.Welcome | m.Refused:
        if hello.epoch > self._term.epoch and self._term.is_of(hello.owner_token):
            self.step_down(f"the scheduler on {hello.hostname} was promoted")
            return m.Refused(m.RefusalReason.STANDBY, "this scheduler has stopped")
        if not self._config.object_storage_address:
            text = "its object storage would stop with it: run one elsewhere, and set object_storage_address"
            return m.Refused(m.RefusalReason.ROLE, f"the scheduler cannot have a standby, because {text}")
        if not self._term.cluster:
            self._note_term(cluster=os.urandom(8).hex())
        self._frame.guests[peer] = self._take
        return replace(self._frame.welcome(m.Role.SCHEDULER), owner_token=self._term.cluster.encode())

    def _take(self, event: ListenerEvent) -> None:
        match event:
            case Received(peer, Following() as message) if peer == self._source.peer:
                self._source.heard(message, self._frame.loop.time())
                self.journal.refresh()
                self._flush(is_due=False)
            case Received(peer, Following(number=number, received=received)) if number or received:
                self._expel(peer, m.Goodbye("another session replaced this one"))
            case Received(peer, Following() as message):
                self._source.last = self.journal.written
                if why := self._source.follow(peer, message, self._frame.loop.time()):
                    self._expel(peer, m.Refused(m.RefusalReason.LIMIT, why))
                    return
                _log.info("the standby %s follows", message.address)
                if self._term.partner != message.address:
                    self._note_term(partner=message.address)
                self.journal.refresh()
                self._run(self._read_base(peer))
                self._tick()
            case Closed(peer):
                del self._frame.guests[peer]
                if peer == self._source.peer:
                    self._source.lost()
        self._note()

    async def _read_base(self, peer: bytes) -> None:
        """Send the journal from disk. The standby starts over if compaction deletes files during the transfer."""
        loop, source = self._frame.loop, self._source
        written, why = self.journal.written, ""
        try:
            while self.journal.on_disk.durable < written and source.peer == peer:  # noqa: ASYNC110 (short)
                await asyncio.sleep(0.01)
            directory = JournalDirectory(self._path, m.PROTOCOL_VERSION, lock=False)
            bodies = directory.bodies()
            while records := await loop.run_in_executor(None, lambda: [*itertools.islice(bodies, BASE_RECORDS)]):
                if source.peer != peer:
                    return
                source.add_base(records)
                self._flush(is_due=False)
                while not source.wants_base and source.peer == peer:  # noqa: ASYNC110 (as above)
                    await asyncio.sleep(0.01)
            if source.peer == peer and not source.end_base(directory.replay.last):
                why = "records are missing"
        except (OSError, UsageError) as error:
            why = str(error)
        if why and source.peer == peer:
            self._give_up(f"the journal cannot be read now: {why}")
        self._flush(is_due=False)

    def _give_up(self, why: str) -> None:
        _log.warning("the standby %s starts over: %s", self._source.address, why)
        self._expel(self._source.peer, m.Goodbye(why))
        self._source.lost()

    def _expel(self, peer: bytes, reason: m.Refused | m.Goodbye) -> None:
        self._frame.guests.pop(peer, None)
        self._frame.listener.forget(peer, reason)

    def _flush(self, *, is_due: bool) -> None:
        if self._source.peer and (is_due or self._source.can_send):
            for message in self._source.take():
                self._frame.listener.send(self._source.peer, message)

    def _tick(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        source = self._source
        if source.is_due_to_leave(self._frame.loop.time()) and not self._is_leaving:
            self._is_leaving = True
            self._run(self._leave())
        if source.must_start_over(self._frame.loop.time()):
            self._give_up("it is too slow or silent")
        self._flush(is_due=True)
        self._note()
        if source.peer or source.waits:
            self._tick_timer = self._frame.loop.call_later(source.timeout_seconds / 8, self._tick)

    async def _leave(self) -> None:
        """Continue without the standby once the lease no longer names it."""
        while self._lease is not None and await self._lease.renew(self._term.epoch) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        self._is_leaving = False
        self._source.leave()
        self.journal.refresh()

    def _note(self) -> None:
        source = self._source
        if source.is_in_step == self._was_in_step:
            return
        self._was_in_step = source.is_in_step
        if source.is_in_step:
            _log.info("the standby %s is in step", source.address)
        else:
            _log.warning("the standby %s is out of step: it will lack acknowledged tasks", source.address)

    # -- steps

    def add(self, inputs: Any, commands: Any) -> None:
        super().add(inputs, commands)
        self._flush(is_due=False)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._lease is not None:
            self._lease.close()
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        super().close()
