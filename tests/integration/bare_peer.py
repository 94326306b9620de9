"""A client as written in another language: ZeroMQ, the schema file, and `docs/protocol.md`, without Scaler."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import capnp
import zmq

SCHEMA = capnp.load(str(Path(__file__).parents[2] / "scaler/protocol/scaler.capnp"))
HEADER = struct.Struct("<II16sQQ")
PROTOCOL = 4
INLINE_BYTES = 32 * 1024
JSON = 6
WAIT_SECONDS = 30


class Keys:
    """The lines of a credential file that a connection needs."""

    def __init__(self, path: str) -> None:
        lines = [line.split("=", 1) for line in Path(path).read_text().splitlines() if "=" in line]
        values = {name.strip(): value.strip().strip('"') for name, value in lines}
        self.public, self.secret = values["public"], values["secret"]
        self.scheduler, self.object_storage = values["scheduler_key"], values["object_storage_key"]


class Connection:
    """One session with one server."""

    def __init__(
        self, address: str, peer: bytes, hello: dict[str, Any], keys: tuple[str, str, str] | None = None
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._address, self._keys = address, keys
        self.hello = {"role": "client", "protocolVersion": PROTOCOL, "scalerVersion": "0", "hostname": "here", **hello}
        self.session = peer + os.urandom(8)
        self._sent = self.received = 0
        self._kept: list[tuple[int, bytes, list[bytes]]] = []
        self.welcome: Any = None
        self._open(resume=False)

    def _open(self, *, resume: bool) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 1000
        if self._keys is not None:
            self._socket.curve_serverkey, self._socket.curve_publickey, self._socket.curve_secretkey = (
                key.encode() for key in self._keys
            )
        self._socket.connect(self._address)
        self._transmit(0, encode("hello", **{**self.hello, "resume": resume}))
        header, body, _ = self._receive()
        if body.which() == "refused":
            self._socket.close(0)
            raise ConnectionRefusedError(body.refused.text)
        self.welcome = body.welcome
        self.session = header[2]
        if self.welcome.resumed:
            for sequence, kept, attachments in self._kept:
                if sequence > header[4]:
                    self._transmit(sequence, kept, attachments)

    def reconnect(self) -> None:
        """Break the connection, and resume the session over a new connection."""
        self._socket.close(0)
        self._open(resume=True)

    def say(self, name: str, attachments: Sequence[bytes] = (), **fields: Any) -> None:
        self.say_body(encode(name, **fields), attachments)

    def say_body(self, body: bytes, attachments: Sequence[bytes] = ()) -> None:
        """Send a sequenced message."""
        self._sent += 1
        self._kept.append((self._sent, body, [*attachments]))
        self._transmit(*self._kept[-1])

    def next(self, name: str) -> Any:
        """Return the next message with this name and its attachments, and skip other messages."""
        while True:
            header, body, attachments = self._receive()
            _, _, _, sequence, acknowledged = header
            self._kept = [each for each in self._kept if each[0] > acknowledged]
            if sequence and sequence <= self.received:
                continue
            if sequence:
                assert sequence == self.received + 1, "a message is missing"
                self.received = sequence
            self._transmit(0, encode("acknowledge"))
            if body.which() == name:
                return getattr(body, name), attachments

    def close(self) -> None:
        self._transmit(0, encode("goodbye", text="done"))
        self._socket.close(1000)

    def _transmit(self, sequence: int, body: bytes, attachments: Sequence[bytes] = ()) -> None:
        header = HEADER.pack(PROTOCOL, 0, self.session, sequence, self.received)
        self._socket.send_multipart([header, body, *attachments])

    def _receive(self) -> tuple[Any, Any, list[bytes]]:
        assert self._socket.poll(1000 * WAIT_SECONDS), "no message came"
        header, body, *attachments = self._socket.recv_multipart()
        return HEADER.unpack(header[:40]), decode(body), attachments


def encode(name: str, **fields: Any) -> bytes:
    return bytes(SCHEMA.Body.new_message(**{name: fields}).to_bytes())


def decode(body: bytes) -> Any:
    return SCHEMA.Body.from_bytes(body).__enter__()


class TaskFailedError(Exception):
    """outcome: its number. type, text, and traceback: of the exception, if any."""

    def __init__(self, outcome: int, payload: bytes) -> None:
        self.outcome = outcome
        self.type, self.text, self.traceback = "", payload.decode("utf-8", "replace"), ""
        if outcome == 1:
            tag, version, *sizes = struct.unpack_from("<BB3I", payload)
            assert (tag, version) == (4, 3)
            ends = [14, *itertools.accumulate(sizes, initial=14)][1:]
            self.type, self.text, self.traceback = (
                payload[begin:end].decode() for begin, end in itertools.pairwise(ends)
            )
        super().__init__(f"{self.type}: {self.text}")


class BareClient:
    """Submits functions by name."""

    def __init__(self, address: str, credential: str | None = None, **hello: Any) -> None:
        """hello: further fields of the Hello; None omits a field."""
        self.peer = os.urandom(8)
        keys = None if credential is None else Keys(credential)
        self._keys = keys
        own = None if keys is None else (keys.scheduler, keys.public, keys.secret)
        hello = {"clientDetails": {"name": "bare"}, **hello}
        given = {name: value for name, value in hello.items() if value is not None}
        self.scheduler = Connection(address, self.peer, given, own)
        self._storage: Connection | None = None
        self._count = itertools.count(1)
        self._results: dict[bytes, tuple[int, bytes]] = {}

    def __enter__(self) -> BareClient:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.scheduler.close()
        if self._storage is not None:
            self._storage.close()

    def submit(
        self,
        function: str,
        arguments: object,
        *,
        tag: int = JSON,
        payload: bytes | None = None,
        references: Sequence[bytes] = (),
        **options: Any,
    ) -> bytes:
        """Return the id of a new task. payload: unmodified arguments. options: fields of the Spec."""
        code = bytes([5, tag]) + function.encode()
        identifier = hashlib.blake2b(code, digest_size=16).digest()
        task = self._new_id(0)
        if payload is None:
            payload = bytes([tag]) + json.dumps(arguments).encode()
        if len(payload) > INLINE_BYTES:
            stored = self.put(payload)
            payload = bytes([3]) + stored + len(payload).to_bytes(7, "little") + b"\0"
            references = [*references, stored]
        spec = {"function": identifier, "retries": 3, "deliver": True, "name": function, **options}
        group = {"ids": task, "payloadSizes": [len(payload)], "payloads": payload, "spec": spec}
        if references:
            group |= {"referenceCounts": [len(references)], "references": b"".join(references)}
        self.scheduler.say("submit", functions=[{"id": identifier, "payload": code}], groups=[group])
        return task

    def result(self, task: bytes) -> Any:
        """Wait for a task and return its payload's document. Raises TaskFailedError."""
        payload = self.payload(task)
        assert payload[0] == JSON
        return json.loads(payload[1:])

    def payload(self, task: bytes) -> bytes:
        """Wait for a task and return the payload of its value. Raises TaskFailedError."""
        while task not in self._results:
            finished, _ = self.scheduler.next("finished")
            at = 0
            for number, size in enumerate(finished.payloadSizes):
                found = finished.payloads[at : at + size]
                self._results[finished.ids[16 * number : 16 * number + 16]] = finished.outcomes[number], found
                at += size
        outcome, payload = self._results.pop(task)
        if outcome:
            raise TaskFailedError(outcome, payload)
        if payload[:1] == b"\x03":
            payload = self.get(payload[1:17])
        return payload

    def put(self, data: bytes) -> bytes:
        """Store an object of one part, and return its id."""
        identifier = self._new_id(0xFFFF)
        self.scheduler.say("pin", ids=identifier)
        self.storage.say("putObject", [data], request=1, id=identifier, parts=[len(data)])
        reply, _ = self.storage.next("storageReply")
        assert reply.result == "ok", reply
        return identifier

    def get(self, identifier: bytes) -> bytes:
        self.storage.say("getObject", request=2, id=identifier)
        found = b""
        while True:
            reply, attachments = self.storage.next("storageReply")
            assert reply.result == "ok", reply
            found += b"".join(attachments)
            if len(found) == sum(reply.parts):
                return found

    @property
    def storage(self) -> Connection:
        if self._storage is None:
            welcome, keys = self.scheduler.welcome, self._keys
            own = None if keys is None else (keys.object_storage, keys.public, keys.secret)
            hello = {"ownerToken": welcome.ownerToken}
            self._storage = Connection(welcome.objectStorageAddress, self.peer, hello, own)
        return self._storage

    def _new_id(self, kind: int) -> bytes:
        return self.peer + kind.to_bytes(2, "big") + next(self._count).to_bytes(6, "big")
