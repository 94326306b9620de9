"""Each place where a process reads foreign bytes, as a function of bytes that must not raise.

A target processes one input, and raises unless the input is accepted or rejected properly. It returns the number of
accepted messages.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from scaler.config.load import read_file
from scaler.errors import ConfigError, ProtocolError, RefusedError
from scaler.extensions.compression.frames import Packer, PackingLoad
from scaler.monitor.web.api import openapi
from scaler.monitor.web.security import SAME_USER
from scaler.monitor.web.server import WebApp
from scaler.net import transport as t
from scaler.net.local import LocalTransport, PartialBytes
from scaler.net.packing import expanded
from scaler.offload.call import Call, CallResult, pack_call, pack_result, unpack_call, unpack_result
from scaler.protocol.codec import decode, encode
from scaler.protocol.failures import failure_texts
from scaler.protocol.messages import MAX_ATTACHED_BYTES, MAX_BATCH_BYTES
from scaler.protocol.session import HEADER_BYTES, Envelope
from scaler.security.credential import Credential
from scaler.serialization import parts_of
from scaler.worker.frames import MAX_ROWS, RESULT, Note, PageReader, ToAgent, make_page, pack_note, pack_results
from scaler.worker_manager.aws_hpc.objects import call_of, pack_bundle
from scaler.worker_manager.aws_hpc.requests import JOB_SPEC_VARIABLE, JobSpec
from tests.fuzz import mutations, peers
from tests.fuzz.conversations import unpack
from tests.fuzz.corpora import bodies, seeds
from tests.fuzz.servers import SchedulerWorld, StorageWorld
from tests.unit.monitor.web_rig import PreparedMonitor, filled_model, web_config

Mutate = Callable[[Random, bytes], bytes]


@dataclass(frozen=True)
class Target:
    """run: processes one input. seeds: initial inputs. mutate: changes one. share: part of a short run's inputs."""

    name: str
    run: Callable[[bytes], int]
    seeds: Callable[[], tuple[bytes, ...]]
    mutate: Mutate
    share: int


# -- messages


def run_codec(data: bytes) -> int:
    with suppress(ProtocolError):
        message = decode(data)
        assert decode(encode(message)) == message, "a decoded message round-trips"
    return 1


def run_scheduler(data: bytes) -> int:
    conversation = unpack(data)
    SchedulerWorld().play(conversation)
    return len(conversation)


def run_storage(data: bytes) -> int:
    conversation = unpack(data)
    StorageWorld().play(conversation)
    return len(conversation)


def run_answers(data: bytes) -> int:
    conversation = unpack(data)
    peers.answer(conversation)
    return len(conversation)


class _Watcher:
    def watch(self, descriptor: int) -> None: ...

    def watch_writing(self, descriptor: int, is_wanted: bool) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...


def run_local(data: bytes) -> int:
    """Split a byte stream of the local transport that arrives in chunks of any size."""
    random = Random(data[:8])
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    transport = LocalTransport(ours, _Watcher(), PartialBytes())
    transport.start_session(compresses=False)
    inputs: list[t.Input] = []
    at = 0
    with theirs:
        while at < len(data) and not any(isinstance(each, t.LinkLost) for each in inputs):
            at += theirs.send(data[at : at + random.choice((1, 7, 100, 5_000, 60_000))])
            transport.receive(inputs)
        while not inputs or not isinstance(inputs[-1], t.LinkLost):
            theirs.close()
            transport.receive(inputs)
    transport.cut()
    for each in inputs:
        if isinstance(each, t.EnvelopeReceived):
            assert len(each.header) == HEADER_BYTES
            assert len(each.body) <= MAX_BATCH_BYTES
    return max(1, len(inputs) - 1)


_FRAME_SIZES = struct.Struct("<3H")
"""Sizes of header, body, and attachment, which follow. An attachment of size 0 is missing."""


def run_compressed(data: bytes) -> int:
    """Decompress frames from a hostile peer over ZeroMQ, after both sides have announced compression."""
    at, messages = 0, 0
    link = LocalTransport.__new__(LocalTransport)
    while at + _FRAME_SIZES.size <= len(data) and messages < 50:
        sizes = _FRAME_SIZES.unpack_from(data, at)
        at += _FRAME_SIZES.size
        header, body, attachment = (data[at + sum(sizes[:n]) : at + sum(sizes[: n + 1])] for n in range(3))
        at += sum(sizes)
        views = [memoryview(attachment)] if attachment else []
        envelope = t.EnvelopeReceived(link, header, body, views)
        found, growth = expanded(envelope)
        if isinstance(found, t.EnvelopeReceived) and found is not envelope:
            assert len(found.header) == HEADER_BYTES
            assert len(found.body) <= MAX_BATCH_BYTES
            assert sum(each.nbytes for each in found.attachments) <= MAX_ATTACHED_BYTES
        assert growth <= MAX_BATCH_BYTES + MAX_ATTACHED_BYTES
        messages += 1
    return messages


