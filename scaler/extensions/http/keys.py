"""Client keys of the HTTP server, each with its token, its clients, and its calls. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from hashlib import blake2b
from typing import Any

from scaler.client.client import Client
from scaler.client.future import ScalerFuture, end_of
from scaler.errors import LimitError, UnreachableError
from scaler.extensions.asynchronous.client import AsyncClient
from scaler.extensions.http.job import CallFailedError, ExitCodeError, invoke, run_script
from scaler.extensions.http.settings import ID, SCHEDULES, HttpConfig
from scaler.grammar import counted
from scaler.monitor.rows import View
from scaler.net.access import Access
from scaler.protocol.failures import unpack_exception
from scaler.protocol.messages import ListSessions, SessionRow, SessionsListed
from scaler.security.credential import Credential
from scaler.serialization.exceptions import remote_traceback
from scaler.texts import readable

CONNECT_SECONDS = 10.0
MAX_SESSIONS = 100
"""Open durable sessions of a key."""
MAX_OUTPUT, MAX_PIECES = 1024 * 1024, 4096
"""Maximum characters and pieces of a job's output. The last ones are kept."""
MERGED = 4096
"""Characters from which a piece is complete."""
MAX_KEPT, MAX_KEPT_BYTES = 10_000, 256 * 1024 * 1024
"""Maximum number of ended calls per key kept here, and bytes of their results and output."""
MAX_STREAMS = 50
"""Open event streams of a key."""
TAG = "http"
"""Tag of this server's tasks in durable sessions."""


def token_of(credential: Credential) -> str:
    """Return the token of a client key, from which the key cannot be derived."""
    return blake2b(credential.secret.encode(), digest_size=24, person=b"scaler http").hexdigest()


