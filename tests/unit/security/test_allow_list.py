"""The allow-list: what it notices, and what broken files do."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from scaler.security.allow_list import AllowList
from scaler.security.directory import KeysDirectory
from scaler.security.keys import Entry


@pytest.fixture
def keys(tmp_path: Path) -> KeysDirectory:
    return KeysDirectory.create(tmp_path / "keys", "lab")


def test_keys_are_known_by_their_public_key_only(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    listed = AllowList(keys)
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
    for unknown in (alice.keys.secret, "x" * 40, "", "alice", keys.object_storage.public):
        assert listed.entries().get(unknown) is None


def test_the_scheduler_is_known_to_the_storage(keys: KeysDirectory) -> None:
    assert AllowList(keys).entries().get(keys.scheduler.public) == Entry("scheduler", "scheduler", "")


def test_a_key_is_noticed_when_it_is_added_and_when_it_is_revoked(keys: KeysDirectory) -> None:
    listed = AllowList(keys)
    assert not listed.refresh()
    alice = keys.add("alice", "client")
    assert listed.entries().get(alice.keys.public) is None
    assert listed.refresh()
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
    assert not listed.refresh()
    keys.revoke("alice")
    assert listed.refresh()
    found = listed.entries().get(alice.keys.public)
    assert found is not None
    assert found.problem.startswith(f"was revoked on {datetime.now(UTC):%Y-%m-}")
    assert not listed.refresh()


def test_a_key_added_again_under_a_name_is_admitted_and_the_old_one_is_not(keys: KeysDirectory) -> None:
    old = keys.add("alice", "client")
    keys.revoke("alice")
    new = keys.add("alice", "client")
    listed = AllowList(keys)
    assert listed.entries().get(new.keys.public) == Entry("alice", "client", "")
    assert (listed.entries().get(old.keys.public) or Entry("", "")).problem.startswith("was revoked on")


def test_a_key_whose_file_is_removed_is_unknown(keys: KeysDirectory) -> None:
    alice, bob = keys.add("alice", "client"), keys.add("bob", "client")
    listed = AllowList(keys)
    (keys.peers / "alice.toml").unlink()
    assert listed.refresh()
    assert listed.entries().get(alice.keys.public) is None
    assert listed.entries().get(bob.keys.public) is not None


def test_a_key_ends_at_its_time_without_a_change_of_its_file(keys: KeysDirectory) -> None:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    alice = keys.add("alice", "client", now[0] + timedelta(seconds=5))
    listed = AllowList(keys, lambda: now[0])
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
    now[0] += timedelta(seconds=5)
    assert listed.refresh()
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "expired on 2030-01-01 00:00 UTC")


def test_units_are_admitted_as_workers_and_end_with_their_manager_only(keys: KeysDirectory) -> None:
    one, other = keys.add("one", "manager"), keys.add("other", "manager")
    listed = AllowList(keys)
    assert listed.entries().get(one.for_units().keys.public) == Entry("one.units", "worker", "")
    keys.revoke("one")
    listed.refresh()
    assert (listed.entries().get(one.for_units().keys.public) or Entry("", "")).problem.startswith("was revoked on")
    assert listed.entries().get(other.for_units().keys.public) == Entry("other.units", "worker", "")


def broken_texts(text: str) -> list[str]:
    return [
        "",
        text[:40],
        text + "\nrevokd = 2030-01-01T00:00:00Z",
        text + "\nrevoked = true",
        text + "\nexpires = 2030-01-01T00:00:00",
        text.replace('"client"', '"scheduler"'),
        text.replace('"alice"', '"bob"'),
        "\x00\xff" * 1000,
        "x" * 100_000,
        text + f"\nnote = {'[' * 20_000}",
        text + f"\nexpires = {'1' * 5_000}",
        text + "\nexpires = 0001-01-01T00:00:00+14:00",
        text + "\nrevoked = 9999-12-31T23:59:59-14:00",
        "\ud800" + text,
    ]


def test_a_broken_file_admits_nothing_takes_no_other_key_down_and_is_logged_once(
    keys: KeysDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob = keys.add("alice", "client"), keys.add("bob", "worker")
    file = keys.peers / "alice.toml"
    text = file.read_text()
    listed = AllowList(keys)
    for broken in broken_texts(text):
        file.write_bytes(broken.encode(errors="surrogatepass"))
        caplog.clear()
        assert listed.refresh(), broken[:200]
        assert not listed.refresh()
        assert listed.entries().get(alice.keys.public) is None, broken[:200]
        assert listed.entries().get(bob.keys.public) == Entry("bob", "worker", "")
        assert list(listed.problems) == ["alice.toml"]
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        file.write_text(text)
        assert listed.refresh()
        assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
        assert listed.problems == {}


def test_a_file_that_others_can_change_admits_nothing(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    listed = AllowList(keys)
    (keys.peers / "alice.toml").chmod(0o620)
    assert listed.refresh()
    assert listed.entries().get(alice.keys.public) is None


@pytest.mark.parametrize(
    "name",
    ["alice.admin.toml", "alice", "alice.toml~", "local.toml", ".hidden.toml", "x" * 200, "\udcff.toml", "a\nb"],
    ids=ascii,
)
def test_a_file_with_another_name_than_its_key_admits_nothing(name: str, keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    (keys.peers / "alice.toml").rename(keys.peers / name)
    listed = AllowList(keys)
    assert listed.entries().get(alice.keys.public) is None
    assert list(listed.problems) == [name]


def test_of_two_files_with_one_key_a_revoked_one_wins(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    copy = keys.peers / "zoe.toml"
    copy.write_text((keys.peers / "alice.toml").read_text().replace("alice", "zoe"))
    copy.chmod(0o600)
    listed = AllowList(keys)
    assert listed.entries().get(alice.keys.public) == Entry("alice", "client", "")
    assert list(listed.problems) == ["zoe.toml"]
    keys.revoke("zoe")
    listed.refresh()
    assert (listed.entries().get(alice.keys.public) or Entry("", "")).problem.startswith("was revoked on")


def test_a_file_with_a_servers_key_admits_nothing(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    file = keys.peers / "alice.toml"
    for pair in (keys.scheduler, keys.object_storage):
        file.write_text(file.read_text().replace(alice.keys.public, pair.public))
        listed = AllowList(keys)
        assert listed.entries().get(keys.scheduler.public) == Entry("scheduler", "scheduler", "")
        assert listed.entries().get(keys.object_storage.public) is None
        file.write_text(file.read_text().replace(pair.public, alice.keys.public))


def test_a_directory_that_cannot_be_trusted_for_a_while_changes_no_key(
    keys: KeysDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    alice = keys.add("alice", "client")
    listed = AllowList(keys)
    keys.peers.chmod(0o770)
    bob = keys.add("bob", "client")
    assert not listed.refresh()
    assert not listed.refresh()
    assert listed.entries().get(alice.keys.public) is not None
    assert listed.entries().get(bob.keys.public) is None
    assert len(caplog.records) == 1
    keys.peers.chmod(0o700)
    assert listed.refresh()
    assert listed.entries().get(bob.keys.public) is not None


def test_removing_the_directory_revokes_all(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "client")
    listed = AllowList(keys)
    (keys.peers / "alice.toml").unlink()
    keys.peers.rmdir()
    assert listed.refresh()
    assert listed.entries().get(alice.keys.public) is None
    assert list(listed.problems) == ["peers"]


def test_files_that_are_being_written_are_left_alone(keys: KeysDirectory) -> None:
    (keys.peers / ".new-0123").write_text("half")
    listed = AllowList(keys)
    assert listed.problems == {}
    assert keys.entries() == []
