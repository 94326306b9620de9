"""Damaged bytes in an unencrypted cluster delay its tasks, but change or lose none."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scaler import Client
from tests.chaos.proxy import Proxy
from tests.integration.settings_rig import command
from tests.short_forms import short_form

DAMAGES = 15
TEXT_BYTES = 2_000
"""Most damage hits arguments and results, whose messages remain readable."""
SECONDS = 20.0


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Proxy]]:
    """A scheduler with proxies: one for clients, and one for a manager and its worker."""
    home: Path = tmp_path_factory.mktemp("damage")
    with ExitStack() as after:
        ports = ["tcp://127.0.0.1:0", "--monitor-address", "tcp://127.0.0.1:0", "--insecure-no-auth"]
        scheduler = after.enter_context(command("scaler_scheduler", *ports, directory=home))
        port = port_of(scheduler.addresses()["scheduler"])
        both = Proxy(port, seed=1), Proxy(port, seed=2)
        for proxy in both:
            after.callback(proxy.close)
        address = f"tcp://127.0.0.1:{both[1].port}"
        after.enter_context(command("scaler_cluster", address, "-n", "2", "--insecure-no-auth", directory=home))
        yield both


@pytest.mark.parametrize("damaged", short_form(["client", "worker"]))
def test_every_task_ends_with_its_own_value_despite_damaged_bytes(proxies: tuple[Proxy, Proxy], damaged: str) -> None:
    at_client, at_worker = proxies
    proxy = at_client if damaged == "client" else at_worker
    with Client(f"tcp://127.0.0.1:{at_client.port}", insecure_no_auth=True) as client:
        assert client.submit(len, b"warm").result(SECONDS) == 4
        proxy.damage(DAMAGES)
        until = time.monotonic() + SECONDS
        while proxy.damages_left and time.monotonic() < until:
            texts = [os.urandom(TEXT_BYTES) for _ in range(10)]
            futures = [client.submit(bytes.swapcase, text) for text in texts]
            assert [future.result(SECONDS) for future in futures] == [text.swapcase() for text in texts]
        assert not proxy.damages_left, "all damage happened while tasks ran"
