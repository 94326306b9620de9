"""The meaning of addresses on this host."""

from __future__ import annotations

import socket

import pytest

from scaler.config.addresses import addresses_of, beside, check_address, check_server_addresses, reached, split_tcp
from scaler.errors import UsageError
from scaler.net.address import addresses_here, own_address, own_host


def test_tcp_address_has_a_host_and_a_port() -> None:
    assert split_tcp("tcp://127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_tcp("tcp://[::1]:0") == ("[::1]", 0)
    assert split_tcp("tcp://*:5") == ("*", 5)
    assert split_tcp("ipc:///tmp/x") is None


@pytest.mark.parametrize("text", ["", "http://x:1", "tcp://x", "tcp://x:70000", "ipc://", "ipc://" + "x" * 108])
def test_rejects_malformed_addresses(text: str) -> None:
    with pytest.raises(UsageError):
        check_address(text)


@pytest.mark.parametrize("bound", ["tcp://0.0.0.0:80", "tcp://*:80", "tcp://[::]:80"])
def test_wildcard_is_shown_as_an_address_of_this_host(bound: str) -> None:
    assert own_address(bound) not in {"tcp://0.0.0.0:80", "tcp://*:80", "tcp://[::]:80"}
    assert {"tcp://127.0.0.1:80", f"tcp://{socket.gethostname()}:80"} <= set(addresses_here(bound))


@pytest.mark.parametrize(
    ("named", "used", "found"),
    [
        ("tcp://0.0.0.0:8517", "tcp://10.0.0.1:8516", "tcp://10.0.0.1:8517"),
        ("tcp://0.0.0.0:8517", "tcp://head:9000", "tcp://head:8517"),
        ("tcp://[::]:8517", "tcp://[fd00::1]:8516", "tcp://[fd00::1]:8517"),
        ("tcp://*:8517", "ipc:///tmp/scheduler", "tcp://127.0.0.1:8517"),
        ("tcp://storage:8517", "tcp://head:8516", "tcp://storage:8517"),
        ("ipc:///tmp/storage", "tcp://head:8516", "ipc:///tmp/storage"),
        ("", "tcp://head:8516", ""),
    ],
)
def test_server_on_all_addresses_is_reached_at_the_schedulers_host(named: str, used: str, found: str) -> None:
    assert reached(named, used) == found


def test_last_port_and_longest_path_have_no_adjacent_address() -> None:
    with pytest.raises(UsageError, match="65536"):
        beside("tcp://127.0.0.1:65535", 1, "")
    with pytest.raises(UsageError, match="107"):
        beside("ipc://" + "x" * 107, 1, ".monitor")


def test_several_addresses_are_separated_by_commas_and_checked_one_by_one() -> None:
    assert addresses_of("tcp://a:1, tcp://[::1]:2,ipc:///x,y") == ["tcp://a:1", "tcp://[::1]:2", "ipc:///x,y"]
    assert check_server_addresses("tcp://a:1 , tcp://b:2") == "tcp://a:1,tcp://b:2"
    for text in ("tcp://a:1,tcp://b", "tcp://a:1,tcp://*:2", "tcp://a:1,", "tcp://a:1,b:2"):
        with pytest.raises(UsageError):
            check_server_addresses(text)
    with pytest.raises(UsageError):
        check_address("tcp://a:1,tcp://b:2")
    assert own_host("tcp://127.0.0.1:1,tcp://b:2") == "127.0.0.1"
