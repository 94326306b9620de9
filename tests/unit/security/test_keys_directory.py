"""The keys directory: its content and changes, and rejected directories."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from scaler.errors import ConfigError, UsageError
from scaler.security.directory import KeysDirectory
from scaler.security.documents import PeerEntry


@pytest.fixture
def keys(tmp_path: Path) -> KeysDirectory:
    return KeysDirectory.create(tmp_path / "keys", "lab")


def entries(keys: KeysDirectory) -> list[PeerEntry]:
    return [each for each in keys.listed() if isinstance(each, PeerEntry)]


def test_directory_opens_only_with_its_original_keys(keys: KeysDirectory) -> None:
    again = KeysDirectory.open(keys.path)
    assert (again.cluster, again.scheduler, again.object_storage) == ("lab", keys.scheduler, keys.object_storage)
    assert keys.scheduler != keys.object_storage


def test_contents_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys = KeysDirectory.create(tmp_path / "keys", "lab")
        keys.add("alice", "client")
        keys.revoke("alice")
        keys.credential("page", "monitor")
    finally:
        os.umask(before)
    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in (keys.path, *keys.path.rglob("*"))}
    assert len(modes) == 5
    assert {each: mode for each, mode in modes.items() if mode != (0o700 if each.is_dir() else 0o600)} == {}


def test_new_key_includes_server_keys_and_an_entry_without_secrets(keys: KeysDirectory) -> None:
    alice = keys.add("alice", "manager", datetime(2030, 1, 1, tzinfo=UTC))
    assert (alice.scheduler_key, alice.object_storage_key) == (keys.scheduler.public, keys.object_storage.public)
    assert alice.cluster == "lab"
    units = alice.for_units().keys
    [entry] = entries(keys)
    assert (entry.name, entry.role, entry.public, entry.units) == ("alice", "manager", alice.keys.public, units.public)
    assert entry.expires == alice.expires == datetime(2030, 1, 1, tzinfo=UTC)
    text = keys.peers.read_text()
    assert alice.keys.public in text
    assert alice.keys.secret not in text
    assert units.secret not in text


def test_taken_name_is_refused_until_revoked_or_expired(keys: KeysDirectory) -> None:
    first = keys.add("alice", "client")
    with pytest.raises(UsageError, match=r"a key named 'alice' already.*scaler keys revoke alice"):
        keys.add("alice", "client")
    keys.revoke("alice")
    second = keys.add("alice", "monitor", datetime.now(UTC) - timedelta(seconds=1))
    third = keys.add("alice", "client")
    assert [(each.public, bool(each.problem(datetime.now(UTC)))) for each in entries(keys)] == [
        (first.keys.public, True),
        (second.keys.public, True),
        (third.keys.public, False),
    ]


@pytest.mark.parametrize(
    "name",
    ["", "-a", "a.b", "a b", "a/b", "..", "a\n", "é", "a" * 61, "local", "anyone", "scheduler", "object_storage"],
)
def test_names_have_a_simple_grammar_and_some_are_reserved(name: str, keys: KeysDirectory) -> None:
    with pytest.raises(UsageError, match="must be a name"):
        keys.add(name, "client")
    with pytest.raises(UsageError, match="must be a name"):
        keys.credential(name, "client")
    with pytest.raises(UsageError, match="no key named"):
        keys.revoke(name)
    assert entries(keys) == []


def test_concurrent_commands_lose_no_key_and_duplicate_no_name(keys: KeysDirectory) -> None:
    def add(name: str) -> str | None:
        try:
            return KeysDirectory.open(keys.path).add(name, "worker").keys.public
        except UsageError:
            return None

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(add, [f"w{number % 10}" for number in range(40)]))
    found = entries(keys)
    assert sorted(each for each in made if each) == sorted(each.public or "" for each in found)
    assert sorted(each.name for each in found) == [f"w{number}" for number in range(10)]


def test_revoking_an_unknown_or_revoked_name_reports_it(keys: KeysDirectory) -> None:
    with pytest.raises(UsageError, match="there is no key named 'bob'"):
        keys.revoke("bob")
    keys.add("bob", "client")
    keys.revoke("bob")
    with pytest.raises(UsageError, match=r"'bob' was revoked on .* already"):
        keys.revoke("bob")


def test_component_gets_the_same_credential_at_every_start(keys: KeysDirectory) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: keys.credential("native", "manager"), range(16)))
    assert len(set(found)) == 1
    assert [each.public for each in entries(keys)] == [found[0].keys.public]
    with pytest.raises(ConfigError, match="has the role manager, not worker"):
        keys.credential("native", "worker")
    keys.add("alice", "client")
    with pytest.raises(UsageError, match="a key named 'alice' already"):
        keys.credential("alice", "client")


def test_rejects_other_directories_and_names_the_command_to_create_one(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        tmp_path.chmod(0o700)
        with pytest.raises(ConfigError, match=rf"is not a keys directory: `scaler keys init {path}` creates one"):
            KeysDirectory.open(path)


def test_advice_never_changes_modes_outside_keys_directories(tmp_path: Path) -> None:
    """Root may own it: `chmod 700 /tmp` would break other users' programs."""
    tmp_path.chmod(0o755)
    file = tmp_path / "file"
    file.touch(0o644)
    for path, text in (
        (tmp_path, "is not a keys directory: `scaler keys init"),
        (file, "is a file, not a keys directory"),
    ):
        with pytest.raises(ConfigError, match=text) as raised:
            KeysDirectory.open(path)
        assert "chmod" not in str(raised.value)
    with pytest.raises(UsageError, match="exists and is not empty"):
        KeysDirectory.create(tmp_path, "lab")


@pytest.mark.parametrize("what", ["", "peers.jsonl", "servers.toml"])
def test_rejects_an_open_directory_and_suggests_chmod(what: str, keys: KeysDirectory) -> None:
    path = keys.path / what
    path.chmod(0o750 if path.is_dir() else 0o640)
    with pytest.raises(ConfigError) as caught:
        KeysDirectory.open(keys.path)
    assert os.system(str(caught.value).partition("): ")[2]) == 0
    KeysDirectory.open(keys.path)
