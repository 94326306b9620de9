"""What addresses mean to this host."""

from __future__ import annotations

import pytest

from scaler.errors import UsageError
from scaler.net.address import advertised, beside, split_tcp


def test_a_tcp_address_has_a_host_and_a_port() -> None:
    assert split_tcp("tcp://127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_tcp("tcp://[::1]:0") == ("[::1]", 0)
    assert split_tcp("tcp://*:5") == ("*", 5)
    assert split_tcp("ipc:///tmp/x") is None


@pytest.mark.parametrize("text", ["", "http://x:1", "tcp://x", "tcp://x:70000", "ipc://", "ipc://" + "x" * 108])
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        split_tcp(text)


@pytest.mark.parametrize("bound", ["tcp://127.0.0.1:80", "tcp://host.example:80", "ipc:///tmp/x"])
def test_an_address_of_one_host_is_advertised_as_it_is(bound: str) -> None:
    assert advertised(bound) == bound


@pytest.mark.parametrize("bound", ["tcp://0.0.0.0:80", "tcp://*:80", "tcp://[::]:80"])
def test_a_wildcard_is_advertised_as_an_address_that_others_can_reach(bound: str) -> None:
    found = split_tcp(advertised(bound))
    assert found is not None
    host, port = found
    assert port == 80
    assert host not in {"0.0.0.0", "*", "[::]"}


def test_beside_an_address_stands_another_port_or_path() -> None:
    assert beside("tcp://127.0.0.1:80", 2, ".monitor") == "tcp://127.0.0.1:82"
    assert beside("tcp://127.0.0.1:0", 2, ".monitor") == "tcp://127.0.0.1:0"
    assert beside("ipc:///tmp/x", 2, ".monitor") == "ipc:///tmp/x.monitor"


def test_there_is_no_address_beside_the_last_port_or_the_longest_path() -> None:
    with pytest.raises(UsageError, match="65536"):
        beside("tcp://127.0.0.1:65535", 1, "")
    with pytest.raises(UsageError, match="107"):
        beside("ipc://" + "x" * 107, 1, ".monitor")
