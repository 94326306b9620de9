"""The audit log of a real scheduler: in its file, and in the answer of `scaler audit`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.errors import RefusedError, ScalerError
from tests.integration.test_admission import Cluster
from tests.waiting import within


def double(number: int) -> int:
    return 2 * number


def scaler(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert run_command("scaler", ["audit", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def of(records: Sequence[dict[str, object]], role: str, host: str) -> list[tuple[object, ...]]:
    return [
        (each["kind"], each["times"], each["text"]) for each in records if (each["role"], each["host"]) == (role, host)
    ]


def test_client_actions_are_in_the_file_and_the_commands_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "logs of today" / "audit.jsonl"
    with SchedulerClusterCombo(n_workers=1, audit_path="~/logs of today/audit.jsonl") as combo:
        address = combo.get_monitor_address()
        with Client(address=combo.get_address()) as client:
            futures = [client.submit(double, number) for number in range(50)]
            assert [future.result() for future in futures] == list(range(0, 100, 2))
            client.clear()
            with pytest.raises(ScalerError):
                client.shutdown()
        lines = scaler(capsys, address, "--json")
        assert any(
            line.endswith(f"cleared      local client {host()}: {host()} with 0 unfinished tasks")
            for line in scaler(capsys, address)
        )
    answered, written = ([json.loads(line) for line in each] for each in (lines, path.read_text().splitlines()))
    assert written[: len(answered)] == answered, "the file has the same records in the same order, and later ones"
    assert of(written, "client", host()) == [
        ("connected", 0, ""),
        ("submitted", 50, "double"),
        ("cleared", 0, f"{host()} with 0 unfinished tasks"),
        ("refused", 0, "to shut down the cluster, which is protected"),
        ("disconnected", 0, "disconnected"),
    ]
    assert [each["kind"] for each in (written[0], written[-1])] == ["started", "ended"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(written) < 30


def host() -> str:
    return f"{os.uname().nodename}|{os.getpid()}"


def test_refused_connections_and_key_changes_are_recorded_by_key(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    cluster = Cluster(tmp_path, audit_path=str(path))
    try:
        screen, bob = cluster.credential("screen", "monitor"), cluster.credential("bob")
        with cluster.connect(bob) as client:
            assert client.submit(double, 2).result(30) == 4
        cluster.keys.revoke("bob")
        # Until the server has noticed it, new sessions begin and end.
        assert within(10, lambda: "rejected key bob" in refusal(cluster, bob))
        assert refusal(cluster, screen)
        assert refusal(cluster, None)
    finally:
        cluster.combo.shutdown()  # records up to then are also in the file
    records = [json.loads(line) for line in path.read_text().splitlines()]
    texts = {(each["kind"], each["key"]): each["text"] for each in records}
    assert " was revoked " in texts["key revoked", "bob"]
    assert "revoked" in texts["refused", "bob"]
    assert "not client" in texts["refused", "screen"]
    assert "it has no key for this cluster" in texts["refused", ""]
    assert texts["key added", "screen"] == "for the role monitor"
    assert texts["connected", "bob"] == ""
    assert [(each["times"], each["text"]) for each in records if each["kind"] == "submitted"] == [(1, "double")]


def refusal(cluster: Cluster, credentials: str | None) -> str:
    try:
        cluster.connect(credentials).disconnect()
    except RefusedError as error:
        return str(error)
    return ""
