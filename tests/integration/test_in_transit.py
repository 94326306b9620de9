"""TCP traffic between client, scheduler, object storage, and worker: recorded in transit and searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.integration.recorded_rig import recorded_cluster

SOURCE = "MARKED-SOURCE-5d1f"
ARGUMENT = "MARKED-ARGUMENT-77aa"
RESULT = "MARKED-RESULT-e0c3"
FAILURE = "MARKED-FAILURE-19b4"
LARGE = 2_000_000
"""Bytes of an argument or result that travels through the object storage."""

PROGRAM = f'''
def mark(argument):
    note = "{SOURCE}"
    if argument is None:
        raise ValueError("{FAILURE}"[::-1])
    return argument.replace("{ARGUMENT}"[::-1][::-1], "{RESULT[::-1]}"[::-1])
'''
"""The source does not contain the marks of result and failure literally."""


def security(home: Path, is_secure: bool) -> dict[str, list[str]]:
    """Return the flags of each kind of process."""
    if not is_secure:
        return {key: ["--insecure-no-auth"] for key in ("server", "manager", "client")}
    keys = KeysDirectory.create(home / "keys", "test")
    for role in ("client", "manager"):
        write_private(home / role, keys.add(f"the-{role}", role).to_text())
    return {
        "server": ["--credentials", str(keys.path)],
        **{role: ["--credentials", str(home / role)] for role in ("client", "manager")},
    }


def marked() -> Any:
    """Return a function that is pickled by value, like a program's."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(PROGRAM, namespace)
    return namespace["mark"]


def found_in_transit(home: Path, is_secure: bool) -> tuple[set[str], set[str]]:
    """Run marked tasks, small and large, with a proxy for each server; return the marks that each has recorded."""
    flags = security(home, is_secure)
    server = flags["server"]
    with recorded_cluster(home, scheduler=server, storage=server, workers=flags["manager"]) as cluster:
        credentials = flags["client"][1] if is_secure else None
        with Client(cluster.address, credentials=credentials, insecure_no_auth=not is_secure) as client:
            mark = marked()
            assert client.submit(mark, ARGUMENT).result(30) == RESULT
            assert client.submit(mark, ARGUMENT + "-" * LARGE).result(30) == RESULT + "-" * LARGE
            with pytest.raises(ValueError, match=FAILURE[::-1]):
                client.submit(mark, None).result(30)
    assert min(proxy.connections for proxy in cluster) >= 2
    assert len(cluster.storage.recorded) > 4 * LARGE, "large values pass the proxy four times"
    marks = (SOURCE, ARGUMENT, RESULT, FAILURE[::-1])
    first, second = ({mark for mark in marks if mark.encode() in proxy.recorded} for proxy in cluster)
    return first, second


def test_with_keys_recordings_omit_source_arguments_results_and_failures(tmp_path: Path) -> None:
    assert found_in_transit(tmp_path, is_secure=True) == (set(), set())


def test_without_keys_recordings_include_source_arguments_results_and_failures(tmp_path: Path) -> None:
    at_scheduler, at_storage = found_in_transit(tmp_path, is_secure=False)
    assert at_scheduler == {SOURCE, ARGUMENT, RESULT, FAILURE[::-1]}
    assert at_storage >= {ARGUMENT, RESULT}
