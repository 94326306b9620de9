"""One flipped bit in an encrypted stream ends its connection at once, leaks no descriptor, and loses nothing."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scaler.net.connection import Broken, Opened, Received
from scaler.net.keys import PeerKeys, ServerKeys
from scaler.security.keys import Entry, new_key_pair
from tests.integration.net_rig import Asker, Servant, on_a_loop, until
from tests.integration.test_net_zeromq import Admitted

SERVER, ALICE = new_key_pair(), new_key_pair()
RECONNECTED_SECONDS = 1.0


class BitFlipper:
    """A forwarder for one peer, which can flip one bit of the next read in one direction."""

    def __init__(self, address: str) -> None:
        self._target = int(address.rpartition(":")[2])
        self._place: dict[str, int | None] = {"to the server": None, "to the client": None}
        self.flows: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def flip(self, direction: str, place: int) -> None:
        """Flip a bit of this byte of the next read, counted from the end if negative."""
        self._place[direction] = place

    def close(self) -> None:
        self._server.close()
        for flow in self.flows:
            flow.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        for direction, source, sink in (("to the server", reader, to_server), ("to the client", from_server, writer)):
            flow = asyncio.ensure_future(self._pass(direction, source, sink))
            self.flows.add(flow)

    async def _pass(self, direction: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := bytearray(await source.read(65536)):
                place = self._place[direction]
                if place is not None and len(data) > abs(place):
                    self._place[direction] = None
                    data[place] ^= 1
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def servant() -> Servant:
    keys = ServerKeys(SERVER, Admitted({ALICE.public: Entry("alice", "client")}))
    return Servant("tcp://127.0.0.1:0", keys=keys)


def answers(asker: Asker) -> int:
    return sum(isinstance(event, Received) for event in asker.events)


@pytest.mark.parametrize("place", [-1, -20, 20])
@pytest.mark.parametrize("direction", ["to the server", "to the client"])
@on_a_loop
async def test_flipped_bit_costs_only_its_connection(direction: str, place: int) -> None:
    server = servant()
    flipper = BitFlipper(server.address)
    client = Asker(await flipper.start(), PeerKeys(SERVER.public, ALICE, "alice"))
    await client.ask(1)
    await until(lambda: len(flipper.flows) == 2)
    before = descriptors()
    loop = asyncio.get_running_loop()
    for number in range(2, 6):
        breaks = sum(isinstance(event, Broken) for event in server.events)
        flipper.flip(direction, place)
        began = loop.time()
        await client.ask(number)
        assert loop.time() - began < RECONNECTED_SECONDS
        assert sum(isinstance(event, Broken) for event in server.events) == breaks + 1
    assert answers(client) == 5, "each question has one answer"
    assert sum(isinstance(event, Opened) for event in server.events) == 1, "the session went on"
    await until(lambda: descriptors() <= before)
    flipper.close()


PAGE = Path(__file__).parents[2] / "docs" / "libzmq-damaged-streams.md"


def test_documented_program_shows_when_libzmq_keeps_the_connection(tmp_path: Path) -> None:
    program = tmp_path / "damaged.py"
    program.write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    for arguments, last_line in (([], "the connection is closed"), (["all"], "the server still has the connection")):
        line = [sys.executable, str(program), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout.splitlines()[-1] == last_line, "a libzmq without the fault can have the event in its mask"
