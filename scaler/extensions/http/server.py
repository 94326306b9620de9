"""The HTTP server and its process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scaler._version import __version__
from scaler.component import Component, run_component
from scaler.config.addresses import is_open_to_others
from scaler.errors import LimitError, RefusedError, ScalerError, UnreachableError, UsageError, nearest
from scaler.extensions.http.job import JSON, MSGPACK, encode
from scaler.extensions.http.keys import MAX_STREAMS, ClientKey, HttpCall, token_of
from scaler.extensions.http.schedules import ScheduleRunner
from scaler.extensions.http.settings import ID, SCHEDULES, TOKEN_FILE, HttpConfig, function_of, schedules_of
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

METHODS = "GET", "HEAD", "POST", "DELETE"
OPENAPI = "/v1/openapi.json"
OPTIONS = [
    *("priority", "retries", "losses", "timeout_seconds", "capabilities", "memory", "cpus", "gpu", "near"),
    *("resources", "limits", "tags", "expected_seconds", "preemptible"),
]
"""Task options of requests."""
WAIT = number("wait", "Maximum seconds to wait for the end.", "number", 0, 60, 0.0)
QUIET_SECONDS, POLL_SECONDS, SWEEP_SECONDS = 15.0, 0.25, 5.0
RETRY = {"Retry-After": "1"}
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

    async def post_call(self, request: Request, body: dict[str, Any]) -> Response:
        name = body["function"]
        if (found := function_of(self._config, name)) is None:
            raise PermissionError(f"the function {name!r} is not permitted: add it to `allowed` in [http]")
        for field in ("session", "key"):
            if not ID.fullmatch(body.get(field, "x")):
                raise UsageError(f"{field} must be up to 64 letters, digits, '-', and '_'")
        if body.get("session", "").startswith(SCHEDULES):
            raise UsageError(f"sessions with names like {SCHEDULES}* belong to schedules: choose another name")
        if "key" in body and "session" not in body:
            raise UsageError("a key needs a session: add the name of a durable session")
        media = MSGPACK if MSGPACK in request.headers.get("accept", "") else JSON
        return await _posted(request, await request.state.key.submit(*found, media, body))

    async def post_job(self, request: Request, body: dict[str, Any]) -> Response:
        if not self._config.allow_jobs:
            raise PermissionError("jobs are not permitted: set allow_jobs in [http]")
        name, arguments = body.get("name", "job.py"), body.get("args", [])
        if not ID.fullmatch(name.replace(".", "_")) or name.startswith("."):
            raise UsageError(f"name is {name!r}, but must be a file name such as job.py")
        if not all(isinstance(each, str) for each in arguments):
            raise UsageError("args must be a list of strings")
        script = body["script"].encode("utf-8", "replace")
        return await _posted(request, await request.state.key.run(name, script, arguments, body.get("options", {})))

    async def get_call(self, request: Request, _body: object) -> Response:
        return _answer(await _waited(await _found(request), request.state.wait))

    async def delete_call(self, request: Request, _body: object) -> Response:
        call = await _found(request)
        if call.ended.is_set():
            request.state.key.drop(call)
        call.future.cancel()
        return _answer(await _waited(call, request.state.wait or 1.0))

    async def get_call_events(self, request: Request, _body: object) -> Response:
        call, last = await _found(request), request.headers.get("last-event-id", "")
        if request.state.key.streams >= MAX_STREAMS:
            raise LimitError(f"the key {request.state.key.name} has {MAX_STREAMS} open event streams: close some")
        request.scope.get("state", {}).get(LIMIT, lambda _seconds: None)(None)
        events = _events(request.state.key, call, int(last) if re.fullmatch("[0-9]{1,18}", last) else 0)
        return StreamingResponse(events, headers={"X-Accel-Buffering": "no"}, media_type=EVENT_STREAM)

    async def get_schedules(self, _request: Request, _body: object) -> Response:
        return answer({"schedules": [each.view for each in self._runners]})

    async def get_openapi(self, _request: Request, _body: object) -> Response:
        return answer(openapi())


class Operation(NamedTuple):
    """fields: types of the fields of its request, the required one first."""

    method: str
    path: str
    summary: str
    handle: Callable[[Api, Request, dict[str, Any]], Awaitable[Response]]
    fields: Mapping[str, type] = {}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (WAIT,) if self.fields or self.path.endswith("{id}") else ()


OPERATIONS = (
    Operation(
        *("POST", "/v1/calls", "Call a function", Api.post_call),
        {"function": str, "args": list, "kwargs": dict, "session": str, "key": str, "options": dict},
    ),
    Operation(
        *("POST", "/v1/jobs", "Run a script", Api.post_job), {"script": str, "args": list, "name": str, "options": dict}
    ),
    *(
        Operation(method, f"/v1/{kind}s/{{id}}{rest}", summary.format(kind), handle)
        for kind in ("call", "job")
        for method, rest, summary, handle in (
            ("GET", "", "State and result of a {}", Api.get_call),
            ("DELETE", "", "Cancel a {}, or drop its result", Api.delete_call),
            ("GET", "/events", "State and output of a {} as server-sent events", Api.get_call_events),
        )
    ),
    Operation("GET", "/v1/schedules", "Schedules and their next times", Api.get_schedules),
    Operation("GET", OPENAPI, "This document", Api.get_openapi),
)


_TYPES: Mapping[type, str] = {str: "string", list: "array", dict: "object"}


def openapi() -> View:
    text = schema_of(str)
    problem = object_schema(dict.fromkeys(("type", "message", "traceback"), text))
    call = dict.fromkeys(("id", "function", "state", "output"), text) | {"submitted_at": schema_of(float), "result": {}}
    call |= {"problem": problem, "exit_code": schema_of(int), "cut_characters": schema_of(int)}
    call_schema = object_schema(call) | {"required": ["id", "function", "state", "submitted_at"]}
    paths: dict[str, View] = {}
    for each in OPERATIONS:
        name = each.handle.__name__.replace("call", "job" if "job" in each.path else "call")
        parameters: list[View] = []
        if "{id}" in each.path:
            parameters.append({"name": "id", "in": "path", "required": True, "schema": text})
        parameters += (
            {"name": one.name, "in": "query", "description": one.text, "schema": dict(one.schema)}
            for one in each.parameters
        )
        content = {EVENT_STREAM: {"schema": text}} if each.path.endswith("/events") else {JSON: {"schema": {}}}
        answers: View = {"200": {"description": each.summary, "content": content}}
        if each.parameters:
            answers = {str(status): {"description": each.summary, **_content(call_schema)} for status in (200, 202)}
        error = {"schema": object_schema({"error": text})}
        answers["default"] = {"description": "The error, and how to fix it", "content": {JSON: error}}
        found: View = {"summary": each.summary, "operationId": name, "parameters": parameters, "responses": answers}
        if each.fields:
            body: View = {key: {"type": _TYPES[kind]} for key, kind in each.fields.items()}
            body["options"]["properties"] = {option: {} for option in OPTIONS}
            schema = {"type": "object", "properties": body, "required": [next(iter(body))]}
            found["requestBody"] = {"required": True, **_content(schema)}
        paths.setdefault(each.path, {})[each.method.lower()] = found
    schemes = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    info = {"title": "Scaler: calls and jobs", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": schemes, "security": [{"token": []}]}


def _content(schema: View) -> View:
    return {"content": {media: {"schema": schema} for media in (JSON, MSGPACK)}}


def _endpoint(api: Api, operation: Operation, max_body_bytes: int) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            given = {name: request.query_params.getlist(name) for name in request.query_params}
            request.state.wait = values_of(operation.parameters, given).get("wait", 0.0)
            body = await _body(request, operation.fields, max_body_bytes) if operation.fields else {}
            return await operation.handle(api, request, body)
        except PermissionError as error:
            return refusal(403, str(error))
        except UnreachableError as error:
            return refusal(503, str(error), RETRY)
        except RefusedError as error:  # the key was revoked, or another program uses the session
            return refusal(409 if "session" in str(error) else 403, str(error))
        except LimitError as error:
            return refusal(429, str(error), RETRY)
        except (ScalerError, TypeError, ClientDisconnect) as error:
            return refusal(400, str(error))

    return respond


async def _body(request: Request, fields: Mapping[str, type], most: int) -> dict[str, Any]:
    """Read the request. Raises HTTPException, and UsageError."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            raise HTTPException(413, f"the request has more than {most} bytes (max_body_bytes)")
    body = _decoded(bytes(data), request.headers.get("content-type", ""))
    required = next(iter(fields))
    if not isinstance(body, dict) or required not in body:
        known = ", ".join(fields)
        raise UsageError(f"the request must be an object with the field {required}; known fields are {known}")
    for name, value in body.items():
        if name not in fields:
            raise UsageError(f"the field {name!r} is unknown{nearest(str(name), list(fields))}")
        if not isinstance(value, fields[name]):
            raise UsageError(f"{name} must be of type {fields[name].__name__}, not {type(value).__name__}")
    for option in body.get("options", {}):
        if option not in OPTIONS:
            raise UsageError(f"the option {option!r} is not available here{nearest(str(option), OPTIONS)}")
    if not all(isinstance(name, str) for name in body.get("kwargs", {})):
        raise UsageError("the names in kwargs must be strings")
    return body


