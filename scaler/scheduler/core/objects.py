"""Reference counts of registered functions, serializers, and stored objects.

Invariants: an entry exists exactly while a client pins it, or a live task or group uses it. Dropping the last use makes
the storage forget the object, once, as soon as no extension holds it. Object ids are never reused, so this cannot hit a
newer upload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from scaler.ids import owner_of
from scaler.protocol.messages import Spec, is_function_id, is_stored
from scaler.scheduler.core.accounts import ENTRY_BYTES, KeyAccount
from scaler.scheduler.core.changes import Dropped
from scaler.scheduler.core.rooms import Changes


@dataclass(slots=True, eq=False)
class ObjectUses:
    """Counts of a stored object. pins: pinning clients (the owner or none). uses: tasks."""

    pins: int = 0
    uses: int = 0


@dataclass(slots=True, eq=False)
class FunctionUses(ObjectUses):
    """A function or serializer, used by groups. payload: a stored reference if too large to travel inline."""

    payload: bytes = b""
    announced_to: set[bytes] = field(default_factory=set)


class ObjectTable:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.functions: dict[bytes, FunctionUses] = {}
        self.stored: dict[bytes, ObjectUses] = {}
        self.pins: dict[bytes, dict[bytes, None]] = {}
        """Pins by client, so that a nested client costs nothing for other clients' objects."""
        self.accounts: dict[bytes, KeyAccount] = {}
        self.forgotten: list[bytes] = []
        self.withdrawn: list[tuple[bytes, set[bytes]]] = []
        self._held: Counter[bytes] = Counter()
        self._due: set[bytes] = set()
        """Held objects without entry, which are forgotten once nothing holds them."""

    def knows(self, spec: Spec, client: bytes) -> bool:
        pins = self.pins.get(client, ())
        return all(identifier in pins and identifier in self.functions for identifier in spec.registered)

    def register(self, identifier: bytes, payload: bytes, client: bytes) -> bool:
        """Pin a function for a client. Returns False if the id does not match the payload, or does not name a function.

        Otherwise a client could register another pickle under the id of another client's function, and have it run.
        """
        known = self.functions.get(identifier)
        is_new = known is None and identifier not in self.stored and is_function_id(identifier, payload)
        is_own = not is_stored(payload) or owner_of(identifier) == client
        if not is_own or not (is_new or (known is not None and known.payload == payload)):
            return False
        if is_new:
            self.functions[identifier] = FunctionUses(payload=payload)
        self.pin(identifier, client)
        return True

    def pin(self, identifier: bytes, client: bytes) -> None:
        pins = self.pins.setdefault(client, {})
        if identifier not in pins:
            pins[identifier] = None
            entry = self._entry(identifier)
            entry.pins += 1
            self._charge(client, entry, 1)

    def use(self, identifier: bytes, pinned: bool = True) -> None:
        """Count a use. pinned: keep an object that was never announced until its owner releases it."""
        entry = self.functions.get(identifier) or self.stored.get(identifier)
        if entry is None:
            entry = self.stored[identifier] = ObjectUses()
            if pinned:
                self.pin(identifier, owner_of(identifier))
        entry.uses += 1

    def unuse(self, identifier: bytes) -> None:
        entry = self.functions.get(identifier) or self.stored[identifier]
        entry.uses -= 1
        if not entry.uses:
            self._settle(identifier, entry)

    def forget(self, identifier: bytes) -> None:
        """Make the storage forget a late result, unless a client has a reference to it."""
        if identifier not in self.stored:
            self.forgotten.append(identifier)

    def hold(self, identifiers: Iterable[bytes]) -> None:
        self._held.update(identifiers)

    def let_go(self, identifiers: Iterable[bytes]) -> None:
        for identifier in identifiers:
            self._held[identifier] -= 1
            if not self._held[identifier]:
                del self._held[identifier]
                if identifier in self._due:
                    self._due.remove(identifier)
                    self.forgotten.append(identifier)

    def take_forgotten(self) -> list[bytes]:
        """Return the objects to forget, and clear their list."""
        forgotten, self.forgotten = self.forgotten, []
        if self._held:
            self._due.update(each for each in forgotten if each in self._held)
            forgotten = [each for each in forgotten if each not in self._held]
        return forgotten

    def release(self, identifier: bytes, client: bytes) -> None:
        pins = self.pins.get(client)
        if pins is not None and identifier in pins:
            del pins[identifier]
            if not pins:
                del self.pins[client]
            entry = self._entry(identifier)
            entry.pins -= 1
            self._charge(client, entry, -1)
            self._settle(identifier, entry)

    def _charge(self, client: bytes, entry: ObjectUses, sign: int) -> None:
        if client in self.accounts:
            size = len(entry.payload) if isinstance(entry, FunctionUses) else 0
            self.accounts[client].size_bytes += sign * (ENTRY_BYTES + size)

    def pinned_by(self, client: bytes) -> list[bytes]:
        return [identifier for identifier in self.pins.get(client, ()) if identifier in self.stored]

    def client_left(self, client: bytes, retain: bool) -> None:
        """Remove all pins of a client. retain: keep its stored objects; the caller forgets their owner later."""
        for identifier in self.pins.pop(client, ()):
            entry = self._entry(identifier)
            entry.pins -= 1
            self._charge(client, entry, -1)
            if retain and not entry.uses and identifier in self.stored:
                del self.stored[identifier]
            else:
                self._settle(identifier, entry)
        self.accounts.pop(client, None)

    def unpin(self, client: bytes) -> None:
        """Remove all pins of a client that stays. Objects in use by tasks and retained results remain."""
        for identifier in list(self.pins.get(client, ())):
            self.release(identifier, client)

    def worker_left(self, worker: bytes) -> None:
        for function in self.functions.values():
            function.announced_to.discard(worker)

    def _entry(self, identifier: bytes) -> ObjectUses:
        entry = self.functions.get(identifier) or self.stored.get(identifier)
        if entry is None:
            entry = self.stored[identifier] = ObjectUses()
        return entry

    def _settle(self, identifier: bytes, entry: ObjectUses) -> None:
        if entry.pins or entry.uses:
            return
        if isinstance(entry, FunctionUses):
            del self.functions[identifier]
            self._changes.add(Dropped, (identifier,))
            if entry.announced_to:
                self.withdrawn.append((identifier, entry.announced_to))
            if not is_stored(entry.payload):
                return
        else:
            del self.stored[identifier]
        self.forgotten.append(identifier)
