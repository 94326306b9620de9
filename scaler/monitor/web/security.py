"""Checks every request before any route, and adds security headers to every answer.

Web pages can make browsers send requests to this machine, and read the answers through DNS rebinding. Therefore `Host`
must be a known name or address of this server, and `Origin` must not be another page's.

The server's own user on this machine needs no token, because the kernel reports the user. All other readers need it.
The token arrives in the header `Authorization: Bearer`, or in the link `/?token=...` or the form, which set a signed
cookie."""

from __future__ import annotations

import hashlib
import hmac
import html
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scaler.config.addresses import parsed_host
from scaler.monitor.web.routes import refusal

LOGIN = "/login"
SAME_USER = "same_user"
"""Connection state key of a function that returns whether the other end is a process of this user."""
SESSION_SECONDS = 7 * 86_400
MAX_FORM_BYTES = 4096
PUBLIC = ("/style.css", "/icon.svg")
"""Paths that the login page loads."""
BEARER = {"WWW-Authenticate": "Bearer"}

_WRONG = "This token is wrong or outdated. Copy the whole token again."
# No redirect: after a link on another site, a browser would follow it without a cookie of SameSite=Strict.
_ENTER = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Log in · Scaler</title>\n'
    '<meta name="referrer" content="no-referrer">\n<meta http-equiv="refresh" content="0; url=./">\n'
    '<link rel="icon" href="icon.svg" type="image/svg+xml">\n</head>\n'
    '<body><a href="./">Scaler</a></body>\n</html>\n'
)
_FORM = Path(__file__).with_name("login.html").read_text("utf-8")


class Admission(Protocol):
    async def answer(self, request: Request, *, is_local: bool) -> Response | None:
        """Return the answer to an unauthorized request, or None. is_local: has a loopback name as `Host`."""


class Login(Admission):
    def __init__(self, token: str, on_wrong: Callable[[str], None], *, trusts_user: bool) -> None:
        """on_wrong: called with the address that sent a wrong token. trusts_user: this user needs no token."""
        self._token = token.encode()
        self._on_wrong = on_wrong
        self._trusts_user = trusts_user

    async def answer(self, request: Request, *, is_local: bool) -> Response | None:
        """Return the response to a rejected request or a login; None: the request may proceed."""
        path = request.url.path
        link = request.query_params.get("token") if path == "/" else None
        if request.method == "POST" or link is not None:
            return self._log_in(request, await _token_of_form(request) if link is None else link)
        expires, _, signature = request.cookies.get(_cookie_of(request), "").partition("-")
        if is_same(signature, self._signature(expires)) and int(expires) > time.time():
            return None
        if (bearer := bearer_of(request)) is not None:
            return None if self._is_right(request, bearer) else refusal(401, _WRONG, BEARER)
        if path in PUBLIC or (self._trusts_user and is_local and request.scope.get("state", {}).get(SAME_USER, bool)()):
            return None
        if path == "/":
            return HTMLResponse(_FORM.replace("{problem}", ""), 401)
        return refusal(401, "log in at / first, or send the header 'Authorization: Bearer TOKEN'", BEARER)

    def _log_in(self, request: Request, token: str) -> Response:
        if not self._is_right(request, token):
            shown = f'<p class="banner" role="alert">{html.escape(_WRONG)}</p>'
            return HTMLResponse(_FORM.replace("{problem}", shown), 401)
        answer = HTMLResponse(_ENTER)
        expires = str(int(time.time()) + SESSION_SECONDS)
        session, is_secure = f"{expires}-{self._signature(expires)}", request.url.scheme == "https"
        name = _cookie_of(request)
        answer.set_cookie(name, session, SESSION_SECONDS, httponly=True, samesite="strict", secure=is_secure)
        return answer

    def _signature(self, text: str) -> str:
        return hmac.new(self._token, text.encode(), hashlib.sha256).hexdigest()

    def _is_right(self, request: Request, token: str) -> bool:
        if is_same(token, self._token.decode()):
            return True
        self._on_wrong(request.client.host if request.client else "")
        return False


def is_same_user(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Return whether the other end of a loopback connection is a process of this user, according to the kernel. peer,
    own: address and port of both ends. True on systems that cannot report the user."""
    wanted = [_as_in_table(address.partition("%")[0].removeprefix("::ffff:"), port) for address, port in (peer, own)]
    try:
        with Path("/proc/net/tcp6" if len(wanted[0]) > len("7F000001:0000") else "/proc/net/tcp").open() as lines:
            return any(int(fields[7]) == os.geteuid() for line in lines if (fields := line.split())[1:3] == wanted)
    except OSError:
        return True


def _as_in_table(address: str, port: int) -> str:
    data = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    words = (int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"


def bearer_of(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _cookie_of(request: Request) -> str:
    # Browsers send cookies to every port of a host.
    server = request.scope.get("server")
    return f"scaler-{server[1] if server else 0}"


async def _token_of_form(request: Request) -> str:
    form = b""
    async for part in request.stream():
        form += part
        if len(form) > MAX_FORM_BYTES:
            return ""
    return parse_qs(form.decode("latin-1")).get("token", [""])[0].strip()


METHODS = "GET", "HEAD"
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
    def __init__(
        self, app: ASGIApp, login: Admission | None, names: Iterable[str] = (), methods: Sequence[str] = METHODS
    ) -> None:
        """login: None admits every request. names: names of this server, besides its addresses and the machine's
        name. methods: permitted methods."""
        self._methods = methods
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
                # Browsers may cache files but must revalidate them, because names stay the same when contents change.
                headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")
            await send(message)

        answer: ASGIApp | None = None
        if reason := self._objection(scope):
            answer = refusal(*reason, headers={"Allow": ", ".join(self._methods)})
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
        if scope["method"] not in self._methods and not is_login:
            return 405, f"{scope['method']} is not allowed: use {', '.join(self._methods)}"
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
        # Unlike a name, an address cannot be rebound by DNS, so the address of this connection belongs to this server.
        return is_loopback or name in self._names or (server is not None and name == parsed_host(server[0])[0])


def _host_of(header: str) -> str:
    found = _HOST.fullmatch(header)
    return "" if found is None else found["host"]
