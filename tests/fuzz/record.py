"""Records the seeds of the fuzz targets from a real run: `python -m tests.fuzz.record`.

Each process of the run records the messages that its connectors send and receive. The conversations are shortened, and
stored by type in their target's corpus.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from scaler import Client, SchedulerClusterCombo
from scaler.monitor.connection import MonitorConnection
from scaler.protocol import messages as m
from scaler.protocol.codec import decode
from tests.fuzz.conversations import Spoken, pack, unpack

CORPUS = Path(__file__).with_name("corpus")
MAX_BODY_BYTES = 12_000
MAX_ATTACHMENT_BYTES = 2_000
SESSION = bytes(8)
"""Suffix of the peer id in recorded session ids. A hostile peer uses the session id in its Welcome instead."""
MAX_REPEATS = 3
"""Maximum number of messages of one type per conversation."""

HOOK = """
import os, sys
if "scaler_recording" not in sys.modules and "RECORDING" in os.environ:
    sys.modules["scaler_recording"] = os
    from scaler.net import transport
    from scaler.net.connector_core import ConnectorCore
    from tests.fuzz.conversations import Spoken, pack
    step = ConnectorCore.step

    def write(core, direction, envelopes):
        spoken = [Spoken(e.header, e.body, tuple(bytes(a) for a in e.attachments)) for e in envelopes]
        with open(os.path.join(os.environ["RECORDING"], f"{core.peer.hex()}-{id(core)}.{direction}"), "ab") as file:
            file.write(pack(spoken))

    def recorded(self, inputs, now):
        inputs = list(inputs)
        write(self, "answers", [each for each in inputs if isinstance(each, transport.EnvelopeReceived)])
        commands = step(self, inputs, now)
        write(self, "said", [e for each in commands if isinstance(each, transport.Transmit) for e in each.envelopes])
        return commands

    ConnectorCore.step = recorded
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "sitecustomize.py").write_text(HOOK)
        recording = Path(directory, "recording")
        recording.mkdir()
        path = os.pathsep.join([directory, str(Path.cwd())])
        environment = {**os.environ, "PYTHONPATH": path, "RECORDING": str(recording)}
        subprocess.run([sys.executable, "-m", "tests.fuzz.record", "run"], env=environment, check=True)
        kept: Counter[str] = Counter()
        for file in sorted(recording.iterdir()):
            envelopes = shortened(unpack_all(anonymous(file.read_bytes())))
            target = target_of(file)
            if target and len(envelopes) > 1:
                kept[target] += 1
                folder = CORPUS / target.partition("-")[0]
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{target.partition('-')[2]}-{kept[target]}").write_bytes(pack(envelopes))
    print(*(f"{count} {name}" for name, count in sorted(kept.items())), sep="\n")


def unpack_all(data: bytes) -> list[Spoken]:
    envelopes: list[Spoken] = []
    while data:
        found = unpack(data)
        envelopes += found
        data = data[len(pack(found)) :]
    return envelopes


def shortened(envelopes: Iterable[Spoken]) -> list[Spoken]:
    """Return the small messages of each type, numbered without gaps."""
    kinds: Counter[str] = Counter()
    kept: list[Spoken] = []
    sequence = 0
    for header, body, attachments in envelopes:
        kind = type(decode(body)).__name__
        kinds[kind] += 1
        if kinds[kind] > MAX_REPEATS or len(body) > MAX_BODY_BYTES or sum(map(len, attachments)) > MAX_ATTACHMENT_BYTES:
            continue
        number = int.from_bytes(header[24:32], "little")
        if number:
            sequence += 1
            number = sequence
        kept.append(Spoken(header[:16] + SESSION + number.to_bytes(8, "little") + bytes(8), body, attachments))
    return kept


def anonymous(data: bytes) -> bytes:
    """Return the data with the names of this host and directory replaced by texts of equal length."""
    for name in (platform.node(), str(Path.cwd())):
        data = data.replace(name.encode(), b"x" * len(name))
    return data


def target_of(file: Path) -> str:
    """Return the folder and name of a conversation, or None if it did not begin."""
    said = [decode(each.body) for each in unpack_all(file.with_suffix(".said").read_bytes())]
    if not said or not isinstance(said[0], m.Hello):
        return ""
    role = said[0].role
    storage = m.MAY_SEND[m.Server.OBJECT_STORAGE][role] - m.MAY_SEND[m.Server.SCHEDULER][role]
    server = "storage" if any(type(each) in storage for each in said) else "scheduler"
    return f"{server}-{role}" if file.suffix == ".said" else f"answers-{server}-{role}"


# -- the run


def run() -> None:
    with SchedulerClusterCombo(n_workers=2) as combo, Client(combo.get_address()) as client:
        watcher = subprocess.Popen([sys.executable, "-m", "tests.fuzz.record", "watch", combo.get_monitor_address()])
        try:
            assert client.submit(pow, 2, 3).result() == 8
            assert client.map(abs, range(-50, 0)) == list(range(50, 0, -1))
            assert client.submit(len, bytes(100_000)).result() == 100_000
            reference = client.send_object([1, 2, 3])
            assert client.submit(sum, reference).result() == 6
            future = client.submit(pow, 2, 2)
            assert client.submit(pow, future, 2).result() == 16
            failed = client.submit(int, "no number")
            failed.exception()
            client.submit(print, "printed").result()
            client.submit_verbose(print, ("streamed",), stream_output=True).result()
            assert client.submit(nested, combo.get_address()).result() == 10
            assert len(client.submit(bytes, 50_000).result()) == 50_000
            slow = client.submit(__import__("time").sleep, 3)
            client.explain(slow)
            waiting = [client.submit(__import__("time").sleep, 5) for _ in range(4)]
            for each in [slow, *waiting]:
                each.cancel()
            client.logs(failed)
            client.clear()
        finally:
            watcher.wait(30)


def nested(address: str) -> int:
    with Client(address) as client:
        return int(client.submit(sum, [1, 2, 3, 4]).result())


async def watch(address: str) -> None:
    monitor = MonitorConnection(address)
    await monitor.ready()
    await monitor.find("pow")
    await asyncio.sleep(3)  # duration of the recording
    for task in list(monitor.model.tasks(limit=2)):
        await monitor.explain(task.id)
        await monitor.log(task.id)
    monitor.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run"]:
            run()
        case ["watch", address]:
            asyncio.run(watch(address))
        case _:
            main()