def _decoded(data: bytes, media: str) -> object:
    media = MSGPACK if media.partition(";")[0].strip().lower() == MSGPACK else JSON
    if media == MSGPACK:
        require("msgpack", MSGPACK)
    try:
        if media == JSON:
            return json.loads(data, parse_constant=_refuse)
        import msgpack  # noqa: PLC0415 (optional)

        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"the request is not valid {media}: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


async def _found(request: Request) -> HttpCall:
    identifier = request.path_params["id"]
    call: HttpCall | None = await request.state.key.find(identifier)
    if call is None:
        raise HTTPException(404, f"this key has no call {identifier}: it is unknown, or its result was dropped")
    return call


async def _waited(call: HttpCall, seconds: float) -> HttpCall:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(call.ended.wait(), seconds)
    return call


async def _posted(request: Request, call: HttpCall) -> Response:
    return _answer(await _waited(call, request.state.wait), {"Location": f"{request.url.path}/{call.id}"})


def _answer(call: HttpCall, headers: Mapping[str, str] | None = None) -> Response:
    """Return the state of a call, with its result in the media type that the call was made with."""
    status = 200 if call.ended.is_set() else 202
    if call.value and call.value[0] == MSGPACK:
        packed = encode(call.document, MSGPACK)  # a map with a few keys, whose number is in the first byte
        data = bytes([packed[0] + 1]) + packed[1:] + encode("result", MSGPACK) + call.value[1]
        return Response(data, status, headers, MSGPACK)
    return Response(_json_of(call), status, headers, JSON)


