"""A server that admits every peer warns at startup and every minute, and one with keys never does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from scaler.config.servers import SecurityConfig
from scaler.net.server_access import WARN_SECONDS, ServerAccess
from scaler.protocol.messages import Server
from scaler.security.directory import KeysDirectory

ADDRESS = "tcp://0.0.0.0:8516"
WARNING = (
    f"insecure_no_auth: any process that can reach {ADDRESS} can run code on the workers and read all objects; "
    "nothing is encrypted"
)


def warnings_in(config: SecurityConfig, server: Server, seconds: float, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return a server's log of its first seconds, by a clock that jumps from timer to timer."""
    timers: list[tuple[float, Callable[[], None]]] = []
    now = 0.0
    caplog.set_level(logging.WARNING, "scaler.net.server_access")
    access = ServerAccess(config, server, [ADDRESS])
    access.warn([ADDRESS], lambda delay, callback: timers.append((now + delay, callback)))
    while timers and timers[0][0] <= seconds:
        now, callback = timers.pop(0)
        callback()
    access.close()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("server", [Server.SCHEDULER, Server.OBJECT_STORAGE])
def test_server_without_authentication_warns_at_startup_and_every_minute(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert WARN_SECONDS == 60.0
    config = SecurityConfig(insecure_no_auth=True)
    assert warnings_in(config, server, 59.9, caplog) == [WARNING]
    caplog.clear()
    assert warnings_in(config, server, 600.0, caplog) == [WARNING] * 11


def test_server_with_keys_does_not_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    KeysDirectory.create(tmp_path / "keys", "test")
    config = SecurityConfig(credentials=str(tmp_path / "keys"))
    assert warnings_in(config, Server.SCHEDULER, 600.0, caplog) == []
