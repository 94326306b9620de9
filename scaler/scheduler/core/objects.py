"""Counts the uses of registered functions (and serializers) and of objects in the storage.

Laws: an entry exists exactly while a client pins it or a living task or group uses it; dropping the last use forgets it
in the storage, once. Object ids are never reused, so forgetting cannot hit a newer upload.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scaler.ids import owner_of
from scaler.protocol.messages import Spec, is_function_id, is_stored
from scaler.scheduler.core.accounts import ENTRY_BYTES, KeyAccount
from scaler.scheduler.core.changes import Dropped
from scaler.scheduler.core.rooms import Changes


@dataclass(slots=True, eq=False)
class ObjectUses:
    """An object in the storage: how many clients pin it (its owner, or none), and how many tasks use it."""

    pins: int = 0
    uses: int = 0


@dataclass(slots=True, eq=False)
class FunctionUses(ObjectUses):
    """A function or serializer: its payload, and the workers that have it. Groups use it.

    A function that is too large to travel inline is a stored object, and its payload a stored reference.
    """

    payload: bytes = b""
    announced_to: set[bytes] = field(default_factory=set)


class ObjectTable:
    """Counts uses, and collects what is to be forgotten: by the storage, and by workers."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.functions: dict[bytes, FunctionUses] = {}
        self.stored: dict[bytes, ObjectUses] = {}
        self.pins: dict[bytes, dict[bytes, None]] = {}
        """What each client pins: one in a task comes and goes at no cost for the objects of others."""
        self.accounts: dict[bytes, KeyAccount] = {}
        """Of the clients; what they pin is counted there."""
        self.forgotten: list[bytes] = []
        self.withdrawn: list[tuple[bytes, set[bytes]]] = []
        """Functions without uses, and the workers that have them."""

    def knows(self, spec: Spec, client: bytes) -> bool:
        """Tell whether a client has registered what a spec names."""
        pins = self.pins.get(client, ())
        return all(identifier in pins and identifier in self.functions for identifier in spec.registered)

    def register(self, identifier: bytes, payload: bytes, client: bytes) -> bool:
        """Have a client pin a function. False: this is not the id of this payload, or names what is no function.

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
        """Keep a function or object until this client releases it."""
        pins = self.pins.setdefault(client, {})
        if identifier not in pins:
            pins[identifier] = None
            entry = self._entry(identifier)
            entry.pins += 1
            self._charge(client, entry, 1)

    def use(self, identifier: bytes, pinned: bool = True) -> None:
        """Count a use. pinned: an object that was never announced stays until its owner releases it."""
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
        """Have the storage forget what a late result stored, unless a client was sent a reference to it."""
        if identifier not in self.stored:
            self.forgotten.append(identifier)

    def release(self, identifier: bytes, client: bytes) -> None:
        """Remove a client's pin; without one, do nothing."""
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
        """Drop every pin of a client. What its last running tasks still use is dropped when they end.

        retain: its stored objects are not forgotten now; the caller has their owner forgotten later.
        """
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
        """Drop every pin of a client that stays: what tasks and retained results use remains."""
        for identifier in list(self.pins.get(client, ())):
            self.release(identifier, client)

    def worker_left(self, worker: bytes) -> None:
        for function in self.functions.values():
            function.announced_to.discard(worker)

    def _entry(self, identifier: bytes) -> ObjectUses:
        """Return the function or object with this id; an object that is new is added."""
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
