"""The web page's socket, bound by the web server or by the parent process that prints the link, and its login token."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import socket
import ssl
import sys
from pathlib import Path

from scaler.config.addresses import MAX_PORT, is_open_to_others
from scaler.config.monitors import WebServerConfig, WebUiConfig
from scaler.errors import ConfigError, UsageError
from scaler.output import OutputRelay
from scaler.paths import local_path
from scaler.ports import cannot_bind
from scaler.processes import LISTENING_FD_VARIABLE
from scaler.registry import private_path
from scaler.security.private_files import read_private, write_private

BACKLOG = 256
MAX_PORTS = 100
"""Number of ports to try, starting at the requested port, before using any free port."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on this port or the next free one. Raises UsageError with the reason."""
    host = host.strip("[]")
    settings = f"web_host {host}, web_port {port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise UsageError(f"{settings}: {host!r} is not a name or address of this machine ({error.strerror})") from None
    for candidate in (*range(port, min(port + MAX_PORTS, MAX_PORT + 1) if port else 0), 0):
        try:
            both = host == "::" and socket.has_dualstack_ipv6()
            place = address[0], candidate
            listening = socket.create_server(place, family=family, backlog=BACKLOG, dualstack_ipv6=both)
            break
        except OSError as error:
            if candidate and error.errno == errno.EADDRINUSE:
                continue
            shown = f"[{host}]" if ":" in host else host
            raise UsageError(f"{settings}: {cannot_bind(f'tcp://{shown}:{port}', error.errno or 0)}") from None
    # Connections inherit this option. A delta is one small write and must not wait for the previous one.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def inherited() -> socket.socket | None:
    descriptor = os.environ.pop(LISTENING_FD_VARIABLE, None)
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)
    return socket.socket(fileno=int(descriptor))


def tls_of(config: WebServerConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the page, or None without a certificate. Raises ConfigError for an unsuitable file."""
    if config.web_certificate_file is None or config.web_key_file is None:
        return None
    chain, key = local_path(config.web_certificate_file), local_path(config.web_key_file)
    read_private(key)  # rejects a file that other users can read
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(chain, key, password="")
    except OSError as error:  # also raised for errors of OpenSSL
        raise ConfigError(f"web_certificate_file {chain}, web_key_file {key}: {error.strerror or error}") from None
    return context


def page_of(listening: socket.socket, *, is_encrypted: bool = False) -> str:
    scheme = "https" if is_encrypted else "http"
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (these are replaced, not bound)
    return f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"


TOKEN_FILE = "web-token"  # noqa: S105 (a file's name)
MIN_TOKEN_CHARACTERS = 22
KEEP_SECONDS = 1.0
"""Interval at which a web server checks for its token file."""


def load_token(path: str | None, token: str = "", own: str = TOKEN_FILE) -> tuple[str, Path]:
    """Return the token and its file: the given file, or this user's own file, which is created if missing. token: for
    a new file; default: a random one. own: name of this user's file. Raises UsageError if the file cannot be read or
    created, if other users can read it, or if the token is too short."""
    file = private_path(own) if path is None else local_path(path)
    if path is None and not file.exists():
        token = token or secrets.token_urlsafe()
        try:
            with contextlib.suppress(FileExistsError):  # created by another server
                write_private(file, f"{token}\n")
                return token, file  # a cleaner may have removed the file by now
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror}; set web_token_file") from None
    token = read_private(file).strip()
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable():
        raise ConfigError(f"the token in {file} must have at least {MIN_TOKEN_CHARACTERS} letters and digits")
    return token, file


async def keep_token(token: str, own: str = TOKEN_FILE) -> None:
    """Recreate this user's own token file whenever a cleaner removes it. Runs until cancelled."""
    while True:
        await asyncio.sleep(KEEP_SECONDS)
        with contextlib.suppress(UsageError, OSError):  # the next call retries
            await asyncio.to_thread(load_token, None, token, own)


def link_to_show(config: WebUiConfig, page: str) -> str:
    """Return a link to the page, with the token only on a terminal, because other users may read a log."""
    is_terminal = OutputRelay.leads_to_terminal or sys.stdout.isatty()
    if config.insecure_no_auth or not (is_open_to_others(config.web_host) and is_terminal):
        return page
    try:
        return f"{page}/?token={load_token(config.web_token_file)[0]}"
    except UsageError:  # the web server reports the error
        return page
