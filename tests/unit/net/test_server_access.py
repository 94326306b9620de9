"""A server that admits every peer warns at startup and every minute, and one with keys never does."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from scaler.config.servers import SecurityConfig
from scaler.net import server_access
from scaler.net.server_access import ServerAccess
from scaler.protocol.messages import RefusalReason, Refused, Server
from scaler.security.directory import KeysDirectory

WARNING = "insecure_no_auth: any process that can reach {} can run code on the workers and read all objects; "


def warnings_in(config: SecurityConfig, server: Server, caplog: pytest.LogCaptureFixture) -> tuple[list[str], str]:
    """Return the warnings of a server with two ports, which end with it, and its addresses."""
    caplog.set_level(logging.WARNING, "scaler.net.server_access")

    async def main() -> str:
        access = ServerAccess(config, server, [])
        refused = Refused(RefusalReason.ROLE, "")
        first, second = (access.listen("tcp://127.0.0.1:0", lambda *_: refused, lambda _: None) for _ in "ab")
        await iterations()
        access.close()
        count = len(caplog.records)
        await iterations()
        assert len(caplog.records) == count
        first.close()
        second.close()
        return ", ".join((*first.addresses, *second.addresses))

    addresses = asyncio.run(main())
    return [record.getMessage() for record in caplog.records], addresses


async def iterations() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("server", [Server.SCHEDULER, Server.OBJECT_STORAGE])
def test_server_without_authentication_warns_at_startup_and_every_minute(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_access.WARN_SECONDS == 60.0
    found, addresses = warnings_in(SecurityConfig(insecure_no_auth=True), server, caplog)
    assert len(found) == 1
    assert found[0].startswith(WARNING.format(addresses))
    caplog.clear()
    monkeypatch.setattr(server_access, "WARN_SECONDS", 0.0)
    found, _ = warnings_in(SecurityConfig(insecure_no_auth=True), server, caplog)
    assert len(found) > 1


def test_server_with_keys_does_not_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_access, "WARN_SECONDS", 0.0)
    KeysDirectory.create(tmp_path / "keys", "test")
    for config in (SecurityConfig(credentials=str(tmp_path / "keys")), SecurityConfig()):
        assert warnings_in(config, Server.SCHEDULER, caplog)[0] == []
