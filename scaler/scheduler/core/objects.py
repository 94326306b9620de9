"""Who uses which object: definitions (functions, serializers) and objects in the storage.

Laws: an entry exists exactly as long as a client holds it or a living task or group uses it; whoever drops the last use
gets it forgotten in the storage, once. Object ids are never reused, so forgetting cannot hit a newer upload.
"""

from __future__ import annotations

from scaler.ids import owner_of
from scaler.protocol.messages import is_stored


class Definition:
    """A function or serializer: its payload, the clients that hold it, how many groups use it, the workers told."""

    __slots__ = ("holders", "payload", "told", "uses")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.holders: set[bytes] = set()
        self.uses = 0
        self.told: set[bytes] = set()


class StoredObject:
    __slots__ = ("held", "uses")

    def __init__(self, held: bool) -> None:
        self.held = held
        self.uses = 0


class ObjectTable:
    """Counts uses, and collects what is to be forgotten: in the storage, and by workers that were told."""

    __slots__ = ("_definitions", "_stored", "forgotten", "undefined")

    def __init__(self) -> None:
        self._definitions: dict[bytes, Definition] = {}
        self._stored: dict[bytes, StoredObject] = {}
        self.forgotten: list[bytes] = []
        self.undefined: list[tuple[bytes, set[bytes]]] = []

    # -- definitions

    def define(self, identifier: bytes, payload: bytes, client: bytes) -> None:
        definition = self._definitions.get(identifier)
        if definition is None:
            definition = self._definitions[identifier] = Definition(payload)
        definition.holders.add(client)

    def definition(self, identifier: bytes) -> Definition | None:
        return self._definitions.get(identifier)

    def use_definition(self, identifier: bytes) -> None:
        self._definitions[identifier].uses += 1

    def drop_definition(self, identifier: bytes) -> None:
        definition = self._definitions[identifier]
        definition.uses -= 1
        self._settle_definition(identifier, definition)

    def _settle_definition(self, identifier: bytes, definition: Definition) -> None:
        if definition.uses or definition.holders:
            return
        del self._definitions[identifier]
        if definition.told:
            self.undefined.append((identifier, definition.told))
        if is_stored(definition.payload):
            self.forgotten.append(identifier)

    def worker_gone(self, worker: bytes, known: set[bytes]) -> None:
        for identifier in known:
            definition = self._definitions.get(identifier)
            if definition is not None:
                definition.told.discard(worker)

    # -- objects in the storage

    def hold(self, identifier: bytes) -> None:
        """A client holds this object until it releases it."""
        stored = self._stored.get(identifier)
        if stored is None:
            self._stored[identifier] = StoredObject(held=True)
        else:
            stored.held = True

    def use(self, identifier: bytes, held: bool = True) -> None:
        """Count a use. An object that was never announced is held by its owner until that releases it, if held."""
        stored = self._stored.get(identifier)
        if stored is None:
            stored = self._stored[identifier] = StoredObject(held)
        stored.uses += 1

    def unuse(self, identifier: bytes) -> None:
        stored = self._stored.get(identifier)
        if stored is None:
            return  # its owner is gone, and so is the object
        stored.uses -= 1
        if not stored.uses and not stored.held:
            del self._stored[identifier]
            self.forgotten.append(identifier)

    def forget(self, identifier: bytes) -> None:
        """A late result stored this object: the storage need not keep it, unless somebody was told of it."""
        if identifier not in self._stored:
            self.forgotten.append(identifier)

    # -- clients

    def release(self, identifier: bytes, client: bytes) -> None:
        """A client no longer holds this; what it does not hold is ignored."""
        definition = self._definitions.get(identifier)
        if definition is not None and client in definition.holders:
            definition.holders.discard(client)
            self._settle_definition(identifier, definition)
            return
        stored = self._stored.get(identifier)
        if stored is not None and stored.held and owner_of(identifier) == client:
            stored.held = False
            if not stored.uses:
                del self._stored[identifier]
                self.forgotten.append(identifier)

    def held_by(self, client: bytes) -> list[bytes]:
        """Return the stored objects that this client owns and holds. O(objects): for clear, not for the hot path."""
        return [key for key, stored in self._stored.items() if stored.held and owner_of(key) == client]

    def client_gone(self, client: bytes, retain: bool) -> None:
        """Drop every hold of a client. What its last running tasks still use goes when they end.

        retain: its stored objects are not forgotten now; whoever asks for this forgets the owner later.
        """
        for identifier, definition in list(self._definitions.items()):
            if client in definition.holders:
                definition.holders.discard(client)
                self._settle_definition(identifier, definition)
        for identifier in self.held_by(client):
            if retain and not self._stored[identifier].uses:
                del self._stored[identifier]
            else:
                self.release(identifier, client)

    # -- for checks and views

    @property
    def definitions(self) -> dict[bytes, Definition]:
        return self._definitions

    @property
    def stored(self) -> dict[bytes, StoredObject]:
        return self._stored
