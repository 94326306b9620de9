"""Ports reserved for servers that start later."""

from __future__ import annotations

import socket

import pytest

from scaler.cluster.supervisor import LOOPBACK, ReservedPorts


def test_reserved_ports_are_exclusive_but_usable_by_a_server() -> None:
    ports = ReservedPorts(1)
    try:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, ports.first))
        with socket.create_server((LOOPBACK, ports.first)) as server:
            assert server.getsockname()[1] == ports.first
    finally:
        ports.release()
