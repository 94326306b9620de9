"""The HTTP server and its process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scaler._version import __version__
from scaler.component import Component, run_component
from scaler.config.addresses import is_open_to_others
from scaler.errors import LimitError, RefusedError, ScalerError, UnreachableError, UsageError
from scaler.extensions.http.job import JSON, MSGPACK
from scaler.extensions.http.keys import CallRequest, ClientKey, HttpCall, JobRequest, SessionRefusedError, token_of
from scaler.extensions.http.schedules import ScheduleRunner
from scaler.extensions.http.settings import SCHEDULES, TOKEN_FILE, HttpConfig, permission_of, schedules_of
from scaler.extras import require
from scaler.logs import RateLimitedLog
from scaler.monitor.rows import View, object_schema, schema_of
from scaler.monitor.tables import Parameter, number, values_of
from scaler.monitor.web.page import keep_token, listen, load_token, page_of, tls_of
from scaler.monitor.web.routes import answer, dump, refusal
from scaler.monitor.web.security import BEARER, LIMIT, Admission, Guard, bearer_of, is_same
from scaler.monitor.web.serving import serve
from scaler.monitor.web.stream import EVENT_STREAM
from scaler.net.access import Access
from scaler.protocol.messages import Role
from scaler.security.credential import load_credential

METHODS = "GET", "POST", "DELETE"
OPENAPI = "/v1/openapi.json"
WAIT = number("wait", "Maximum seconds to wait for the call or job to end.", "number", 0, 60, 0.0)
MAX_STREAMS = 50
"""Maximum number of open event streams per key."""
QUIET_SECONDS, POLL_SECONDS, SWEEP_SECONDS = 15.0, 0.25, 5.0
BIND_SECONDS = 10

_log = logging.getLogger(__name__)


class Tokens(Admission):
    def __init__(self, keys: list[ClientKey]) -> None:
        self._keys = keys
        self._wrong = RateLimitedLog(_log, logging.WARNING, asyncio.get_running_loop())

    async def answer(self, request: Request, *, is_local: bool) -> Response | None:  # noqa: ARG002
        given = bearer_of(request) or ""
        request.state.key = next((key for key in self._keys if is_same(given, key.token)), None)
        if request.state.key or request.url.path == OPENAPI:
            return None
        self._wrong.add(f"no valid token from {request.client.host if request.client else ''}")
        return refusal(
            401, "send the header 'Authorization: Bearer TOKEN'; `scaler http token [FILE]` prints it", BEARER
        )


class Api:
    """Handlers of requests."""

    def __init__(self, config: HttpConfig, runners: list[ScheduleRunner]) -> None:
        self._config = config
        self._runners = runners

    async def respond(self, operations: Mapping[str, Operation], request: Request) -> Response:
        """Answer a request to a path. operations: the path's operations, by method."""
        if (operation := operations.get(request.method)) is None:
            allowed = ", ".join(operations)
            raise HTTPException(405, f"{request.method} is not allowed here: use {allowed}", {"Allow": allowed})
        given = {name: request.query_params.getlist(name) for name in request.query_params}
        request.state.wait = values_of(operation.parameters, given).get("wait", 0.0)
        return await operation.handle(self, request)

    async def post_call(self, request: Request) -> Response:
        body: CallRequest = await self._body(request, CallRequest)
        if (is_listed := permission_of(self._config, body.function)) is None:
            raise PermissionError(f"the function {body.function!r} is not permitted: add it to `allowed` in [http]")
        if body.session.startswith(SCHEDULES):
            raise UsageError(f"sessions with names like {SCHEDULES}* belong to schedules: choose another name")
        if body.key and not body.session:
            raise UsageError("a key needs a session: add the name of a durable session")
        media = MSGPACK if MSGPACK in request.headers.get("accept", "") else JSON
        return await _answer(request, await request.state.key.submit(is_listed, body, media))

    async def post_job(self, request: Request) -> Response:
        if not self._config.allow_jobs:
            raise PermissionError("jobs are not permitted: set allow_jobs in [http]")
        return await _answer(request, await request.state.key.run(await self._body(request, JobRequest)))

    async def get_call(self, request: Request) -> Response:
        return await _answer(request, await _found(request))

    async def delete_call(self, request: Request) -> Response:
        call = await _found(request)
        if call.ended_at:
            request.state.key.calls.pop(call.id, None)
        call.future.cancel()
        request.state.wait = request.state.wait or 1.0
        return await _answer(request, call)

    async def get_call_events(self, request: Request) -> Response:
        call, key, last = await _found(request), request.state.key, request.headers.get("last-event-id", "")
        if key.streams >= MAX_STREAMS:
            raise LimitError(f"the key {key.name} has {MAX_STREAMS} open event streams: close some")
        request.scope.get("state", {}).get(LIMIT, lambda _seconds: None)(None)
        events = _events(key, call, int(last) if re.fullmatch("[0-9]{1,18}", last) else 0)
        return StreamingResponse(events, headers={"X-Accel-Buffering": "no"}, media_type=EVENT_STREAM)

    async def get_schedules(self, _request: Request) -> Response:
        return answer({"schedules": [each.view for each in self._runners]})

    async def get_openapi(self, _request: Request) -> Response:
        return answer(openapi())

    async def _body(self, request: Request, model: type[Any]) -> Any:
        data, most = bytearray(), self._config.max_body_bytes
        async for part in request.stream():
            data += part
            if len(data) > most:
                raise HTTPException(413, f"the request has more than {most} bytes (max_body_bytes)")
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if media == MSGPACK:
                return model.model_validate(_unpacked(data))
            return model.model_validate_json(bytes(data))
        except ValidationError as error:
            first, known = error.errors(include_url=False, include_input=False)[0], ", ".join(model.model_fields)
            where = ".".join(map(str, first["loc"][:2])) or "the request"
            raise UsageError(f"{where}: {first['msg']} (the request must be an object with fields {known})") from None


