"""Faults of the proxy, between a peer and a server in this process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.chaos.proxy import Proxy


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.settimeout(5)
        yield listening


@pytest.fixture
def proxy(server: socket.socket) -> Iterator[Proxy]:
    made = Proxy(server.getsockname()[1], seed=1)
    yield made
    made.close()


def connected(proxy: Proxy, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    peer = socket.create_connection(("127.0.0.1", proxy.port), 5)
    accepted, _ = server.accept()
    accepted.settimeout(5)
    peer.sendall(b"hello")
    assert accepted.recv(100) == b"hello"
    accepted.sendall(b"welcome")
    assert peer.recv(100) == b"welcome"
    return peer, accepted


def test_reset_reaches_both_sides(proxy: Proxy, server: socket.socket) -> None:
    peer, accepted = connected(proxy, server)
    proxy.reset()
    for side in (peer, accepted):
        with closing(side), pytest.raises(ConnectionResetError):
            side.recv(100)


def test_server_receives_nothing_from_a_half_open_connection(proxy: Proxy, server: socket.socket) -> None:
    peer, accepted = connected(proxy, server)
    proxy.half_open()
    with closing(peer), pytest.raises(ConnectionResetError):
        peer.recv(100)
    with closing(accepted):
        accepted.setblocking(False)
        with pytest.raises(BlockingIOError):
            accepted.recv(100)


def test_black_hole_holds_bytes_until_healed(proxy: Proxy, server: socket.socket) -> None:
    peer, accepted = connected(proxy, server)
    with closing(peer), closing(accepted):
        proxy.black_hole()
        peer.sendall(b"late")
        accepted.settimeout(0.1)
        with pytest.raises(TimeoutError):
            accepted.recv(100)
        proxy.heal()
        accepted.settimeout(5)
        assert accepted.recv(100) == b"late"


def test_last_bytes_of_a_reordered_connection_follow_the_next_one(proxy: Proxy, server: socket.socket) -> None:
    peer, accepted = connected(proxy, server)
    proxy.reorder()
    peer.sendall(b"late")
    with closing(peer), pytest.raises(ConnectionResetError):
        peer.recv(100)
    with closing(accepted):
        next_peer, next_accepted = connected(proxy, server)
        with closing(next_peer), closing(next_accepted):
            assert accepted.recv(100) == b"late"


def test_damage_flips_one_bit_in_the_requested_number_of_reads(proxy: Proxy, server: socket.socket) -> None:
    peer, accepted = connected(proxy, server)
    with closing(peer), closing(accepted):
        proxy.damage(1)
        peer.sendall(bytes(8))
        assert int.from_bytes(accepted.recv(100)).bit_count() == 1
        peer.sendall(bytes(8))
        assert accepted.recv(100) == bytes(8)
