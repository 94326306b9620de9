"""The listening socket of the web page, bound by the web server or by the parent process that prints the link."""

from __future__ import annotations

import errno
import os
import socket
import ssl

from scaler.config.addresses import MAX_PORT
from scaler.config.monitors import WebUiConfig
from scaler.errors import ConfigError, UsageError
from scaler.net.address import cannot_bind
from scaler.paths import local_path
from scaler.processes import LISTENING_FD_VARIABLE
from scaler.security.private_files import read_private

BACKLOG = 256
MAX_PORTS = 100
"""Ports tried, starting at the wanted one, before any free port is used."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on this port or the next free one. Raises UsageError with the reason."""
    host = host.strip("[]")
    settings = f"web_host {host}, web_port {port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise UsageError(f"{settings}: {host!r} is no name or address of this machine ({error.strerror})") from None
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


def tls_of(config: WebUiConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the page, or None without a certificate. Raises ConfigError for an unsuitable file."""
    if config.web_certificate_file is None or config.web_key_file is None:
        return None
    certificate, key = local_path(config.web_certificate_file), local_path(config.web_key_file)
    read_private(key)  # rejects a file that other users can read
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:  # also raised for errors of OpenSSL
        raise ConfigError(
            f"web_certificate_file {certificate}, web_key_file {key}: {error.strerror or error}"
        ) from None
    return context


def page_of(listening: socket.socket, *, is_encrypted: bool = False) -> str:
    scheme = "https" if is_encrypted else "http"
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (these are replaced, not bound)
    return f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"
