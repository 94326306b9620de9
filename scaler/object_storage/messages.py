"""Messages of the object storage and of hosts' stores, with each other, with the scheduler, and with readers.

Declared as in `scaler.protocol.messages`, which explains the rules for changes. A process can decode them once it has
imported this module, as every store, scheduler, and peer of a store does.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from scaler.protocol import fields as f
from scaler.protocol.messages import OBJECT_PEERS, STORAGE_PEERS, STORE, IdList, Message, Role, message


@message(38, to_storage=OBJECT_PEERS, attachments=True)
class PutObject(Message):
    """Attachments: the object's bytes from offset on. The object is complete when all its bytes have arrived. Without
    attachments, an unshared message with offset 0 only asks for space."""

    request: f.Count64  # chosen by the sender, repeated by the reply
    id: f.Id
    parts: f.PartSizes  # sizes of the object's parts (a pickle, then its buffers); their sum is the object's size
    offset: f.Count64
    shared: bool = False  # no attachments: the descriptor of the object's memory accompanies the message


@message(39, to_storage=OBJECT_PEERS)
class GetObject(Message):
    """Asks for an object. A store without the object fetches it first."""

    request: f.Count64
    id: f.Id
    deadline_seconds: f.Seconds  # unused
    shared: bool = False  # the sender accepts a descriptor of shared memory
    offset: f.Count64 = 0  # first requested byte
    size: f.Count64 = 0  # number of bytes; 0: everything from offset on


@message(43, to_storage=STORAGE_PEERS)
class StatStorage(Message):
    """Asks for a StorageStatus."""

    request: f.Count64


class StorageResult(StrEnum):
    """Result of a request to the object storage."""

    OK = "ok"
    MISSING = "missing"
    FULL = "full"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    UNSHARED = "unshared"  # the descriptor of a shared PutObject was lost: repeat it with attachments
    UNWRITABLE = "unwritable"  # the disk of a durable storage rejects writes: repeat it later


@message(44, from_storage=OBJECT_PEERS, attachments=True)
class StorageReply(Message):
    """Answers PutObject, and GetObject with attachments: the next bytes of the object. A large object arrives in
    several replies, in order."""

    request: f.Count64
    result: StorageResult
    text: str = ""  # display text, or empty
    parts: f.PartSizes = field(default_factory=list)  # sizes of the object's parts
    offset: f.Count64 = 0  # offset of this reply's attachments
    shared: bool = False  # no attachments: the descriptor of the object's memory accompanies the message


@message(45, from_storage=STORAGE_PEERS)
class StorageStatus(Message):
    request: f.Count64
    objects: f.Count64
    bytes: f.Count64
    limit_bytes: f.Count64
    waiting_gets: f.Count64
    spilled_bytes: f.Count64 = 0  # size of the objects in spill_directory
    state_bytes: f.Count64 = 0  # disk usage of state_directory
    disk_failure: str = ""  # why state_directory rejects objects, or empty
    hits: f.Count64 = 0  # see StoreReport
    misses: f.Count64 = 0


@message(70, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,), to_storage=(Role.SCHEDULER,))
class ObjectsHeld(Message):
    """Names complete objects of this store. A store names all its objects after each Welcome of a new session. The
    scheduler reports objects in the backend to the object storage, which deletes them after release."""

    ids: f.Ids
    sizes: f.Sizes
    in_backend: bool = False  # the backend contains them; the store may also have them


@message(71, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class ObjectsDropped(IdList):
    """Names objects that this store has dropped."""


@message(72, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class ObjectsWanted(IdList):
    """Names objects awaited by readers of this store. Answered by FetchChunks or ObjectsUnavailable for each."""


@message(73, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class ObjectsUnwanted(IdList):
    """Names objects that readers of this store no longer await."""


@message(74, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class ChunksFetched(Message):
    """Runs of received chunks, which the store can serve. Once all have arrived, the store holds the object."""

    ids: f.Ids
    firsts: f.Numbers32  # number of the first chunk, from 0
    counts: f.Numbers32  # number of chunks in each run
    sizes: f.Sizes  # sizes of the whole objects


@message(75, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class FetchesFailed(Message):
    """Runs of chunks that could not be fetched."""

    ids: f.Ids
    firsts: f.Numbers32
    sources: f.Numbers32  # see FetchChunks
    unreachable: f.Flags  # 1: the source is unreachable from this store; 0: the source does not have the chunks


@message(76, to_scheduler=(STORE,), sequenced=False)
class StoreReport(Message):
    """Heartbeat and figures of a store. Counts begin when the store starts."""

    sent_at: f.Clock  # returned in HeartbeatEcho
    objects: f.Count64
    used_bytes: f.Count64  # memory for objects
    spilled_bytes: f.Count64
    hits: f.Count64  # gets of present objects
    misses: f.Count64  # gets that fetched the object


@message(77, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,))
class FetchChunks(Message):
    """Runs of chunks to fetch. `chunks.chunk_bytes` returns the chunk size for an object's size."""

    ids: f.Ids
    sizes: f.Sizes  # sizes of the whole objects; 0: unknown, and the run is the whole object
    firsts: f.Numbers32
    counts: f.Numbers32
    sources: f.Numbers32  # numbers of stores; 0: the object storage


@message(78, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,))
class ObjectsUnavailable(Message):
    """Names wanted objects that no store holds."""

    ids: f.Ids
    host: str = ""  # the lost host that held the only copies, or empty


@message(79, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,))
class SoleCopies(IdList):
    """Names objects whose only copy is in this store."""


@message(80, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,))
class PushObjects(IdList):
    """Names objects that this store must also put into the object storage."""


@dataclass(slots=True)
class StoreAddress:
    """Address and public key of a store. The backend is listed as a store."""

    number: f.Count32
    peer: f.PeerId  # the store's peer id at the scheduler
    address: str
    public_key: str
    backend_key: bytes = field(default=b"", repr=False)  # UseBackend.key; empty for other stores


@message(81, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,), batch=True)
class StoresChanged(Message):
    """Stores that joined and left. The first message of a session names all other stores."""

    stores: list[StoreAddress]
    gone: f.Counts  # store numbers, which are never reused


@message(82, from_storage=(Role.SCHEDULER,))
class UseBackend(Message):
    """Backend of the object storage, for all stores. First message of each of its sessions."""

    url: str  # URL of this run's folder
    key: bytes = field(repr=False)  # verifies the folder's content


@message(83, to_storage=(Role.SCHEDULER,))
class CopyObjects(Message):
    """Names objects that the object storage must copy. It names objects that it already has in ObjectsHeld. It fetches
    missing objects as if for a reader, or names them in ObjectsUnwanted if it has no space."""

    ids: f.Ids
    sizes: f.Sizes  # 0: unknown
