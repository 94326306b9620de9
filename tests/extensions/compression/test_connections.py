"""Values over TCP with the setting `compression`: recorded in transit, counted, and unchanged."""

from __future__ import annotations

import sys
from ast import literal_eval
from dataclasses import replace
from pathlib import Path

import pytest

from scaler import Client
from scaler.errors import UsageError
from scaler.extensions.compression.links import METHOD
from scaler.extensions.compression.zstd import compress
from scaler.net.connection import Broken, Received
from scaler.net.transport import MAX_MALFORMED_IN_A_ROW
from scaler.net.versions import own_hello
from scaler.object_storage.messages import GetObject, PutObject
from scaler.protocol.codec import encode
from scaler.protocol.messages import Role
from tests.hosts import hosts, why_not
from tests.integration.net_rig import OBJECT_BYTES, Servant, header, on_a_loop, until
from tests.integration.recorded_rig import recorded_cluster
from tests.integration.test_net_zeromq import UnidentifiedPeer
from tests.short_forms import short_form

STORED = 1_000_000
INLINE = 30_000
COUNT = 5
OPEN = "--insecure-no-auth"
COMPONENTS = ("storage", "scheduler", "workers", "client")


def echo(value: str) -> str:
    return value.lower()


@pytest.mark.parametrize("other", short_form([None, "client"]))
def test_compressible_values_shrink_in_transit_unless_one_side_disables_it(
    other: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {name: "off" if name == other else "on" for name in COMPONENTS}
    flags = {name: [OPEN, "--compression", said[name]] for name in COMPONENTS}
    servers = {name: flags[name] for name in ("scheduler", "storage", "workers")}
    with recorded_cluster(tmp_path, **servers) as cluster:
        monkeypatch.setenv("SCALER_COMPRESSION", said["client"])
        with Client(cluster.address, insecure_no_auth=True) as client:
            small = [client.submit(echo, "X" * INLINE) for _ in range(COUNT)]
            assert [future.result(30) for future in small] == ["x" * INLINE] * COUNT
            assert client.submit(echo, "Y" * STORED).result(30) == "y" * STORED
    # Each value passes its proxy four times: twice on the way to the worker, and twice back.
    expected = 0 if other is None else 2
    for proxy, size in zip(cluster, (COUNT * INLINE, STORED), strict=True):
        assert proxy.connections >= 2
        assert expected * size <= len(proxy.recorded) < (expected + 0.9) * size


def test_rejects_a_value_outside_the_settings_choices() -> None:
    with pytest.raises(UsageError, match="compression is auto, on, off; 'fast' is not one of them"):
        Client("tcp://127.0.0.1:1", compression="fast")


SLOW_CLIENT = f"""
import os, sys
from scaler import Client
with Client(sys.argv[1], insecure_no_auth=True) as client:
    # Random bytes come first, because smaller transfers may have fitted into the link's first burst.
    for value in (os.urandom({STORED}), str(list(range({STORED} // 7)))):
        before = open("/proc/net/dev").read()
        assert client.submit(type(value), client.send_object(value)).result(30) == value
        counts = [text.split("eth0:")[1].split() for text in (before, open("/proc/net/dev").read())]
        print([int(now) - int(then) for then, now in zip(*counts)][:9:8])
"""


@pytest.mark.skipif(bool(why_not()), reason=f"no simulated hosts here: {why_not()}")
def test_compressible_data_is_compressed_automatically_on_a_slow_link() -> None:
    with hosts(2) as network:
        cluster, far = network.hosts
        network.limit(far, 100_000_000)
        address = f"tcp://{cluster.address}:9400"
        python = Path(sys.executable).parent
        cluster.serve(python / "scaler_scheduler", address, OPEN)
        cluster.serve(python / "scaler_cluster", address, "-n", "1", OPEN)
        noise, text = map(literal_eval, far.run(sys.executable, "-c", SLOW_CLIENT, address).splitlines())
    assert max(text) < STORED / 2
    assert STORED < min(noise) < max(noise) < 1.1 * STORED


@on_a_loop
async def test_peer_without_compression_gets_and_may_send_only_plain_frames() -> None:
    server = Servant("tcp://127.0.0.1:0", compression="on")
    peer = UnidentifiedPeer(server.address)
    session = await peer.greet()
    peer.say(header(sequence=1, session=session), encode(GetObject(1, bytes(16), 0.0)))
    first, *others = await peer.hears()
    assert len(first) == 40
    assert len(others[-1]) == OBJECT_BYTES
    body = encode(PutObject(1, bytes(16), [STORED], 0))
    table = bytes(4) + STORED.to_bytes(4, "little")
    for _ in range(MAX_MALFORMED_IN_A_ROW):
        peer.say(header(sequence=2, session=session) + table, body, compress(bytes(STORED)))
    await until(peer.was_cut)
    assert not any(isinstance(event, Received) and event.attachments for event in server.events)


@on_a_loop
async def test_frame_expanding_beyond_its_announced_size_cuts_the_connection() -> None:
    server = Servant("tcp://127.0.0.1:0", compression="on")
    peer = UnidentifiedPeer(server.address)
    session = await peer.greet(replace(own_hello(Role.CLIENT), compression=METHOD))
    table = bytes(4) + STORED.to_bytes(4, "little")
    body = encode(PutObject(1, bytes(16), [STORED], 0))
    peer.say(header(sequence=1, session=session) + table, body, compress(bytes(STORED)))
    await until(lambda: server.saw(Received))
    peer.say(header(sequence=2, session=session) + table, body, compress(bytes(100 * STORED)))
    await until(peer.was_cut)
    (received,) = (event for event in server.events if isinstance(event, Received))
    assert [bytes(each) for each in received.attachments] == [bytes(STORED)]
    assert server.saw(Broken)
