"""Counts the uses of registered functions (and serializers) and of objects in the storage.

Laws: an entry exists exactly while a client pins it or a living task or group uses it; dropping the last use forgets it
in the storage, once. Object ids are never reused, so forgetting cannot hit a newer upload.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scaler.ids import owner_of
from scaler.protocol.messages import Spec, is_stored


@dataclass(slots=True, eq=False)
class FunctionUses:
    """A function or serializer: its payload, the clients that pin it, the groups that use it, the workers that have it.

    A function that is too large to travel inline is a stored object, and its payload a stored reference.
    """

    payload: bytes
    pinned_by: set[bytes] = field(default_factory=set)
    uses: int = 0
    announced_to: set[bytes] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class ObjectUses:
    pinned: bool
    uses: int = 0


class ObjectTable:
    """Counts uses, and collects what is to be forgotten: by the storage, and by workers."""

    def __init__(self) -> None:
        self.functions: dict[bytes, FunctionUses] = {}
        self._pins: dict[bytes, set[bytes]] = {}
        """Functions that a client pins."""
        self._stored: dict[bytes, dict[bytes, ObjectUses]] = {}
        """Objects by their owner: a client in a task comes and goes at no cost for the objects of others."""
        self.forgotten: list[bytes] = []
        self.withdrawn: list[tuple[bytes, set[bytes]]] = []
        """Functions without uses, and the workers that have them."""

    # -- functions and serializers

    def register(self, identifier: bytes, payload: bytes, client: bytes) -> None:
        """Add a function that this client pins."""
        function = self.functions.get(identifier)
        if function is None:
            function = self.functions[identifier] = FunctionUses(payload)
        function.pinned_by.add(client)
        self._pins.setdefault(client, set()).add(identifier)

    def knows(self, spec: Spec) -> bool:
        """Tell whether the function and the serializer of a spec are registered."""
        return spec.function in self.functions and (not spec.serializer or spec.serializer in self.functions)

    def use_functions(self, spec: Spec) -> None:
        """Count a group that uses the function and the serializer of its spec."""
        self.functions[spec.function].uses += 1
        if spec.serializer:
            self.functions[spec.serializer].uses += 1

    def release_functions(self, spec: Spec) -> None:
        for identifier in (spec.function, spec.serializer) if spec.serializer else (spec.function,):
            function = self.functions[identifier]
            function.uses -= 1
            if not function.uses and not function.pinned_by:
                self._withdraw(identifier, function)

    def _withdraw(self, identifier: bytes, function: FunctionUses) -> None:
        del self.functions[identifier]
        if function.announced_to:
            self.withdrawn.append((identifier, function.announced_to))
        if is_stored(function.payload):
            self.forgotten.append(identifier)

    def worker_left(self, worker: bytes) -> None:
        """Forget that this worker has functions."""
        for function in self.functions.values():
            function.announced_to.discard(worker)

    # -- objects in the storage

    def _find(self, identifier: bytes) -> ObjectUses | None:
        owned = self._stored.get(owner_of(identifier))
        return owned.get(identifier) if owned is not None else None

    def _enter(self, identifier: bytes, pinned: bool) -> ObjectUses:
        stored = ObjectUses(pinned)
        self._stored.setdefault(owner_of(identifier), {})[identifier] = stored
        return stored

    def _remove(self, identifier: bytes) -> None:
        owner = owner_of(identifier)
        owned = self._stored[owner]
        del owned[identifier]
        if not owned:
            del self._stored[owner]

    def pin(self, identifier: bytes) -> None:
        """Keep an object until its owner releases it."""
        stored = self._find(identifier)
        if stored is None:
            self._enter(identifier, pinned=True)
        else:
            stored.pinned = True

    def use(self, identifier: bytes, pinned: bool = True) -> None:
        """Count a use. pinned: an object that was never announced stays until its owner releases it."""
        stored = self._find(identifier) or self._enter(identifier, pinned)
        stored.uses += 1

    def unuse(self, identifier: bytes) -> None:
        stored = self._find(identifier)
        if stored is None:
            return  # its owner has left, and the object with it
        stored.uses -= 1
        self._settle(identifier, stored)

    def _settle(self, identifier: bytes, stored: ObjectUses) -> None:
        if not stored.uses and not stored.pinned:
            self._remove(identifier)
            self.forgotten.append(identifier)

    def forget(self, identifier: bytes) -> None:
        """Have the storage forget what a late result stored, unless a client was sent a reference to it."""
        if self._find(identifier) is None:
            self.forgotten.append(identifier)

    # -- clients

    def release(self, identifier: bytes, client: bytes) -> None:
        """Remove a client's pin; without one, do nothing."""
        pins = self._pins.get(client)
        if pins is not None and identifier in pins:
            pins.discard(identifier)
            if not pins:
                del self._pins[client]
            self._unpin_function(identifier, client)
            return
        stored = self._find(identifier) if owner_of(identifier) == client else None
        if stored is not None and stored.pinned:
            stored.pinned = False
            self._settle(identifier, stored)

    def _unpin_function(self, identifier: bytes, client: bytes) -> None:
        function = self.functions[identifier]
        function.pinned_by.discard(client)
        if not function.uses and not function.pinned_by:
            self._withdraw(identifier, function)

    def pinned_by(self, client: bytes) -> list[bytes]:
        """Return the stored objects that this client owns and pins."""
        return [key for key, stored in self._stored.get(client, {}).items() if stored.pinned]

    def client_left(self, client: bytes, retain: bool) -> None:
        """Drop every pin of a client. What its last running tasks still use is dropped when they end.

        retain: its stored objects are not forgotten now; the caller has their owner forgotten later.
        """
        for identifier in sorted(self._pins.pop(client, ())):
            self._unpin_function(identifier, client)
        for identifier in self.pinned_by(client):
            if retain and not self._stored[client][identifier].uses:
                self._remove(identifier)
            else:
                self.release(identifier, client)

    @property
    def stored(self) -> dict[bytes, ObjectUses]:
        """All stored objects by their ids, for checks."""
        return {key: stored for owned in self._stored.values() for key, stored in owned.items()}
