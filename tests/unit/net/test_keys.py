"""Unknown keys make a server reread its allow-list only if keys may have been added."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.errors import ConfigError
from scaler.net.keys import REFUSED, TRY_AGAIN, ServerKeys
from scaler.security.directory import AllowList, KeysDirectory
from scaler.security.documents import BrokenEntry, PeerEntry
from scaler.security.keys import new_key_pair


class CountingDirectory(KeysDirectory):
    reads = 0

    def listed(self) -> list[PeerEntry | BrokenEntry]:
        self.reads += 1
        return super().listed()


@pytest.fixture
def keys(tmp_path: Path) -> CountingDirectory:
    return CountingDirectory.create(tmp_path / "keys", "lab")


def test_unidentified_peers_do_not_trigger_rereads_of_the_allow_list(keys: CountingDirectory) -> None:
    server = ServerKeys(keys.scheduler, AllowList(keys))
    before = keys.reads
    assert {server.decide(new_key_pair().public, "here") for _ in range(100)} == {REFUSED}
    assert keys.reads == before


def test_key_changes_are_not_reported_while_the_list_is_unreadable(
    keys: CountingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_keys: CountingDirectory) -> list[PeerEntry | BrokenEntry]:
        raise ConfigError("Too many open files")

    known = keys.add("alice", "client").keys.public
    server = ServerKeys(keys.scheduler, AllowList(keys))
    added = keys.add("bob", "client").keys.public
    with monkeypatch.context() as broken:
        broken.setattr(CountingDirectory, "listed", fail)
        assert [server.decide(key, "here") for key in (added, known)] == [TRY_AGAIN, "200"]
    assert server.decide(added, "here") == "200"  # although the file is unchanged
    assert server.decide(new_key_pair().public, "here") == REFUSED


def test_added_key_is_admitted_immediately(keys: CountingDirectory) -> None:
    server = ServerKeys(keys.scheduler, AllowList(keys))
    for name in ("alice", "bob", "carol"):  # perhaps within one step of the file system's clock
        assert server.decide(keys.add(name, "client").keys.public, "here") == "200"
