"""The allow-list: detected changes, and the effect of damaged files."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from scaler.security.directory import AllowList, KeysDirectory
from scaler.security.keys import Entry


@pytest.fixture
def keys(tmp_path: Path) -> KeysDirectory:
    return KeysDirectory.create(tmp_path / "keys", "lab")


def test_keys_are_identified_only_by_their_public_key(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    listed = AllowList(keys)
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
    for unknown in (alice.keys.secret, "x" * 40, "", "alice", keys.object_storage.public):
        assert listed.entries().get(unknown) is None


def line_of(keys: KeysDirectory, name: str) -> str:
    [line] = [line for line in keys.peers.read_text().splitlines() if f'"{name}"' in line]
    return line


def change(keys: KeysDirectory, line: str, other: str) -> None:
    """Replace one line of the list in place, like an editor."""
    keys.peers.write_bytes(keys.peers.read_bytes().replace(line.encode(), other.encode(errors="surrogatepass")))


def test_notices_added_and_revoked_keys(keys: KeysDirectory) -> None:
    listed = AllowList(keys)
    alice = keys.add("alice", "client")
    assert listed.entries().get(alice.keys.public) is None
    listed.refresh()
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
    keys.revoke("alice")
    listed.refresh()
    found = listed.entries().get(alice.keys.public)
    assert found is not None
    assert found.problem.startswith(f"was revoked on {datetime.now(UTC):%Y-%m-}")


def test_key_expires_on_time_without_a_file_change(keys: KeysDirectory) -> None:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    alice = keys.add("alice", "client", now[0] + timedelta(seconds=5))
    listed = AllowList(keys, lambda: now[0])
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
    now[0] += timedelta(seconds=5)
    listed.refresh()
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "expired on 2030-01-01 00:00 UTC")


def test_units_are_admitted_as_workers_and_end_only_with_their_manager(keys: KeysDirectory) -> None:
    one, other = keys.add("one", "manager"), keys.add("other", "manager")
    listed = AllowList(keys)
    assert listed.entries().get(one.for_units().keys.public) == Entry("one.units", "worker", "")
    keys.revoke("one")
    listed.refresh()
    assert (listed.entries().get(one.for_units().keys.public) or Entry("", "")).problem.startswith("was revoked on")
    assert listed.entries().get(other.for_units().keys.public) == Entry("other.units", "worker", "")


def broken_lines(line: str) -> list[str]:
    return [
        line[:40],
        line.replace("}", ', "revokd": "2030-01-01T00:00:00Z"}'),
        line.replace("}", ', "revoked": true}'),
        line.replace("}", ', "expires": "2030-01-01T00:00:00"}'),
        line.replace("}", ', "expires": 1893456000}'),
        line.replace('"client"', '"scheduler"'),
        line.replace('"alice"', '"alice.units"'),
        line.replace('"alice"', '"local"'),
        line.replace('"alice"', '["alice"]'),
        line.replace('"client"', '"manager"'),
        f"[{line}]",
        "7",
        "\x00\xff" * 1000,
        "x" * 100_000,
        line.replace("}", f', "note": {"[" * 20_000}'),
        line.replace("}", f', "expires": {"1" * 5_000}}}'),
        line.replace("}", ', "expires": "0001-01-01T00:00:00+14:00"}'),
        line.replace("}", ', "revoked": "9999-12-31T23:59:59-14:00"}'),
        "\ud800" + line,
    ]


def test_malformed_line_is_logged_once_and_affects_no_other_key(
    keys: KeysDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob = keys.add("alice", "client"), keys.add("bob", "worker")
    line, text = line_of(keys, "alice"), keys.peers.read_bytes()
    listed = AllowList(keys)
    for broken in broken_lines(line):
        change(keys, line, broken)
        caplog.clear()
        for _ in range(2):
            listed.refresh()
        assert listed.entries().get(alice.keys.public) is None, broken[:200]
        assert listed.entries().get(bob.keys.public) == Entry("bob", "worker", "")
        [problem] = listed.problems
        assert "peers.jsonl, line 1" in problem
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        before = keys.listed()
        keys.add("carol", "client")
        assert keys.listed()[: len(before)] == before, "a command does not change broken lines"
        keys.peers.write_bytes(text)
        listed.refresh()
        assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
        assert not listed.problems


def test_writable_list_changes_no_key_until_private_again(
    keys: KeysDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    alice = keys.add("alice", "client")
    listed = AllowList(keys)
    with keys.peers.open("a") as file:
        file.write(line_of(keys, "alice").replace("alice", "bob").replace(alice.keys.public, "b" * 40))
    keys.peers.chmod(0o620)
    for _ in range(2):
        listed.refresh()
    assert listed.entries().get(alice.keys.public) is not None
    assert listed.entries().get("b" * 40) is None
    assert len(caplog.records) == 1
    keys.peers.chmod(0o600)
    listed.refresh()
    assert listed.entries().get("b" * 40) is not None
    assert AllowList(keys).problems == set()


def test_revoked_line_wins_over_another_with_the_same_key(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    with keys.peers.open("a") as file:
        file.write(line_of(keys, "alice").replace("alice", "zoe") + "\n")
    listed = AllowList(keys)
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
    assert listed.problems == {"ignored key zoe: it is a server's key, or a duplicate"}
    keys.revoke("zoe")
    listed.refresh()
    assert (listed.entries().get(alice.keys.public) or Entry("", "")).problem.startswith("was revoked on")


def test_line_with_a_server_key_admits_no_peer(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    for pair in (keys.scheduler, keys.object_storage):
        change(keys, alice.keys.public, pair.public)
        listed = AllowList(keys)
        assert listed.entries().get(keys.scheduler.public) == Entry("scheduler", "scheduler", "")
        assert listed.entries().get(keys.object_storage.public) is None
        change(keys, pair.public, alice.keys.public)


def test_removing_the_list_revokes_all_keys(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    listed = AllowList(keys)
    keys.peers.unlink()
    listed.refresh()
    assert listed.entries().get(alice.keys.public) is None
    assert listed.problems == {f"{keys.peers} does not exist: no peer is admitted"}
