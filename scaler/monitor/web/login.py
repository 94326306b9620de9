"""Admission to the page: the server's own user on this machine needs no token, all other readers do.

The kernel reports the user of a loopback connection. The token arrives in the header `Authorization: Bearer`, or in
the link `/?token=...` or the login form, which set a signed cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from scaler.monitor.web.views import refusal

LOGIN = "/login"
SAME_USER = "same_user"
"""Connection state key of a function that returns whether the other end is a process of this user."""
SESSION_SECONDS = 7 * 86_400
MAX_FORM_BYTES = 4096
MAX_WRONG_PER_SECOND = 5
"""Wrong tokens per second from one address. Further attempts in that second are refused unchecked."""
PUBLIC = ("/style.css", "/icon.svg")
"""Paths that the login page loads."""
BEARER = {"WWW-Authenticate": "Bearer"}

# From linux/netlink.h, linux/sock_diag.h, and linux/inet_diag.h: the only way to look up a single socket.
_NETLINK, _SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 16, 4, 20, 1
_NETLINK_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBxxI")
_ANY_INTERFACE_AND_COOKIE = b"\0" * 4 + b"\xff" * 8
NETLINK_SECONDS = 1.0

_WRONG = "This token is wrong or outdated. Copy the whole token again."
_TOO_MANY = "Too many wrong tokens from this address. Wait a second, then try again."
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{head}'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n<title>Log in · Scaler</title>\n'
    '<link rel="icon" href="icon.svg" type="image/svg+xml">\n<link rel="stylesheet" href="style.css">\n</head>\n'
)
# No redirect: after a link on another site, a browser would follow it without a cookie of SameSite=Strict.
_REFRESH = '<meta name="referrer" content="no-referrer">\n<meta http-equiv="refresh" content="0; url=./">\n'
_ENTER = _HEAD.format(head=_REFRESH) + '<body><a href="./">Scaler</a></body>'
_FORM = _HEAD.format(head="") + (
    '<body class="login">\n<main>\n<h1><img src="icon.svg" alt="" width="24" height="24"> Scaler</h1>\n{problem}'
    '<form method="post" action="login">\n<label for="token">Token</label>\n'
    '<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>\n'
    '<button type="submit">Log in</button>\n</form>\n'
    "<p>The web server shows tasks and their output only to those who have its token. The token is in a file of the "
    "user who started the server; the server's log names that file. When the server starts in a terminal, it prints "
    "a link that logs in.</p>\n</main>\n</body>\n</html>\n"
)


class Login:
    def __init__(self, token: str, on_wrong: Callable[[str], None], *, trusts_user: bool) -> None:
        """on_wrong: called with the address that sent a wrong token. trusts_user: this user needs no token."""
        self._token = token.encode()
        self._on_wrong = on_wrong
        self._trusts_user = trusts_user
        self._second = 0
        self._wrong: dict[str, int] = {}
        """Wrong tokens in the current second, by address."""

    async def answer(self, request: Request, *, is_local: bool) -> Response | None:
        """Return the answer to a login or an unauthorized request, or None. is_local: has a loopback name as `Host`."""
        path = request.url.path
        link = request.query_params.get("token") if path == "/" else None
        if request.method == "POST" or link is not None:
            return self._log_in(request, await _token_of_form(request) if link is None else link)
        if self._has_session(request):
            return None
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            problem = self._problem(request, bearer.strip())
            return refusal(*problem, headers=BEARER) if problem else None
        if path in PUBLIC or (self._trusts_user and is_local and request.scope.get("state", {}).get(SAME_USER, bool)()):
            return None
        if path == "/":
            return HTMLResponse(_FORM.format(problem=""), 401)
        return refusal(401, "log in at / first, or send the header 'Authorization: Bearer TOKEN'", BEARER)

    def _log_in(self, request: Request, token: str) -> Response:
        if problem := self._problem(request, token):
            status, text = problem
            shown = f'<p class="banner" role="alert">{html.escape(text)}</p>\n'
            return HTMLResponse(_FORM.format(problem=shown), status)
        answer = HTMLResponse(_ENTER)
        expires = str(int(time.time()) + SESSION_SECONDS)
        session, is_secure = f"{expires}-{self._signature(expires)}", request.url.scheme == "https"
        name = _cookie_of(request)
        answer.set_cookie(name, session, SESSION_SECONDS, httponly=True, samesite="strict", secure=is_secure)
        return answer

    def _has_session(self, request: Request) -> bool:
        expires, _, signature = request.cookies.get(_cookie_of(request), "").partition("-")
        return _is_same(signature, self._signature(expires)) and int(expires) > time.time()

    def _signature(self, text: str) -> str:
        return hmac.new(self._token, text.encode(), hashlib.sha256).hexdigest()

    def _problem(self, request: Request, token: str) -> tuple[int, str] | None:
        address, second = request.client.host if request.client else "", int(time.monotonic())
        if second != self._second:
            self._second, self._wrong = second, {}
        wrong = self._wrong.get(address, 0)
        if wrong >= MAX_WRONG_PER_SECOND:
            return 429, _TOO_MANY
        if _is_same(token, self._token.decode()):
            return None
        self._wrong[address] = wrong + 1
        self._on_wrong(address)
        return 401, _WRONG


def is_same_user(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Return whether the other end of a loopback connection is a process of this user, according to the kernel.

    peer, own: address and port of both ends. True on systems that cannot tell. False on Linux with a kernel that was
    built without INET_DIAG, so its users need the token.
    """
    try:
        netlink = socket.socket(_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
    except OSError:
        return True
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    addresses = (socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0") for address, _ in (peer, own))
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0xFFFFFFFF) + struct.pack(">HH", peer[1], own[1])
    question += b"".join(addresses) + _ANY_INTERFACE_AND_COOKIE
    with netlink:
        netlink.settimeout(NETLINK_SECONDS)
        try:
            netlink.send(_NETLINK_HEADER.pack(16 + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0) + question)
            answer = netlink.recv(4096)
        except OSError:
            return True
    is_row = _NETLINK_HEADER.unpack_from(answer)[1] == _SOCK_DIAG_BY_FAMILY
    return is_row and int.from_bytes(answer[80:84], sys.byteorder) == os.geteuid()


def _is_same(one: str, other: str) -> bool:
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