class HttpCall:
    """A call, or a job with its output. value: media type and encoded result. changed: set and replaced on every
    change."""

    def __init__(
        self, identifier: str, function: str, future: ScalerFuture, printed: Iterable[tuple[bool, bytes]] | None = None
    ) -> None:
        """printed: the output of a job."""
        self.id = identifier
        self.future = future
        self.value: tuple[str, bytes] | None = None
        self.output: deque[tuple[int, str, str]] = deque()
        """Position, stream, and text of pieces."""
        self.changed, self.ended = asyncio.Event(), asyncio.Event()
        self.ended_at = 0.0
        self._printed = printed
        self._state = ""
        self._document: View = {"id": identifier, "function": function, "submitted_at": time.time()}
        self._printed_characters = 0
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(2)]

    @property
    def state(self) -> str:
        return self._state or ("running" if self.future.running() else "pending")

    @property
    def document(self) -> View:
        output = {"output": "".join(text for _, _, text in self.output), "cut_characters": self._cut}
        return self._document | {"state": self.state} | ({} if self._printed is None else output)

    @property
    def size(self) -> int:
        problem = self._document.get("problem", {"message": ""})
        return len(self.value[1] if self.value else problem["message"]) + self._printed_characters - self._cut

    @property
    def _cut(self) -> int:
        return self.output[0][0] if self.output else 0

    async def follow(self, threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        if self._printed is not None:
            await loop.run_in_executor(threads, self._read, loop, self._printed)
        await end_of(self.future).wait()
        self._state, self.value, more = await loop.run_in_executor(threads, _outcome, self.future)
        self._document |= more
        self.ended_at = time.monotonic()
        self.ended.set()
        self._notify()

    def _read(self, loop: asyncio.AbstractEventLoop, printed: Iterable[tuple[bool, bytes]]) -> None:
        try:
            for is_stderr, data in printed:
                loop.call_soon_threadsafe(self.add, is_stderr, data)
        except BaseException:  # noqa: BLE001 (the future has the error)
            self.future.cancel()  # unless it has ended

    def add(self, is_stderr: bool, data: bytes) -> None:
        text, stream = self._decoders[is_stderr].decode(data), "stderr" if is_stderr else "stdout"
        begin, before = self._printed_characters, ""
        if self.output and self.output[-1][1] == stream and len(self.output[-1][2]) < MERGED:
            begin, _, before = self.output.pop()
        self.output.append((begin, stream, before + text))
        self._printed_characters += len(text)
        while len(self.output) > MAX_PIECES or self.size - len(self.output[0][2]) >= MAX_OUTPUT:
            self.output.popleft()
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _outcome(future: ScalerFuture) -> tuple[str, tuple[str, bytes] | None, View]:
    """Return the state, the result, and further values of the document. Loads the result, so it needs a thread."""
    more: View = {}
    try:
        match future.result():
            case (str(media), bytes(value)):
                return "done", (media, value), {}
        return "done", None, {"exit_code": 0}
    except CancelledError:
        return "cancelled", None, {}
    except CallFailedError as error:
        kind, text, traceback, _ = unpack_exception(error.shown)
    except BaseException as error:  # noqa: BLE001 (of the task; SystemExit would end the server)
        kind, text, found = (
            type(error).__name__,
            readable(str(error).encode("utf-8", "replace")),
            remote_traceback(error),
        )
        traceback = "" if found is None else found.text
        more = {"exit_code": error.args[0]} if isinstance(error, ExitCodeError) else {}
    return "failed", None, more | {"problem": {"type": kind, "message": text, "traceback": traceback}}


class ClientKey:
    def __init__(self, name: str, token: str, config: HttpConfig, access: Access) -> None:
        self.name, self.token = name, token
        self._config = config
        self._access = access._replace(uses_local=access.credential is None)  # otherwise all keys count as this user
        self.clients: dict[str, asyncio.Task[AsyncClient]] = {}
        """By session; an empty name means no session."""
        self._closing = asyncio.Lock()
        self.streams = 0
        self.calls: dict[str, HttpCall] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(config.max_calls_per_key + 4, "scaler-http")

    async def submit(self, function: str, is_listed: bool, media: str, body: Mapping[str, Any]) -> HttpCall:
        """Submit the call of a request. Raises ScalerError and TypeError."""
        session = body.get("session", "")
        key = body.get("key") or secrets.token_hex(8)
        client = await self._connected(session)
        given = function, is_listed, body.get("args", ()), body.get("kwargs", {}), media
        labels = {"key": key, "tag": TAG} if session else {}
        future = client.submit_verbose(invoke, given, **{"name": function, **labels, **body.get("options", {})})
        known = self.calls.get(identifier := f"{session}.{key}" if session else future.task_id.hex())
        return known if known and known.future is future else self._follow(HttpCall(identifier, function, future))

    async def run(self, name: str, source: bytes, arguments: list[str], options: Mapping[str, Any]) -> HttpCall:
        client = await self._connected("")
        stream = await client.ask(Client.stream, run_script, name, source, arguments, **{"name": name, **options})
        return self._follow(HttpCall(stream.future.task_id.hex(), name, stream.future, stream))

    async def find(self, identifier: str) -> HttpCall | None:
        """Return a call of this key, including calls that earlier servers made in a durable session."""
        with contextlib.suppress(UnreachableError):
            await self.client("")  # raises RefusedError for a revoked key
        session, _, key = identifier.rpartition(".")
        is_durable = ID.fullmatch(session) and ID.fullmatch(key) and not session.startswith(SCHEDULES)
        if is_durable and identifier not in self.calls:
            listed = await (await self.client("")).ask(sessions_of)
            if session in (row.name for row in listed):  # connecting would create it
                for future in await (await self.client(session)).ask(Client.futures, key=key, tag=TAG):
                    self._follow(HttpCall(identifier, future._spec.name, future))
        return self.calls.get(identifier)

    def drop(self, call: HttpCall) -> None:
        self.calls.pop(call.id, None)

    async def client(self, session: str) -> AsyncClient:
        """Return the client with a durable session, or without one. Raises UnreachableError, RefusedError, and
        LimitError."""
        if session:
            async with self._closing:
                pass  # otherwise the scheduler reports that the session is in use
        known = self.clients.get(session)
        if known is None or (known.done() and (known.exception() or _is_closed(known.result()))):
            if session and len(self.clients) > MAX_SESSIONS:
                raise LimitError(f"the key {self.name} uses {MAX_SESSIONS} sessions: send the request again later")
            known = self.clients[session] = asyncio.create_task(self.open(session))
        return await asyncio.shield(known)

    async def open(self, session: str) -> AsyncClient:
        given = {"timeout_seconds": CONNECT_SECONDS, "name": f"http {self.name}", "session": session or None}
        client = AsyncClient(self._config.scheduler_address, credentials=self._access, **given)
        return await client.__aenter__()

    async def _connected(self, session: str) -> AsyncClient:
        client = await self.client(session)
        unfinished = sum(not call.ended.is_set() for call in self.calls.values())
        if unfinished >= (most := self._config.max_calls_per_key):
            text = f"the key {self.name} has {counted(unfinished, 'unfinished call')}: wait, or cancel some"
            raise LimitError(f"{text} (max_calls_per_key is {most})")
        if client._open._loop.state != "connected":
            raise UnreachableError("the scheduler does not answer: send the request again later")
        return client

    def _follow(self, call: HttpCall) -> HttpCall:
        self.calls[call.id] = call
        following = asyncio.create_task(call.follow(self._threads))
        self._following.add(following)
        following.add_done_callback(self._following.discard)
        return call

    async def sweep(self) -> None:
        """Drop old results, and leave durable sessions without calls."""
        now, size = time.monotonic(), 0
        ended = sorted((each for each in self.calls.values() if each.ended_at), key=lambda each: -each.ended_at)
        for count, call in enumerate(ended):
            size += call.size
            if now - call.ended_at > self._config.keep_seconds or size > MAX_KEPT_BYTES or count >= MAX_KEPT:
                self.drop(call)
        for session, opening in [*self.clients.items()]:
            async with self._closing:
                if session and opening.done() and not any(each.startswith(f"{session}.") for each in self.calls):
                    await _close(self.clients.pop(session))

    async def close(self) -> None:
        for opening in self.clients.values():
            await _close(opening)
        self._threads.shutdown(wait=False)


def sessions_of(client: Client) -> list[SessionRow]:
    return client._loop.ask(ListSessions(), SessionsListed).sessions


def _is_closed(client: AsyncClient) -> bool:
    return client._client is None or client._client._futures.closed is not None


async def _close(opening: asyncio.Task[AsyncClient]) -> None:
    if opening.done() and opening.exception() is None:
        await opening.result().disconnect()
    opening.cancel()
