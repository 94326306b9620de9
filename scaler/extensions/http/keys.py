"""Client keys of the HTTP server, each with its token, clients, and calls. Bound to one event loop."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import secrets
import time
from concurrent.futures import CancelledError
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import BaseModel, StringConstraints

from scaler.client.client import Client
from scaler.client.future import ScalerFuture, end_of
from scaler.errors import LimitError, RefusedError, UnreachableError, UsageError
from scaler.extensions.asynchronous.client import AsyncClient
from scaler.extensions.http.job import JSON, MSGPACK, ExitCodeError, encode, invoke, run_script
from scaler.extensions.http.settings import ID, SCHEDULES, HttpConfig
from scaler.extensions.streams.asynchronous import AsyncStream
from scaler.grammar import counted
from scaler.monitor.rows import View
from scaler.monitor.web.routes import dump
from scaler.net.access import Access
from scaler.protocol.failures import unpack_exception
from scaler.protocol.messages import ListSessions, SessionRow, SessionsListed
from scaler.security.credential import Credential
from scaler.serialization.exceptions import ShownAsError, remote_traceback
from scaler.texts import readable

CONNECT_SECONDS = 10.0
MAX_SESSIONS = 100
"""Maximum number of open durable sessions per key."""
MAX_OUTPUT = 1024 * 1024
"""Maximum characters of a job's output. Longer output is truncated to its last half."""
MAX_KEPT, MAX_KEPT_BYTES = 10_000, 256 * 1024 * 1024
"""Maximum number of ended calls kept per key, and maximum bytes of their results and output."""
TAG = "http"
"""Tag of this server's tasks in durable sessions."""


Option = Literal[
    "priority", "retries", "losses", "timeout_seconds", "capabilities", "memory", "cpus", "gpu", "near", "resources",
    "limits", "tags", "expected_seconds", "preemptible",
]  # fmt: skip
"""Task options of requests."""
Name = Annotated[str, StringConstraints(pattern=f"^{ID.pattern}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$")]


class CallRequest(BaseModel, extra="forbid", strict=True):
    function: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    session: Name = ""
    key: Name = ""
    options: dict[Option, Any] = {}


class JobRequest(BaseModel, extra="forbid", strict=True):
    script: str
    args: list[str] = []
    name: FileName = "job.py"
    options: dict[Option, Any] = {}


class SessionRefusedError(RefusedError):
    """The scheduler accepts the key but refuses this session."""


def token_of(credential: Credential) -> str:
    """Derive the token of a client key. The key cannot be derived from the token."""
    return blake2b(credential.secret.encode(), digest_size=24, person=b"scaler http").hexdigest()