def _unpacked(data: bytearray) -> Any:
    require("msgpack", MSGPACK)
    import msgpack  # noqa: PLC0415 (optional)

    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError) as error:
        raise UsageError(f"the request is not valid {MSGPACK}: {error}") from None


async def _found(request: Request) -> HttpCall:
    identifier = request.path_params["id"]
    call: HttpCall | None = await request.state.key.find(identifier)
    if call is None:
        text = f"this key has no call {identifier}: the id is wrong, its result was dropped, or this server restarted"
        raise HTTPException(404, f"{text}, which only calls in durable sessions survive")
    return call


async def _answer(request: Request, call: HttpCall) -> Response:
    await asyncio.wait([call.following], timeout=request.state.wait)
    headers = {"Location": f"/v1/calls/{call.id}"} if request.method == "POST" else None
    packed = call.packed
    return Response(packed or call.answer, 200 if call.ended_at else 202, headers, MSGPACK if packed else JSON)


async def _events(key: ClientKey, call: HttpCall, position: int) -> AsyncIterator[bytes]:
    """Yield a `state` event for each state, `output` events, and finally an `end` event. position: start in the output,
    in characters."""
    loop, state = asyncio.get_running_loop(), ""
    sent_at = loop.time()
    key.streams += 1
    try:
        while True:
            has_ended, changes, found = call.following.done(), (call.following, call.printed), b""
            if text := call.output(position):
                position = call.printed_characters
                found += b"id: %d\nevent: output\ndata: %s\n\n" % (position, dump({"text": text}))
            if has_ended or call.state != state:
                state = call.state
                found += b"event: %s\ndata: %s\n\n" % (b"end" if has_ended else b"state", call.answer)
            if found or loop.time() - sent_at > QUIET_SECONDS:
                sent_at = loop.time()
                yield found or b":\n\n"
            if has_ended:
                return
            await asyncio.wait(changes, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        key.streams -= 1


class Operation(NamedTuple):
    summary: str
    handle: Callable[[Api, Request], Awaitable[Response]]
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None


OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    "/v1/calls": {"POST": Operation("Call a function", Api.post_call, (WAIT,), CallRequest)},
    "/v1/jobs": {"POST": Operation("Run a script while this server runs", Api.post_job, (WAIT,), JobRequest)},
    "/v1/calls/{id}": {
        "GET": Operation("State and result of a call or job", Api.get_call, (WAIT,)),
        "DELETE": Operation("Cancel a call or job, or drop its result", Api.delete_call, (WAIT,)),
    },
    "/v1/calls/{id}/events": {"GET": Operation("State and output as server-sent events", Api.get_call_events)},
    "/v1/schedules": {"GET": Operation("Schedules and their next times", Api.get_schedules)},
    OPENAPI: {"GET": Operation("This document", Api.get_openapi)},
}
"""Operations by path and method."""


