"""Checks every request before any route answers it, and adds security headers to every answer.

Any web page may have a user's browser send requests to a server on this machine. It cannot read the answers, unless
its own name resolves to this machine (DNS rebinding); then the request has that name as its `Host`. So only known
names and addresses of this server are accepted, and no other page's `Origin`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://(?P<host>[^/?#@\s]+)")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        """names: of this server in URLs, besides its addresses and this machine's name."""
        self._app = app
        self._names = {_parsed(name)[0] for name in (*names, "localhost", socket.gethostname()) if name}

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

        reason = self._objection(scope)
        app = self._app if reason is None else refusal(*reason, headers={"Allow": ", ".join(METHODS)})
        await app(scope, receive, send_with_headers)

    def _objection(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and text of the error in a request; None for none."""
        if scope["method"] not in METHODS:
            return 405, f"{scope['method']} is not allowed: everything here is read-only, ask with GET"
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if not self._is_ours(host, scope.get("server")):
            return 403, (
                f"{host!r} is no name of this server: open it by its address, "
                "or add the name to allowed_hosts of its settings"
            )
        for origin in headers.getlist("origin"):
            found = _ORIGIN.fullmatch(origin)
            if found is None or found["host"].lower() != host.lower():
                return 403, f"pages of {origin!r} may not read this server"
        return None

    def _is_ours(self, host: str, server: tuple[str, int | None] | None) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name, is_loopback = _parsed(found["host"])
        # An address cannot be made to lead elsewhere, so the one of this connection is this server's.
        return is_loopback or name in self._names or (server is not None and name == _parsed(server[0])[0])


def is_open_to_others(host: str) -> bool:
    """Return whether other machines can connect to a server that listens on this host."""
    name, is_loopback = _parsed(host)
    return not is_loopback and name != "localhost"


def _parsed(host: str) -> tuple[str, bool]:
    """Return a host for comparisons, and whether it is a loopback address.

    It has no brackets and no dot at the end, and addresses have their short form.
    """
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name, False
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address), address.is_loopback
