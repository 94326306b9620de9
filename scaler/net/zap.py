"""The authenticator: answers ZeroMQ, for all listeners of this process, whether a peer with this key may come in.

ZeroMQ asks over a socket of its own (ZAP, https://rfc.zeromq.org/spec/27/), before it delivers anything of the peer.
A thread answers, so that peers are not kept waiting while a server is busy.
"""

from __future__ import annotations

import threading

import zmq
from zmq.utils import z85

from scaler.net.keys import ServerKeys

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


class Authenticator:
    """One for each context, before its first listener with keys: without it, ZeroMQ accepts every key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._servers: dict[bytes, ServerKeys] = {}
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ADDRESS)
        threading.Thread(target=self._run, name="scaler-authenticator", daemon=True).start()

    def add(self, domain: bytes, keys: ServerKeys) -> None:
        """Answer for the listener of this domain."""
        self._servers[domain] = keys

    def remove(self, domain: bytes) -> None:
        """Refuse every key from now on."""
        self._servers.pop(domain, None)

    def _run(self) -> None:
        while True:
            try:
                request = self._socket.recv_multipart()
                self._socket.send_multipart([_VERSION, request[1], *self._answer(request)])
            except zmq.ContextTerminated:
                self._socket.close()
                return

    def _answer(self, request: list[bytes]) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the status code and text, the peer's public key for `User-Id`, and no further metadata."""
        version, _, domain, origin, _, mechanism, *credentials = request
        keys = self._servers.get(domain)
        if keys is None or version != _VERSION or mechanism != b"CURVE" or len(credentials) != 1:
            return b"400", b"", b"", b""
        public_key = z85.encode(credentials[0])
        code = keys.decide(public_key.decode(), origin.decode(errors="replace"))
        return code.encode(), b"", public_key if code == "200" else b"", b""