def compressed_seeds() -> tuple[bytes, ...]:
    text = b"".join(b"%d," % number for number in range(3_000))
    contents = ([text], [bytes(5_000), text], [text, struct.pack("<2000d", *range(2_000))])
    found = []
    for body, *attachments in contents:
        packer = Packer(lambda: 0.0, PackingLoad(), lambda: 0.0, lambda: 0.0)
        found.append(_sized(packer.pack(Envelope(bytes(HEADER_BYTES), body, attachments))))
    return tuple(found)


def _sized(piece: Envelope) -> bytes:
    frames = [piece.header, piece.body, *map(bytes, piece.attachments), b""][:3]
    return _FRAME_SIZES.pack(*map(len, frames)) + b"".join(frames)


# -- the processes of a worker


def run_processor(data: bytes) -> int:
    """Process datagrams from a hostile task to its agent, each prefixed with its size."""
    datagrams: list[bytes] = []
    at = 0
    while at + 2 <= len(data) and len(datagrams) < 50:
        size = int.from_bytes(data[at : at + 2], "little")
        datagrams.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    peers.report(datagrams)
    return len(datagrams)


def processor_seeds() -> tuple[bytes, ...]:
    rows = [(b"goodclie%08d" % number, 1, 0, 0, 10, 0, 0, 100, 0, 0, 0, 0, 3) for number in range(3)]
    notes = [pack_note(Note(kind, b"text", b"goodclie00000000")) for kind in ToAgent if kind is not ToAgent.RESULTS]
    results = [pack_results(number, [row], [b"\x80.."]) for number, row in enumerate(rows)]
    found = [
        *([each] for each in (*notes, *results)),
        results,
        [*notes[2:4], *results],
        [notes[2], results[0], notes[3]],
    ]
    return tuple(_datagrams(each) for each in found)


