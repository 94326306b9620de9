"""The audit log of a real scheduler: in its file, in the answer of `scaler audit`, and as new records come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.errors import RefusedError, ScalerError
from tests.integration.settings_rig import within
from tests.integration.test_admission import Cluster


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


def test_what_a_client_did_is_in_the_file_and_in_the_answer_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.jsonl"
    with SchedulerClusterCombo(n_workers=1, audit_path=str(path)) as combo:
        address = combo.get_monitor_address()
        with Client(address=combo.get_address()) as client:
            futures = [client.submit(double, number) for number in range(50)]
            assert [future.result() for future in futures] == list(range(0, 100, 2))
            client.clear()
            with pytest.raises(ScalerError):
                client.shutdown()
        lines = scaler(capsys, address, "--since", "1h", "--json")
        assert [json.loads(line)["kind"] for line in scaler(capsys, address, "--kind", "cleared", "--json")] == [
            "cleared"
        ]
        assert scaler(capsys, address, "--key", "nobody") == []
        assert any(
            line.endswith(f"cleared      local client {host()}: {host()} with 0 unfinished tasks")
            for line in scaler(capsys, address)
        )
    answered, written = ([json.loads(line) for line in each] for each in (lines, path.read_text().splitlines()))
    assert written[: len(answered)] == answered, "the file has them in the same order, and those that followed"
    assert of(written, "client", host()) == [
        ("connected", 0, ""),
        ("submitted", 50, "double"),
        ("cleared", 0, f"{host()} with 0 unfinished tasks"),
        ("refused", 0, "to shut the cluster down: it is protected"),
        ("disconnected", 0, "disconnected"),
    ]
    assert [each["kind"] for each in (written[0], written[-1])] == ["started", "ended"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(written) < 30


def host() -> str:
    return f"{os.uname().nodename}|{os.getpid()}"


def test_refusals_at_the_door_and_changes_of_keys_are_recorded_by_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path)
    try:
        screen, bob = cluster.credential("screen", "monitor"), cluster.credential("bob")
        address = f"tcp://127.0.0.2:{int(cluster.far.rpartition(':')[2]) + 2}"

        def records() -> list[tuple[object, ...]]:
            lines = scaler(capsys, address, "--json", "--credentials", screen)
            found = [json.loads(line) for line in lines]
            return [(each["kind"], each["key"], each["times"], each["text"]) for each in found]

        with cluster.connect(bob) as client:
            assert client.submit(double, 2).result(30) == 4
        cluster.keys.revoke("bob")
        until(records, lambda kind, key, _, text: kind == "key revoked" and key == "bob" and " was revoked " in text)
        for credentials in (bob, screen, None):
            with pytest.raises(RefusedError):
                cluster.connect(credentials)
        until(records, lambda kind, key, times, text: kind == "refused" and key == "bob" and "revoked" in text)
        until(records, lambda kind, key, _, text: kind == "refused" and key == "screen" and "not client" in text)
        until(records, lambda kind, key, _, text: kind == "refused" and key == "" and "or it has none" in text)
        known = records()
        assert [each[:4] for each in known if each[:2] == ("submitted", "bob")] == [("submitted", "bob", 1, "double")]
        assert ("connected", "bob", 0, "") in known
        assert ("key added", "screen", 0, "for the role monitor") in known
    finally:
        cluster.combo.shutdown()


def until(records: Callable[[], list[tuple[object, ...]]], fits: Callable[..., bool]) -> None:
    assert within(15, lambda: any(fits(*each) for each in records())), [
        each for each in records() if each[0] not in ("connected", "disconnected")
    ]


def test_records_are_followed_until_ctrl_c() -> None:
    with SchedulerClusterCombo(n_workers=1) as combo:
        command = [sys.executable, "-m", "scaler.cli", "scaler", "audit", combo.get_monitor_address(), "--follow"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            assert " started " in process.stdout.readline()
            with Client(address=combo.get_address()):
                pass
            left = next(line for line in process.stdout if " disconnected " in line and host() in line)
            assert left.endswith(": disconnected\n")
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        finally:
            process.kill()
            process.communicate()


def test_a_time_without_a_unit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("scaler", ["audit", "tcp://127.0.0.1:1", "--since", "5"]) == 2
    assert capsys.readouterr().err == "scaler audit: --since 5: give a number with a unit, such as 90s, 15m, 1h or 2d\n"