class HttpCall:
    """A call or job. following: task that ends with the call. printed: future, done and replaced on output."""

    def __init__(self, identifier: str, function: str, future: ScalerFuture, pieces: AsyncStream | None = None) -> None:
        """pieces: a job's output as it arrives."""
        self.id = identifier
        self.future = future
        self.ended_at = 0.0
        self.size = 0
        """Size of the answer (bytes) once the call has ended."""
        self.printed_characters = 0
        self.printed: asyncio.Future[None] = asyncio.Future()
        self._pieces = pieces
        self._output = io.StringIO()
        """The last part of the output."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._state, self._result = "", ("", b"")
        """Media type and content of the result."""
        self._document: View = {"id": identifier, "function": function, "submitted_at": time.time()}
        self.following = asyncio.create_task(self._follow())

    @property
    def state(self) -> str:
        return self._state or ("running" if self.future.running() else "pending")

    @property
    def answer(self) -> bytes:
        """This call as JSON, without a result in MessagePack."""
        media, result = self._result
        return dump(self._shown())[:-1] + (b',"result":%s}' % result if media == JSON else b"}")

    @property
    def packed(self) -> bytes:
        """This call in MessagePack; empty unless its result is in MessagePack."""
        media, result = self._result
        if media != MSGPACK:
            return b""
        head = encode(self._shown(), MSGPACK)  # a small map: the first byte contains the number of keys
        return bytes([head[0] + 1]) + head[1:] + encode("result", MSGPACK) + result

    def _shown(self) -> View:
        if self._pieces is None:
            return self._document | {"state": self.state}
        text = self.output(0)
        cut = {"output": text, "cut_characters": self.printed_characters - len(text)}
        return self._document | {"state": self.state} | cut

    async def _follow(self) -> None:
        if self._pieces is not None:
            try:
                async for _, data in self._pieces:
                    self.add(data)
                    await asyncio.sleep(0)  # lets event streams read the data before it is truncated
            except BaseException:  # noqa: BLE001 (the future has the error)
                self.future.cancel()  # unless it has ended
        await end_of(self.future).wait()
        self._state, self._result, more = await asyncio.to_thread(_outcome, self.future)
        self._document |= more
        self.ended_at, self.size = time.monotonic(), len(self.packed or self.answer)

    def add(self, data: bytes) -> None:
        self._output.seek(0, io.SEEK_END)
        self.printed_characters += self._output.write(self._decoder.decode(data))
        if self._output.tell() > MAX_OUTPUT:
            self._output = io.StringIO(self.output(self.printed_characters - MAX_OUTPUT // 2))
        self.printed.set_result(None)
        self.printed = asyncio.Future()

    def output(self, begin: int) -> str:
        """Return the retained output after a position."""
        self._output.seek(max(0, self._output.seek(0, io.SEEK_END) - self.printed_characters + begin))
        return self._output.read()


def _outcome(future: ScalerFuture) -> tuple[str, tuple[str, bytes], View]:
    """Return the state, the result, and further values of the document. Loads the result, so call it in a thread."""
    more: View = {}
    try:
        result = future.result()
        return ("done", result, {}) if isinstance(result, tuple) else ("done", ("", b""), {"exit_code": 0})
    except CancelledError:
        return "cancelled", ("", b""), {}
    except ShownAsError as error:
        kind, text, traceback, _ = unpack_exception(error.shown)
    except BaseException as error:  # noqa: BLE001 (of the task; SystemExit would end the server)
        kind, text = type(error).__name__, readable(str(error).encode("utf-8", "replace"))
        found = remote_traceback(error)
        traceback = "" if found is None else found.text
        more = {"exit_code": error.args[0]} if isinstance(error, ExitCodeError) else {}
    return "failed", ("", b""), more | {"problem": {"type": kind, "message": text, "traceback": traceback}}


class ClientKey:
    def __init__(self, name: str, token: str, config: HttpConfig, access: Access) -> None:
        self.name, self.token = name, token
        self._config = config
        self._access = access._replace(uses_local=access.credential is None)  # else any key counts as this user
        self.clients: dict[str, asyncio.Task[AsyncClient]] = {}
        """Clients by the name of their session; empty: no session."""
        self._closing = asyncio.Lock()
        self.scheduling = asyncio.Lock()
        """Held by the schedule that uses a session. A second connection to the session would be refused."""
        self.streams = 0
        self.calls: dict[str, HttpCall] = {}

    async def submit(self, is_listed: bool, asked: CallRequest, media: str) -> HttpCall:
        """Submit the call of a request. media: media type of the result. Raises ScalerError and TypeError."""
        session, key = asked.session, asked.key or secrets.token_hex(8)
        client = await self._connected(session)
        labels: dict[str, Any] = {"key": key, "tag": TAG} if session else {}
        given = asked.function, is_listed, asked.args, asked.kwargs, media
        future = client.submit_verbose(invoke, given, name=asked.function, **labels, **asked.options)
        if (name := future._spec.name) != asked.function:
            raise UsageError(f"the key {key} belongs to a call of {name}: choose another key")
        known = self.calls.get(identifier := f"{session}.{key}" if session else future.task_id.hex())
        return known if known and known.future is future else self._add(identifier, asked.function, future)

    async def run(self, job: JobRequest) -> HttpCall:
        client, script = await self._connected(""), job.script.encode()
        stream = client.stream(run_script, job.name, script, job.args, name=job.name, **job.options)
        return self._add(stream.future.task_id.hex(), job.name, stream.future, stream)

    async def find(self, identifier: str) -> HttpCall | None:
        """Return a call made with this key, by this server or by an earlier one in a durable session; None: unknown."""
        with contextlib.suppress(UnreachableError):
            await self.client("")  # raises RefusedError for a revoked key
        session, _, key = identifier.rpartition(".")
        is_durable = ID.fullmatch(session) and ID.fullmatch(key) and not session.startswith(SCHEDULES)
        if is_durable and identifier not in self.calls:
            listed = await (await self.client("")).ask(sessions_of)
            if session in (row.name for row in listed):  # connecting would create the session
                for future in await (await self.client(session)).ask(Client.futures, key=key, tag=TAG):
                    self._add(identifier, future._spec.name, future)
        return self.calls.get(identifier)

    async def client(self, session: str) -> AsyncClient:
        """Return the client with a durable session, or without one. Raises UnreachableError, RefusedError, and
        LimitError."""
        if session:
            async with self._closing:
                pass  # otherwise the scheduler reports that the session is in use
        known = self.clients.get(session)
        if known is None or (known.done() and (known.exception() or known.result()._open._futures.closed)):
            if session and len(self.clients) > MAX_SESSIONS:
                raise LimitError(f"the key {self.name} uses {MAX_SESSIONS} sessions: retry the request later")
            known = self.clients[session] = asyncio.create_task(self.open(session))
        try:
            return await asyncio.shield(known)
        except RefusedError as error:
            if not session:
                raise
            await self.client("")  # raises RefusedError for a revoked key
            raise SessionRefusedError(str(error)) from None

    async def open(self, session: str) -> AsyncClient:
        given = {"timeout_seconds": CONNECT_SECONDS, "name": f"http {self.name}", "session": session or None}
        client = AsyncClient(self._config.scheduler_address, credentials=self._access, **given)
        return await client.__aenter__()

    async def _connected(self, session: str) -> AsyncClient:
        client = await self.client(session)
        unfinished = sum(not call.ended_at for call in self.calls.values())
        if unfinished >= (most := self._config.max_calls_per_key):
            text = f"the key {self.name} has {counted(unfinished, 'unfinished call')}: wait, or cancel some"
            raise LimitError(f"{text} (max_calls_per_key is {most})")
        if client._open._loop.state != "connected":
            raise UnreachableError("the scheduler does not answer: retry the request later")
        return client

    def _add(self, identifier: str, *given: Any) -> HttpCall:
        call = self.calls[identifier] = HttpCall(identifier, *given)
        return call

    async def sweep(self) -> None:
        """Drop old results, and disconnect from durable sessions without calls."""
        now, size = time.monotonic(), 0
        ended = sorted((each for each in self.calls.values() if each.ended_at), key=lambda each: -each.ended_at)
        for count, call in enumerate(ended):
            size += call.size
            if now - call.ended_at > self._config.keep_seconds or size > MAX_KEPT_BYTES or count >= MAX_KEPT:
                del self.calls[call.id]
        for session, opening in [*self.clients.items()]:
            async with self._closing:
                if session and opening.done() and not any(each.startswith(f"{session}.") for each in self.calls):
                    await _close(self.clients.pop(session))

    async def close(self) -> None:
        for opening in self.clients.values():
            await _close(opening)


def sessions_of(client: Client) -> list[SessionRow]:
    return client._loop.ask(ListSessions(), SessionsListed).sessions


async def _close(opening: asyncio.Task[AsyncClient]) -> None:
    if opening.done() and opening.exception() is None:
        await opening.result().disconnect()
    opening.cancel()
