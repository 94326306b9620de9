"""A scheduler that follows another scheduler and refuses all peers."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import deque
from contextlib import suppress
from typing import Any

from scaler.errors import UnreachableError, UsageError
from scaler.extensions.durability.steps import journal_directory
from scaler.extensions.standby.core import Follower
from scaler.extensions.standby.lease import Lease
from scaler.extensions.standby.messages import Following, JournalBytes, Promote, Promoted
from scaler.extensions.standby.term import Term, greeted, write_term
from scaler.journal.journal import Journal
from scaler.net.address import own_address
from scaler.net.connection import Broken, ConnectionRefused, ConnectorEvent, Identity, ListenerEvent, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.server_access import ServerAccess
from scaler.net.versions import check_versions, own_hello
from scaler.protocol import messages as m

COMPACTOR = "scaler.extensions.durability.steps"
RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Standby:
    """promoted: completes with True, or with an error."""

    def __init__(self, config: Any, term: Term) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        self.promoted: asyncio.Future[bool] = self._loop.create_future()
        self._term = term
        self._refused = self._cluster = ""
        self._first = config.standby_of or term.partner
        self._access = ServerAccess(config, m.Server.SCHEDULER, [config.bind_address])
        self._listener = self._access.listen(config.bind_address, self._admit, self._on_events)
        self.address = own_address(self._listener.addresses[0])
        self._path = journal_directory(config.state_directory)
        self._earlier, self._new = self._path.with_name("scheduler.earlier"), self._path.with_name("standby")
        if self._earlier.exists() and not self._path.exists():  # a crash between two renames
            self._earlier.rename(self._path)
        self._journal: Journal | None = None
        self._connector: SocketConnector | None = None
        self._lease = Lease.of(config)
        self._watching = asyncio.ensure_future(self._watch(self._lease)) if self._lease is not None else None
        self._start_over()
        self._report_timer = self._loop.call_later(0, self._report)

    def close(self) -> None:
        self._report_timer.cancel()
        if self._watching is not None and self._lease is not None:
            self._watching.cancel()
            self._lease.close()
        self.promoted.cancel()
        self._follower.leave(self._loop.time())
        self._send()  # reports the departure
        if self._connector is not None:
            self._connector.close("the standby ends")
        if self._journal is not None:
            self._journal.close()
        self._listener.close()
        self._access.close()

    # -- following

    def _start_over(self) -> None:
        """Follow the journal from its start, into a new directory. Keeps the earlier copy until the new copy is
        complete."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._connector is not None:
            self._connector.close("it starts over")
            self._connector = None
        self._follower = Follower()
        self._covered: int | None = None
        self._base = self._accepted = 0
        self._marks: deque[tuple[int, int]] = deque()
        """Local number of each record not yet on disk, with the number of bytes received up to that record."""
        if not self.config.standby_of:
            return
        self._connector = SocketConnector(
            self._first,
            m.Server.SCHEDULER,
            self._access.to_storage,
            own_hello(m.Role.SCHEDULER),
            self._on_connector_events,
        )

    def _open(self, path: Any) -> None:
        self._journal = Journal(path, COMPACTOR, self._on_written, content=m.PROTOCOL_VERSION)
        for _ in self._journal.recover():
            pass

    def _on_connector_events(self, events: list[ConnectorEvent]) -> None:
        try:
            self._apply(events)
        except (OSError, UsageError) as error:
            _log.error("%s; trying again", error)
            self._loop.call_later(RETRY_SECONDS, self._retry)

    def _apply(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Welcomed(welcome) if self._journal is not None:  # the scheduler does not know this session
                    self._start_over()
                    return
                case Welcomed(welcome) if self._term.has_copy and not self._term.is_of(welcome.owner_token):
                    where = self._path.with_name("standby.json")
                    self._retry_later(
                        f"{self._first} has lost the journal that this standby has copied, or belongs to another "
                        f"cluster: promote this standby with --force, or remove {where} to follow {self._first}"
                    )
                    return
                case Welcomed(welcome):
                    self._term = self._term._replace(epoch=max(self._term.epoch, welcome.epoch))
                    self._cluster = welcome.owner_token.decode()
                    shutil.rmtree(self._new, ignore_errors=True)
                    self._open(self._new)
                    self._send()
                case Received(_, JournalBytes() as message):
                    self._take(message)
                case Broken():
                    _log.warning("lost the connection to the scheduler %s", self._first)
                case ConnectionRefused(refused):
                    text = f"{self._first} refused this standby: {refused.text}"
                    is_wrong = refused.reason in (m.RefusalReason.CREDENTIAL, m.RefusalReason.ROLE)
                    if is_wrong and not self._term.has_copy and not self.promoted.done():
                        self.promoted.set_exception(UsageError(text))
                        return
                    self._retry_later(text)

    def _retry_later(self, why: str) -> None:
        if why != self._refused:
            self._refused = why
            _log.warning("%s", why)
        self._loop.call_later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        if not (self.promoted.done() or self._term.serves):
            self._start_over()

    def _take(self, message: JournalBytes) -> None:
        if self._term.serves:  # promoted: the scheduler may no longer acknowledge these records
            return
        was_certain = self._follower.certain_until > 0
        for number, body in self._follower.take(message):
            assert self._journal is not None, "opened by Welcomed"
            if body:
                self._journal.append(body)
                self._marks.append((self._journal.written, self._follower.received))
            else:
                self._complete(number)
        if was_certain != (self._follower.certain_until > 0):
            _log.info("in step with %s" if not was_certain else "out of step with %s", self._first)

    def _complete(self, covered: int) -> None:
        """Replace the earlier copy with the new one."""
        assert self._journal is not None, "opened by Welcomed"
        self._journal.close()
        if self._journal.durable < self._journal.written:
            raise UsageError("the copy of the journal could not be written")
        if self._path.exists():
            shutil.rmtree(self._earlier, ignore_errors=True)
            self._path.rename(self._earlier)
        self._new.rename(self._path)
        self._open(self._path)
        self._base, self._covered = self._journal.written, covered
        self._marks.clear()
        self._term = Term(self._term.epoch, False, self._first, True, self._cluster)
        write_term(self.config, self._term)
        _log.info("the copy of the journal of %s is complete", self._first)

    def _on_written(self) -> None:
        if self._journal is not None and self._journal.failure:
            self._follower.leave(self._loop.time())
        self._send()

    def _report(self) -> None:
        self._send()
        self._report_timer = self._loop.call_later(self.config.standby_timeout_seconds / 8, self._report)

    def _send(self) -> None:
        journal, connector = self._journal, self._connector
        if connector is None or journal is None or not connector.connected:
            return
        while self._marks and self._marks[0][0] <= journal.durable:
            self._accepted = self._marks.popleft()[1]
        accepted = self._accepted if self._marks else self._follower.received
        number = 0 if self._covered is None else self._covered + journal.durable - self._base + 1
        leaves = bool(journal.failure) or self.promoted.cancelled()  # a promoted standby must not release the scheduler
        connector.send(Following(self.address, number, accepted, self._loop.time(), leaves))

    # -- peers

    def _admit(self, peer: bytes, hello: m.Hello, identity: Identity) -> m.Welcome | m.Refused:
        del peer, identity
        if (refused := check_versions(hello)) is not None:
            return refused
        if hello.role is m.Role.ADMIN:
            return m.Welcome(False, 1, self.config.client_timeout_seconds, RETRY_SECONDS, epoch=self._term.epoch)
        what = f"a standby of {self._first}" if self.config.standby_of else "no longer the scheduler"
        where = self._first or "its successor"
        text = f"{self.address} is {what}: connect to {where}, or specify both addresses, separated by a comma"
        return m.Refused(m.RefusalReason.STANDBY, text)

    def _on_events(self, events: list[ListenerEvent]) -> None:
        for event in events:
            match event:
                case Received(peer, Promote() as question):
                    task = asyncio.ensure_future(self._asked(peer, question))
                    self._asking = task  # keeps a reference
                case Received(peer, m.Inquiry() as question):
                    self._listener.send(peer, m.Unanswered("this is a standby scheduler", number=question.number))

    async def _asked(self, peer: bytes, question: Promote) -> None:
        why = await self.promote(force=question.force)
        self._listener.send(peer, Promoted(self._term.epoch, why, number=question.number))
        await asyncio.sleep(0)  # sends the answer
        if not why and not self.promoted.done():
            self.promoted.set_result(True)

    # -- promotion

    async def promote(self, *, force: bool) -> str:
        """Start the next term as the scheduler. Returns the reason for a refusal, or an empty string."""
        if self._term.serves:
            return ""
        found = None
        if self._lease is not None:
            try:
                found = await self._lease.read()
            except OSError as error:
                return f"the lease cannot be read: {error}"
        is_named = found is not None and found.standby == self.address and self._follower.certain_until > 0
        if not (self._path.exists() and (force or self._term.has_copy)):
            return "it has no complete copy of the journal: let it follow the scheduler first"
        if not (force or is_named or self._loop.time() < self._follower.certain_until):
            known = f"{self._first} continued without it" if self._is_connected else f"it has lost {self._first}"
            return f"{known}, so tasks acknowledged since then would be lost: use --force to promote it anyway"
        epoch = max(self._term.epoch, found.epoch if found is not None else 0) + 1
        try:
            if self._lease is not None and not await self._lease.write(epoch, ""):
                return "the lease changed during the promotion: retry"
            self._term = self._term._replace(epoch=epoch, serves=True, partner="", has_copy=True)
            write_term(self.config, self._term)
        except (OSError, UsageError) as error:
            return str(error)
        if self._is_connected:  # the scheduler must stop before this one serves
            with suppress(UnreachableError):
                await greeted(self._first, self._access.to_storage, self._term, RETRY_SECONDS)
        _log.warning("promoted: this is the scheduler now, with epoch %d", epoch)
        return ""

    @property
    def _is_connected(self) -> bool:
        return self._connector is not None and self._connector.connected

    async def _watch(self, lease: Lease) -> None:
        """Promote this standby once the scheduler has stopped renewing its lease, provided that nothing can be lost."""
        tag, since, seconds = "", self._loop.time(), self.config.standby_lease_seconds
        while not self.promoted.done():
            try:
                found = await lease.read()
            except OSError as error:
                _log.warning("the lease cannot be read: %s", error)
                found, since = None, self._loop.time()
            if lease.tag != tag:
                tag, since = lease.tag, self._loop.time()
            elif found is not None and found.standby == self.address and self._loop.time() - since > seconds:
                why = await self.promote(force=False)
                if not why:
                    self.promoted.set_result(True)
                    return
                _log.error("the lease has expired, but this standby is not promoted: %s", why)
                since = self._loop.time()
            await asyncio.sleep(seconds / 6)
