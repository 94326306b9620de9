"""A listener's door: who is called a stranger when a connection ends."""

from __future__ import annotations

import socket
import struct
import sys
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from scaler.net.door import Door

ENVELOPE = struct.pack("=II40s", 0, 0, bytes(40))


@pytest.mark.skipif(sys.platform != "linux", reason="there are no doors here")
@pytest.mark.parametrize(("said", "strangers"), [(ENVELOPE, 0), (b"", 1)], ids=["a goodbye", "nothing"])
def test_only_who_has_said_nothing_is_called_a_stranger_when_it_goes(said: bytes, strangers: int) -> None:
    called: list[str] = []
    gone: list[bytes] = []
    # A core that forgets a link with what comes over it, as it does with a goodbye.
    core: Any = SimpleNamespace(receive=lambda *_: None, is_stranger=lambda _: True, broken=gone.append)
    repeats: Any = SimpleNamespace(add=lambda text, _now: called.append(text))
    name = f"\0scaler-test-{uuid.uuid4().hex}"
    door = Door([name], core, repeats)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(name)
        peer.sendall(said)
    for _ in range(10):
        door.visit(0.0)
    door.close(0.0)
    assert len(gone) == 1
    assert len(called) == strangers