def _datagrams(datagrams: list[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(2, "little") + each for each in datagrams)


@cache
def _page() -> tuple[int, PageReader]:
    descriptor = make_page()
    return descriptor, PageReader(descriptor)


def run_page(data: bytes) -> int:
    """Read a status page written by a hostile task."""
    descriptor, page = _page()
    os.pwrite(descriptor, data[:64].ljust(64, b"\0") + data[64:40_000], 0)
    page.snapshot()
    with suppress(ProtocolError):
        page.unsent()
    return 1


def page_seeds() -> tuple[bytes, ...]:
    row = RESULT.pack(b"goodclie00000000", 1, 0, 0, 10, 0, 0, 100, 0, 0, 0, 0, 3)
    return tuple(struct.pack("<5Q24x", 1, 10**9, 1, 0, count) + row * count for count in (0, 1, 3, MAX_ROWS))


# -- texts and payloads


def run_payloads(data: bytes) -> int:
    """Parse bytes as payloads, calls, results, or batches of calls."""
    for outcome in range(4):
        failure_texts(outcome, data)
    for read in (parts_of, unpack_call, lambda data: call_of(lambda begin, end: data[begin:end], 1, 100)):
        with suppress(ProtocolError, RefusedError):
            read(data)
    with suppress(ProtocolError, RefusedError):
        result = unpack_result(data)
        pack_result(result)
        for number in (result.duration_us, result.cpu_us, result.peak_bytes):
            assert 0 <= number < 2**64
    return 1


def payload_seeds() -> tuple[bytes, ...]:
    call = Call(b"t" * 16, 1, b"\x80f", b"\x80a", [b"\x80i"])
    result = CallResult(0, [b"\x80r"], 1, 2, 3, b"out", b"err")  # type: ignore[arg-type]
    packed = pack_call(call)
    found = [packed, pack_result(result), pack_bundle([packed] * 3), pack_bundle([packed]), bytes(call.function)]
    return (*found, *(each for each in bodies()[:10]))


def run_texts(data: bytes) -> int:
    """Parse files and texts from users and services, such as TOML, credentials, job specifications, and documents."""
    text = data.decode("utf-8", "replace")
    with suppress(ConfigError):
        Credential.from_text(text, "text")
    with suppress(ConfigError):
        JobSpec.from_environment({JOB_SPEC_VARIABLE: text})
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        with suppress(ConfigError):
            read_file(file.name)
    return 1


def text_seeds() -> tuple[bytes, ...]:
    keys = f'public = "{"a" * 40}"\nsecret = "{"b" * 40}"\n'
    servers = f'[servers]\nscheduler = "{"c" * 40}"\nobject_storage = "{"d" * 40}"\n'
    credential = f'name = "n"\nrole = "client"\ncluster = "c"\n{servers}[keys]\n{keys}'
    job = JobSpec("region", "bucket", "keys/", 1).to_json()
    toml = '[scheduler]\nbind_address = "tcp://127.0.0.1:1"\n[[worker_manager]]\ntype = "baremetal_native"\n'
    return tuple(each.encode() for each in (credential, job, toml, '{"a": [[[]]]}'))


# -- the web server


def run_web(data: bytes) -> int:
    """Answer requests: each line is a method, a path with its query, and headers, separated by tabs."""
    requests = [line.split(b"\t") for line in data.splitlines()[:20]]
    return asyncio.run(_answer_requests(requests))


async def _answer_requests(requests: list[list[bytes]]) -> int:
    app = WebApp(PreparedMonitor(filled_model()), web_config(), "the token")
    count = 0
    for method, target, *headers in (each for each in requests if len(each) > 1):
        if b"/api/stream" in target or b"/events" in target:
            continue  # answers forever
        path, _, query = target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method.decode("latin-1"),
            "scheme": "http",
            "path": path.decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [tuple(each.partition(b": ")[::2]) for each in headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {SAME_USER: lambda is_user=count % 4: bool(is_user)},
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"token=the+token", "more_body": False}

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        async with asyncio.timeout(5):
            await app(scope, receive, send)
        assert sent, "every request has an answer"
        assert sent[0]["status"] < 500 or sent[0]["status"] in (501, 503, 504), (
            f"{path!r} is answered with an error of ours"
        )
        count += 1
    app.close()
    return count


def web_seeds() -> tuple[bytes, ...]:
    paths = [*openapi()["paths"], "/", "/schema.js", "/metrics", "/static/app.js", "/openapi.json"]
    task = "0123456789abcdef" * 2
    queries = ["", "?limit=5&search=work", f"?task={task}", "?seconds=10&since=1&until=20", "?state=failed&worker=w"]
    lines = [
        f"GET\t{path.replace('{task}', task).replace('{task_id}', task)}{query}" for path in paths for query in queries
    ]
    lines += ["GET\t/?token=the%20token", "POST\t/login\tContent-Type: application/x-www-form-urlencoded"]
    lines += ["GET\t/api/status\tAuthorization: Bearer the token", "GET\t/api/status\tCookie: scaler=a.b.c"]
    head = "\tHost: 127.0.0.1:2\tOrigin: http://127.0.0.1:2"
    return tuple("\n".join(f"{line}{head}" for line in lines[at : at + 4]).encode() for at in range(0, len(lines), 4))


# -- all


def _conversation(random: Random, data: bytes) -> bytes:
    return mutations.conversation_of(random, data, bodies())


def _body(random: Random, data: bytes) -> bytes:
    return mutations.body_of(random, data, bodies())


TARGETS = {
    each.name: each
    for each in (
        Target("codec", run_codec, lambda: (*seeds("codec"), *bodies()), _body, 95_000),
        Target("scheduler", run_scheduler, lambda: seeds("scheduler"), _conversation, 250),
        Target("storage", run_storage, lambda: seeds("storage"), _conversation, 250),
        Target("answers", run_answers, lambda: seeds("answers"), _conversation, 200),
        Target(
            "compressed", run_compressed, lambda: (*seeds("compressed"), *compressed_seeds()), mutations.bytes_of, 1_000
        ),
        Target("local", run_local, lambda: (*seeds("local"), *seeds("scheduler")), _conversation, 250),
        Target(
            "processor", run_processor, lambda: (*seeds("processor"), *processor_seeds()), mutations.bytes_of, 1_000
        ),
        Target("page", run_page, lambda: (*seeds("page"), *page_seeds()), mutations.bytes_of, 2_000),
        Target("payloads", run_payloads, lambda: (*seeds("payloads"), *payload_seeds()), mutations.bytes_of, 3_000),
        Target("texts", run_texts, lambda: (*seeds("texts"), *text_seeds()), mutations.bytes_of, 1_000),
        Target("web", run_web, lambda: (*seeds("web"), *web_seeds()), mutations.bytes_of, 60),
    )
}
