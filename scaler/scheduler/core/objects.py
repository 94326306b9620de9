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

    __slots__ = ("_definitions", "_holds", "_stored", "forgotten", "undefined")

    def __init__(self) -> None:
        self._definitions: dict[bytes, Definition] = {}
        self._holds: dict[bytes, set[bytes]] = {}
        """Definitions that a client holds."""
        self._stored: dict[bytes, dict[bytes, StoredObject]] = {}
        """Objects by their owner: a client in a task comes and goes without a look at what others have."""
        self.forgotten: list[bytes] = []
        self.undefined: list[tuple[bytes, set[bytes]]] = []

    # -- definitions

    def define(self, identifier: bytes, payload: bytes, client: bytes) -> None:
        definition = self._definitions.get(identifier)
        if definition is None:
            definition = self._definitions[identifier] = Definition(payload)
        definition.holders.add(client)
        self._holds.setdefault(client, set()).add(identifier)

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

    def _find(self, identifier: bytes) -> StoredObject | None:
        owned = self._stored.get(owner_of(identifier))
        return owned.get(identifier) if owned is not None else None

    def _enter(self, identifier: bytes, held: bool) -> StoredObject:
        stored = StoredObject(held)
        self._stored.setdefault(owner_of(identifier), {})[identifier] = stored
        return stored

    def _remove(self, identifier: bytes) -> None:
        owner = owner_of(identifier)
        owned = self._stored[owner]
        del owned[identifier]
        if not owned:
            del self._stored[owner]

    def hold(self, identifier: bytes) -> None:
        """A client holds this object until it releases it."""
        stored = self._find(identifier)
        if stored is None:
            self._enter(identifier, held=True)
        else:
            stored.held = True

    def use(self, identifier: bytes, held: bool = True) -> None:
        """Count a use. An object that was never announced is held by its owner until that releases it, if held."""
        stored = self._find(identifier) or self._enter(identifier, held)
        stored.uses += 1

    def unuse(self, identifier: bytes) -> None:
        stored = self._find(identifier)
        if stored is None:
            return  # its owner is gone, and so is the object
        stored.uses -= 1
        self._settle(identifier, stored)

    def _settle(self, identifier: bytes, stored: StoredObject) -> None:
        if not stored.uses and not stored.held:
            self._remove(identifier)
            self.forgotten.append(identifier)

    def forget(self, identifier: bytes) -> None:
        """A late result stored this object: the storage need not keep it, unless somebody was told of it."""
        if self._find(identifier) is None:
            self.forgotten.append(identifier)

    # -- clients

    def release(self, identifier: bytes, client: bytes) -> None:
        """A client no longer holds this; what it does not hold is ignored."""
        holds = self._holds.get(client)
        if holds is not None and identifier in holds:
            holds.discard(identifier)
            if not holds:
                del self._holds[client]
            self._let_go(identifier, client)
            return
        stored = self._find(identifier) if owner_of(identifier) == client else None
        if stored is not None and stored.held:
            stored.held = False
            self._settle(identifier, stored)

    def _let_go(self, identifier: bytes, client: bytes) -> None:
        definition = self._definitions[identifier]
        definition.holders.discard(client)
        self._settle_definition(identifier, definition)

    def held_by(self, client: bytes) -> list[bytes]:
        """Return the stored objects that this client owns and holds."""
        return [key for key, stored in self._stored.get(client, {}).items() if stored.held]

    def client_gone(self, client: bytes, retain: bool) -> None:
        """Drop every hold of a client. What its last running tasks still use goes when they end.

        retain: its stored objects are not forgotten now; whoever asks for this forgets the owner later.
        """
        for identifier in sorted(self._holds.pop(client, ())):
            self._let_go(identifier, client)
        for identifier in self.held_by(client):
            if retain and not self._stored[client][identifier].uses:
                self._remove(identifier)
            else:
                self.release(identifier, client)

    # -- for checks and views

    @property
    def definitions(self) -> dict[bytes, Definition]:
        return self._definitions

    @property
    def stored(self) -> dict[bytes, StoredObject]:
        return {key: stored for owned in self._stored.values() for key, stored in owned.items()}