def openapi() -> View:
    text, paths = schema_of(str), {path: View() for path in OPERATIONS}
    problem = object_schema(dict.fromkeys(("type", "message", "traceback"), text))
    call = dict.fromkeys(("id", "function", "state", "output"), text) | {"submitted_at": schema_of(float), "result": {}}
    call |= {"problem": problem, **dict.fromkeys(("exit_code", "cut_characters"), schema_of(int))}
    error = {JSON: {"schema": object_schema({"error": text})}}
    for path, method, each in ((path, *item) for path, found in OPERATIONS.items() for item in found.items()):
        parameters: list[View] = [{"name": "id", "in": "path", "required": True, "schema": text}] * ("{id}" in path)
        parameters += ({"name": one.name, "in": "query", "schema": dict(one.schema)} for one in each.parameters)
        kind = EVENT_STREAM if path.endswith("events") else JSON
        content = {kind: {"schema": object_schema(call) if each.parameters else {}}}
        answers = {"2XX": (each.summary, content), "default": ("The error, and how to fix it", error)}
        paths[path][method.lower()] = shown = {
            "summary": each.summary,
            "operationId": each.handle.__name__,
            "parameters": parameters,
            "responses": {status: {"description": of, "content": found} for status, (of, found) in answers.items()},
        }
        if each.body:
            schema = {"schema": each.body.model_json_schema()}
            shown["requestBody"] = {"required": True, "content": {JSON: schema, MSGPACK: schema}}
    schemes = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    info = {"title": "Scaler: calls and jobs", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": schemes, "security": [{"token": []}]}


STATUSES: tuple[tuple[type[Exception], int], ...] = (
    *((PermissionError, 403), (SessionRefusedError, 409), (RefusedError, 403), (LimitError, 429)),
    *((UnreachableError, 503), (ScalerError, 400), (TypeError, 400), (ClientDisconnect, 400), (Exception, 500)),
)
"""Statuses by exception type; the first match applies."""


async def _refusal(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        missing = f"there is no {request.url.path} here: {OPENAPI} lists all paths"
        return refusal(error.status_code, missing if error.detail == "Not Found" else error.detail, error.headers)
    status = next(status for kind, status in STATUSES if isinstance(error, kind))
    bug = f"{type(error).__name__} in this server: please report it with the lines of the server's log"
    return refusal(status, bug if status == 500 else str(error), {"Retry-After": "1"} if status in (429, 503) else None)


def run(config: HttpConfig) -> int:
    return run_component("http", config, lambda component: _serve(config, component))


async def _serve(config: HttpConfig, component: Component) -> int:
    own_token = "" if config.client_credentials else load_token(config.web_token_file, own=TOKEN_FILE)[0]
    own = Access.of(config.credentials, config.insecure_no_auth, Role.CLIENT, "http", config.compression)
    keys = [
        ClientKey(each.name, token_of(each), config, Access(each, compression=config.compression))
        for each in map(load_credential, config.client_credentials)
    ] or [ClientKey("this server", own_token, config, own)]
    runners = [ScheduleRunner(each, keys[0]) for each in schedules_of(config)]
    api, tls = Api(config, runners), tls_of(config)
    routes = [Route(path, partial(api.respond, each), methods=METHODS) for path, each in OPERATIONS.items()]
    handlers = dict.fromkeys([HTTPException, *(kind for kind, _ in STATUSES)], _refusal)
    app = Starlette(routes=routes, exception_handlers=handlers)
    guard = Guard(app, Tokens(keys), (config.web_host, *config.allowed_hosts), METHODS)
    if tls is None and is_open_to_others(config.web_host):
        _log.warning("%s is not encrypted: tokens can be read in transit; set web_certificate_file", config.web_host)
    with contextlib.closing(await _listen(config)) as listening:
        component.ready({"http": page_of(listening, is_encrypted=tls is not None)})
        background = [asyncio.create_task(each) for each in (_sweep(keys), *(each.follow() for each in runners))]
        if own_token and config.web_token_file is None:
            background.append(asyncio.create_task(keep_token(own_token, TOKEN_FILE)))
        try:
            await serve(guard, listening, component.stop, lambda: None, tls)
        finally:
            for task in background:
                task.cancel()
            for key in keys:
                await key.close()
    return 0


async def _listen(config: HttpConfig) -> socket.socket:
    """Return the listening socket. Waits if another program's connection happens to use the port. Raises UsageError."""
    for _ in range(BIND_SECONDS):
        listening = listen(config.web_host, config.web_port)
        if config.web_port in (0, listening.getsockname()[1]):
            return listening
        listening.close()
        await asyncio.sleep(1.0)
    raise UsageError(f"web_port {config.web_port} is in use: stop the program that uses it, or choose another port")


async def _sweep(keys: list[ClientKey]) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        for key in keys:
            try:
                await key.sweep()
            except Exception:  # noqa: BLE001 (other sessions must be closed)
                _log.exception("cannot close a session of the key %s", key.name)
