"""Changing arbitrary bytes of key lines never admits more peers, and nothing fails."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler.security.credential import Credential
from scaler.security.directory import AllowList, KeysDirectory
from scaler.security.keys import Entry


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[KeysDirectory, Credential, Credential, bytes]:
    keys = KeysDirectory.create(tmp_path_factory.mktemp("properties") / "keys", "lab")
    alice, bob = keys.add("alice", "monitor"), keys.add("bob", "client")
    return keys, alice, bob, keys.peers.read_bytes()


def spliced(text: bytes, start: int, length: int, other: bytes) -> bytes:
    start %= len(text)
    return text[:start] + other + text[start + length :]


PIECES = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b'"', b"\n", b":", b"[", b"{}", b'"role": "admin", ', b'"expires": 1, ', b"1979-05-27T07:32:00Z"]),
    st.integers(1, 6000).map(lambda count: b"9" * count),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 40), PIECES), min_size=1, max_size=4))
def test_changed_file_never_extends_the_rights_of_a_key(
    made: tuple[KeysDirectory, Credential, Credential, bytes], changes: list[tuple[int, int, bytes]]
) -> None:
    keys, alice, bob, both = made
    text, _, others = both.partition(b"\n")
    for change in changes:
        text = spliced(text, *change)
        if not text:
            break
    keys.peers.write_bytes(text + b"\n" + others)
    listed = AllowList(keys)
    assert listed.entries().get(bob.keys.public) == Entry("bob", "client", "")
    listed.refresh()
    found = listed.entries().get(alice.keys.public)
    assert found is None or found.name == "alice" or b'"alice"' not in text
    if found is not None and b'"admin"' not in text:
        assert found.role == "monitor"