def _json_of(call: HttpCall) -> bytes:
    media, value = call.value or ("", b"")
    return dump(call.document)[:-1] + (b',"result":%s}' % value if media == JSON else b"}")


async def _events(key: ClientKey, call: HttpCall, position: int) -> AsyncIterator[bytes]:
    """Yield a `state` event for each state, `output` events, and at last an `end` event. position: first character of
    the output."""
    loop, state = asyncio.get_running_loop(), ""
    sent_at = loop.time()
    key.streams += 1
    try:
        while True:
            changed, has_ended, found = call.changed, call.ended.is_set(), b""
            for begin, stream, text in call.output:
                if new := text[max(0, position - begin) :]:
                    position = begin + len(text)
                    found += b"id: %d\n%s" % (position, _event("output", dump({"stream": stream, "text": new})))
            if has_ended or call.state != state:
                state = call.state
                found += _event("end" if has_ended else "state", _json_of(call))
            if found or loop.time() - sent_at > QUIET_SECONDS:
                sent_at = loop.time()
                yield found or b":\n\n"
            if has_ended:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), POLL_SECONDS)
    finally:
        key.streams -= 1


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"there is no {request.url.path} here" if error.detail == "Not Found" else error.detail
    return refusal(error.status_code, text, error.headers)


def run(config: HttpConfig) -> int:
    return run_component("http", config, lambda component: _serve(config, component))


async def _serve(config: HttpConfig, component: Component) -> int:
    keys = [
        ClientKey(each.name, token_of(each), config, Access(each, compression=config.compression))
        for each in map(load_credential, config.client_credentials)
    ]
    own_token = "" if keys else load_token(config.web_token_file, own=TOKEN_FILE)[0]
    own = Access.of(config.credentials, config.insecure_no_auth, Role.CLIENT, "http", config.compression)
    keys = keys or [ClientKey("this server", own_token, config, own)]
    by_name = {"": keys[0], **{key.name: key for key in keys}}
    for schedule in schedules_of(config):
        if schedule.key not in by_name:
            raise UsageError(
                f"schedule {schedule.name}: unknown key {schedule.key!r}{nearest(schedule.key, [*by_name])}"
            )
    runners = [ScheduleRunner(each, by_name[each.key]) for each in schedules_of(config)]
    api, most, tls = Api(config, runners), config.max_body_bytes, tls_of(config)
    routes = [Route(each.path, _endpoint(api, each, most), methods=[each.method]) for each in OPERATIONS]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
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
    """Return the socket. Waits if a connection of another program happens to use the port. Raises UsageError."""
    for _ in range(BIND_SECONDS):
        listening = listen(config.web_host, config.web_port)
        if config.web_port in (0, listening.getsockname()[1]):
            return listening
        listening.close()
        await asyncio.sleep(1.0)
    raise UsageError(f"web_port {config.web_port} is in use: stop its program, or choose another port")


async def _sweep(keys: list[ClientKey]) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        for key in keys:
            await key.sweep()
