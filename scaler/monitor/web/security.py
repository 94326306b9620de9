"""Checks every request before any route, and adds security headers to every answer.

Web pages can make browsers send requests to this machine, and read the answers through DNS rebinding. Therefore only
known names and addresses of this server are accepted as `Host`, and no other page's `Origin`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scaler.config.addresses import parsed_host
from scaler.monitor.web.login import LOGIN, Login
from scaler.monitor.web.views import refusal

METHODS = ("GET", "HEAD")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without this, browsers send the login form with `Origin: null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

LIMIT = "limit"
"""Connection state key of a function that sets the time limit of the request in seconds. None: no limit."""
REQUEST_SECONDS = 300.0
"""Time limit of an authorized request, for downloads to slow machines."""

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://(?P<host>[^/?#@\s]+)")


class Guard:
    def __init__(self, app: ASGIApp, login: Login | None, names: Iterable[str] = ()) -> None:
        """login: None admits every request. names: of this server, besides its addresses and the machine's name."""
        self._app = app
        self._login = login
        self._names = {parsed_host(name)[0] for name in (*names, "localhost", socket.gethostname()) if name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer: ASGIApp | None = None
        if reason := self._objection(scope):
            answer = refusal(*reason, headers={"Allow": ", ".join(METHODS)})
        elif self._login is not None:
            request = Request(scope, receive)
            name, is_loopback = parsed_host(_host_of(request.headers["host"]))
            try:
                answer = await self._login.answer(request, is_local=is_loopback or name == "localhost")
            except ClientDisconnect:
                return
        if answer is None:
            scope.get("state", {}).get(LIMIT, lambda _seconds: None)(REQUEST_SECONDS)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _objection(self, scope: Scope) -> tuple[int, str] | None:
        is_login = scope["method"] == "POST" and scope["path"] == LOGIN and self._login is not None
        if scope["method"] not in METHODS and not is_login:
            return 405, f"{scope['method']} is not allowed: this server is read-only; use GET"
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if not self._is_ours(host, scope.get("server")):
            return 403, (f"{host!r} is not a name of this server: use its address, or add the name to allowed_hosts")
        for origin in headers.getlist("origin"):
            found = _ORIGIN.fullmatch(origin)
            if found is None or found["host"].lower() != host.lower():
                return 403, f"pages from {origin!r} may not access this server"
        return None

    def _is_ours(self, host: str, server: tuple[str, int | None] | None) -> bool:
        name, is_loopback = parsed_host(_host_of(host))
        # An address cannot be redirected, so the address of this connection belongs to this server.
        return is_loopback or name in self._names or (server is not None and name == parsed_host(server[0])[0])


def _host_of(header: str) -> str:
    found = _HOST.fullmatch(header)
    return "" if found is None else found["host"]
