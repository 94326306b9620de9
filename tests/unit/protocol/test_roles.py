"""Which roles may send which messages to whom."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.monitor.messages import ReadCluster
from scaler.object_storage.messages import GetObject, PutObject
from scaler.protocol import messages as m
from scaler.protocol.messages import MAY_ANSWER, MAY_SEND, Server

SCHEDULER, STORAGE = Server.SCHEDULER, Server.OBJECT_STORAGE


@pytest.mark.parametrize(
    ("server", "role", "kind"),
    [
        (SCHEDULER, m.Role.CLIENT, m.Done),
        (SCHEDULER, m.Role.CLIENT, m.Relay),
        (SCHEDULER, m.Role.MONITOR, ReadCluster),
        (SCHEDULER, m.Role.ADMIN, m.Done),
        (SCHEDULER, m.Role.MONITOR, m.Cancel),
        (SCHEDULER, m.Role.WORKER, m.Submit),
        (SCHEDULER, m.Role.WORKER, m.ShutdownCluster),
        (SCHEDULER, m.Role.MANAGER, m.Done),
        (SCHEDULER, m.Role.MONITOR, m.ShutdownCluster),
        (SCHEDULER, m.Role.SCHEDULER, m.Submit),
        (SCHEDULER, m.Role.CLIENT, PutObject),
        (STORAGE, m.Role.CLIENT, m.ForgetOwner),
        (STORAGE, m.Role.CLIENT, m.ForgetObjects),
        (STORAGE, m.Role.WORKER, m.ForgetObjects),
        (STORAGE, m.Role.MONITOR, GetObject),
        (STORAGE, m.Role.MANAGER, m.Hello),
    ],
)
def test_role_may_send_only_its_own_messages(server: Server, role: m.Role, kind: type[Any]) -> None:
    assert kind not in MAY_SEND[server][role]


def test_every_message_has_a_role_that_may_send_it() -> None:
    tables = [*MAY_SEND.values(), *MAY_ANSWER.values()]
    assert {kind for table in tables for kinds in table.values() for kind in kinds} == set(m.NUMBERS)


def test_every_role_is_in_every_table() -> None:
    for tables in (MAY_SEND, MAY_ANSWER):
        assert set(tables) == set(Server)
        for table in tables.values():
            assert set(table) == set(m.Role)


def test_server_may_refuse_any_peer_and_addresses_orders_correctly() -> None:
    for server in Server:
        assert all(m.Refused in MAY_ANSWER[server][role] for role in m.Role)
    assert m.Run in MAY_ANSWER[SCHEDULER][m.Role.WORKER]
    assert m.Run not in MAY_ANSWER[SCHEDULER][m.Role.CLIENT]
    assert m.Run not in MAY_ANSWER[STORAGE][m.Role.WORKER]
    assert m.Finished in MAY_ANSWER[SCHEDULER][m.Role.CLIENT]
    assert m.Finished not in MAY_ANSWER[SCHEDULER][m.Role.MONITOR]
