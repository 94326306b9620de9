"""Which store fetches which object from which other one. Pure.

Laws: a fetch waits, is under way from one source, or has ended; its source is a store that is here, and none from which
it has failed; it waits only for a store that is to say what it has, or to push the object into the object storage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from scaler.protocol.messages import ForgetObjects, ObjectsUnavailable, PushObjects
from scaler.protocol.pieces import LARGE_BYTES, piece_count
from scaler.scheduler.core.data.directory import OBJECT_STORAGE, Directory
from scaler.scheduler.core.data.mail import StoreMail
from scaler.scheduler.core.data.rates import Rates


@dataclass(slots=True, eq=False)
class Fetch:
    """One store fetches one object. source: None while it waits for a source."""

    id: bytes
    store: int
    source: int | None = None
    began_at: float = 0.0
    failed: set[int] = field(default_factory=set)
    """Sources from which the object did not come."""
    is_pushed: bool = False
    """A store without a way to it was asked to push the object into the object storage."""


class Tracker:
    """The fetches of all stores. `mail` has what they are to be told."""

    def __init__(self, directory: Directory) -> None:
        self.now = -math.inf
        """The core's own time of the present step."""
        self.mail = StoreMail()
        self.rates = Rates()
        self.stores = {OBJECT_STORAGE}
        """Numbers of the stores that are here."""
        self.awaited: set[int] = set()
        """Numbers of stores that workers use, and that have not come yet."""
        self.unknown_from = -math.inf
        """Until then, objects without an entry wait: after a restart, the stores first say what they have."""
        self.unreachable: set[tuple[int, int]] = set()
        """Fetcher and source: there is no way from the one to the other."""
        self._directory = directory
        self._fetches: dict[bytes, dict[int, Fetch]] = {}
        self._load: dict[int, int] = {}
        """Fetches under way from each source."""

    # -- what stores say

    def wanted(self, store: int, identifiers: Iterable[bytes]) -> None:
        for identifier in identifiers:
            fetches = self._fetches.setdefault(identifier, {})
            if store not in fetches:
                fetch = fetches[store] = Fetch(identifier, store)
                self._start(fetch)

    def unwanted(self, store: int, identifiers: Iterable[bytes]) -> None:
        for identifier in identifiers:
            fetch = self._fetches.get(identifier, {}).get(store)
            if fetch is not None:
                self._end(fetch)

    def stored(self, identifier: bytes, size_bytes: int, store: int) -> None:
        """Note that a task has stored its result. A small one in the object storage needs no entry."""
        is_known = store in self.stores or store in self.awaited
        if is_known and (store != OBJECT_STORAGE or size_bytes >= LARGE_BYTES):
            self.held(store, identifier, size_bytes)

    def held(self, store: int, identifier: bytes, size_bytes: int) -> None:
        """Note that a store has an object: it fetches it no more, and others that wait may fetch it there."""
        self._directory.add(identifier, size_bytes, store)
        self.unwanted(store, (identifier,))
        for fetch in self._waiting(identifier):
            self._start(fetch)

    def fetched(self, store: int, identifier: bytes, first: int, count: int, size_bytes: int) -> None:
        """Note that a run of pieces has come."""
        fetch = self._fetches.get(identifier, {}).get(store)
        if fetch is not None and fetch.source is not None:
            self.rates.note(store, fetch.source, size_bytes, self.now - fetch.began_at)
        if fetch is not None and first == 0 and count in (piece_count(size_bytes), 1):
            self.held(store, identifier, size_bytes)

    def failed(self, store: int, identifier: bytes, source: int, *, is_unreachable: bool) -> None:
        """Note that a run did not come from this source."""
        if is_unreachable:
            self.unreachable.add((store, source))
        fetch = self._fetches.get(identifier, {}).get(store)
        if fetch is None or fetch.source != source:
            return
        self._stop(fetch)
        if not is_unreachable:
            fetch.failed.add(source)
            self._directory.discard(identifier, source)
        self._start(fetch)

    # -- stores come and go

    def came(self, store: int) -> None:
        self.stores.add(store)
        self.awaited.discard(store)

    def gone(self, store: int, *, is_back: bool = False) -> None:
        """Forget a store, and what it fetches; what others fetch from it, `retry` has them fetch from elsewhere.

        is_back: it is here again, with nothing, and the others find out by themselves what they still get from it.
        """
        self.unreachable = {pair for pair in self.unreachable if store not in pair}
        for fetch in self._all():
            if fetch.store == store:
                self._end(fetch)
            elif fetch.source == store and not is_back:
                self._stop(fetch)
        if not is_back:
            self.mail.drop(store)
            self.rates.drop(store)
            self.stores.discard(store)
            self.awaited.discard(store)

    def retry(self) -> None:
        """Look again for sources of the fetches that wait."""
        for fetch in self._all():
            if fetch.source is None:
                self._start(fetch)

    def forget(self, identifiers: list[bytes]) -> None:
        """Have objects forgotten: by the object storage, and by all stores that have them, or fetch them."""
        self.mail.send(OBJECT_STORAGE, ForgetObjects(identifiers))
        if not self._directory.is_used:
            return
        for identifier in identifiers:
            fetches = list(self._fetches.get(identifier, {}).values())
            stores = self._directory.forget(identifier) | {fetch.store for fetch in fetches}
            for fetch in fetches:
                self._end(fetch)
            for store in sorted(stores & self.stores - {OBJECT_STORAGE}):
                self.mail.name(ForgetObjects, store, identifier)

    def forget_owner(self, owner: bytes) -> None:
        """Forget the objects of a client, and who fetches them."""
        self._directory.forget_owner(owner)
        for fetch in self._all():
            if fetch.id.startswith(owner):
                self._end(fetch)

    # -- sources

    def _start(self, fetch: Fetch) -> None:
        """Choose a source for a fetch without one; end it when there is none."""
        copies = self._directory.find(fetch.id)
        if copies is None:
            if self.now < self.unknown_from:
                return
            holders, size_bytes = {OBJECT_STORAGE}, 0
        else:
            holders, size_bytes = copies.holders, copies.size_bytes
        others = holders - fetch.failed - {fetch.store}
        sources = [each for each in others & self.stores if (fetch.store, each) not in self.unreachable]
        if sources:
            source = fetch.source = min(sources, key=lambda each: (self._load.get(each, 0), each))
            fetch.began_at = self.now
            self._load[source] = self._load.get(source, 0) + 1
            count = piece_count(size_bytes) if size_bytes else 1
            self.mail.fetch(fetch.store, fetch.id, size_bytes, 0, count, source)
        elif pushing := others & self.stores - {OBJECT_STORAGE}:
            if not fetch.is_pushed:
                fetch.is_pushed = True
                self.mail.name(PushObjects, min(pushing), fetch.id)
        elif not others & self.awaited:
            self.mail.name(ObjectsUnavailable, fetch.store, fetch.id)
            self._end(fetch)

    def _stop(self, fetch: Fetch) -> None:
        if fetch.source is not None:
            self._load[fetch.source] -= 1
            if not self._load[fetch.source]:
                del self._load[fetch.source]
            fetch.source = None

    def _end(self, fetch: Fetch) -> None:
        self._stop(fetch)
        fetches = self._fetches[fetch.id]
        del fetches[fetch.store]
        if not fetches:
            del self._fetches[fetch.id]

    def _all(self) -> list[Fetch]:
        return [fetch for fetches in self._fetches.values() for fetch in fetches.values()]

    def _waiting(self, identifier: bytes) -> list[Fetch]:
        return [fetch for fetch in self._fetches.get(identifier, {}).values() if fetch.source is None]

    def check(self) -> None:
        """Assert the laws on top. O(everything): for tests."""
        load: dict[int, int] = {}
        for identifier, fetches in self._fetches.items():
            assert fetches, f"object {identifier.hex()} is fetched by no store and is listed"
            for store, fetch in fetches.items():
                assert (fetch.id, fetch.store) == (identifier, store), "a fetch is filed under its object and store"
                assert store in self.stores, "a store that is not here fetches nothing"
                if fetch.source is not None:
                    sources = self.stores - fetch.failed - {store}
                    assert fetch.source in sources, "a fetch has a source that may serve it"
                    load[fetch.source] = load.get(fetch.source, 0) + 1
        assert load == self._load, f"sources serve {load}, and {self._load} are counted"
