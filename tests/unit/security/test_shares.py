"""Shares of keys and groups: flags, files, and the servers' view."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.errors import UsageError
from scaler.security.commands import keys as run_keys
from scaler.security.directory import AllowList, KeysDirectory
from scaler.security.documents import PeerEntry
from scaler.security.keys import NO_SHARE, Share


@pytest.fixture
def keys(tmp_path: Path) -> KeysDirectory:
    return KeysDirectory.create(tmp_path / "keys", "tests")


def command(keys: KeysDirectory, *arguments: str) -> int:
    verb, *others = arguments
    return run_keys("scaler keys", [verb, *others, "--directory", str(keys.path)], {})


def shares(keys: KeysDirectory) -> dict[str, Share]:
    return {entry.name: entry.share for entry in AllowList(keys).entries().values() if entry.role != "scheduler"}


def test_share_given_with_a_new_key_is_what_servers_read(keys: KeysDirectory) -> None:
    command(keys, "add", "a", "--role", "client", "--weight", "3", "--max-slots", "50", "--group", "desk", "-o", "-")
    command(keys, "add", "b", "--role", "client", "-o", "-")
    assert shares(keys) == {"a": Share(3.0, 50, "desk"), "b": NO_SHARE}


def test_share_command_changes_only_what_it_names(keys: KeysDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    keys.add("a", "client", share=Share(3.0, 50, "desk"))
    command(keys, "share", "a", "--max-slots", "7")
    assert shares(keys)["a"] == Share(3.0, 7, "desk")
    command(keys, "share", "a", "--max-slots", "0", "--group", "")
    assert shares(keys)["a"] == Share(3.0)
    assert capsys.readouterr().out.endswith("a: weight 3\n")


def test_group_has_a_share_once_a_key_names_it(keys: KeysDirectory) -> None:
    keys.add("a", "client", share=Share(group="desk"))
    command(keys, "share", "desk", "--weight", "2.5")
    assert shares(keys)["desk"] == Share(2.5)
    with pytest.raises(UsageError, match="no key named 'sales', and no key is in a group with this name"):
        command(keys, "share", "sales", "--weight", "2")
    with pytest.raises(UsageError, match="'desk' is a group, and a group cannot belong to another group"):
        command(keys, "share", "desk", "--group", "firm")


def test_group_is_not_a_key_and_admits_nobody(keys: KeysDirectory) -> None:
    keys.add("a", "client", share=Share(group="desk"))
    command(keys, "share", "desk", "--weight", "2")
    found = {public: entry for public, entry in AllowList(keys).entries().items() if entry.name == "desk"}
    assert list(found) == ["group desk"]
    keys.peers.write_text(
        '{"name": "x", "role": "group", "public": "%s", "added": "2026-01-01T00:00:00Z"}\n' % ("a" * 40)
    )
    assert not [each for each in keys.listed() if isinstance(each, PeerEntry)]


@pytest.mark.parametrize(
    ("flag", "value", "rule"),
    [
        ("--weight", "0", "between 0.001 and 1000"),
        ("--weight", "nan", "between 0.001 and 1000"),
        ("--weight", "-1", "between 0.001 and 1000"),
        ("--weight", "much", "between 0.001 and 1000"),
        ("--max-slots", "-1", "a whole number, at most 1000000"),
        ("--max-slots", "2.5", "a whole number, at most 1000000"),
        ("--group", "a b", "a name"),
    ],
)
def test_invalid_share_is_refused_with_the_rule(keys: KeysDirectory, flag: str, value: str, rule: str) -> None:
    keys.add("a", "client")
    with pytest.raises(UsageError, match=f"{flag} {value}: must be {rule}"):
        command(keys, "share", "a", f"{flag}={value}")
    assert shares(keys)["a"] == NO_SHARE


def test_share_without_a_change_is_refused(keys: KeysDirectory) -> None:
    with pytest.raises(UsageError, match="give a --weight, --max-slots, or --group"):
        command(keys, "share", "a")
