"""Only processors and clients unpickle: a pickle that runs code on loading does nothing anywhere else.

The pickle writes the pid of the process that loads it into a file. It is put into every field of bytes and every text
of every message, in each form that payloads have, and sent to everything that reads messages.
"""

from __future__ import annotations

import ast
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import scaler
from scaler import Client, SchedulerClusterCombo
from scaler.ids import new_peer_id
from scaler.monitor.messages import EndSession
from scaler.net.versions import own_hello
from scaler.protocol import messages as m
from scaler.protocol.failures import pack_exception
from scaler.protocol.messages import PayloadTag, Role, Server
from scaler.serialization import to_payload
from tests.fuzz.live import LivePeer
from tests.fuzz.samples import Sampler
from tests.fuzz.test_live import spoken
from tests.integration import worker_rig
from tests.short_forms import short_form

ROOT = Path(scaler.__file__).parent


class Bomb:
    def __init__(self, marker: Path) -> None:
        self._code = f"import os\nwith open({str(marker)!r}, 'a') as file: file.write(f'{{os.getpid()}}\\n')"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (self._code,)


def payloads_of(marker: Path) -> list[bytes]:
    """Return the bomb in each form of a payload."""
    bomb = pickle.dumps(Bomb(marker), 5)
    return [
        bomb,
        to_payload([bomb, b"buffer"]),
        to_payload([bomb, bomb], PayloadTag.ARGUMENTS),
        pack_exception("builtins.ValueError", "text", "traceback", bomb),
        pickle.dumps(Bomb(marker), 0),
    ]


def samplers(marker: Path, peer: bytes) -> Iterator[Sampler]:
    text = pickle.dumps(Bomb(marker), 0).decode()
    for choice, payload in enumerate(payloads_of(marker)):
        yield Sampler(peer=peer, data=payload, text=text, choice=choice)


def details_of(role: Role, sampler: Sampler) -> m.Details:
    kinds = [Role.CLIENT, Role.WORKER, Role.MANAGER]
    hello = replace(sampler, choice=kinds.index(role)).message(m.Hello, role=role)
    assert isinstance(hello, m.Hello)
    if isinstance(hello.details, m.WorkerDetails | m.ManagerDetails):
        return replace(hello.details, capabilities={})  # names would be rejected in a Hello
    if isinstance(hello.details, m.ClientDetails):
        hello.details.session = ""  # session names are unique
    return hello.details


def exploded(marker: Path) -> set[int]:
    """Return the pids of the processes that have loaded a bomb."""
    return set(map(int, marker.read_text().split())) if marker.exists() else set()


@pytest.fixture(scope="module")
def cluster() -> Iterator[SchedulerClusterCombo]:
    with SchedulerClusterCombo(n_workers=2) as combo:
        yield combo


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


# -- messages to the scheduler, the storage, and the monitor address


@pytest.mark.parametrize("role", [Role.CLIENT, Role.WORKER, Role.MANAGER])
def test_servers_ignore_pickle_bombs_in_any_message(role: Role, cluster: SchedulerClusterCombo, marker: Path) -> None:
    doors = [(cluster.get_address(), Server.SCHEDULER), (cluster.get_object_storage_address(), Server.OBJECT_STORAGE)]
    ends = {m.Hello, m.Goodbye, m.ShutdownCluster, EndSession}
    with Client(cluster.get_address()) as client:
        for address, server in doors:
            kinds = [kind for kind in m.NUMBERS if kind in m.MAY_SEND[server][role] - ends]
            for sampler in samplers(marker, new_peer_id()) if kinds else ():
                session = new_peer_id() + bytes(8)
                hello = own_hello(role, None if server is Server.OBJECT_STORAGE else details_of(role, sampler))
                with LivePeer(address) as peer:
                    mine = replace(sampler, peer=session[:8])
                    peer.say([spoken(hello, session=session)])
                    assert isinstance(peer.answer(), m.Welcome)
                    said = [mine.message(kind) for kind in kinds]
                    peer.say([spoken(each, number, session) for number, each in enumerate(said, 1)])
                    last = m.WorkerHeartbeat(7.0, 0.0, 0, 0, 0.0) if role is Role.WORKER else m.Heartbeat(7.0)
                    if role is Role.MANAGER:
                        last = m.ManagerStatus(7.0, [])  # type: ignore[assignment]
                    if type(last) in m.MAY_SEND[server][role]:
                        number = len(said) + 1 if role is Role.MANAGER else 0
                        peer.say([spoken(last, number, session)])
                        while not (isinstance(answer := peer.answer(), m.HeartbeatEcho) and answer.sent_at == 7.0):
                            assert answer is not None, f"the {server} has cut a {role}"
        assert client.submit(pow, 2, 3).result(20) == 8
    assert exploded(marker) == set()


# -- messages to agents, managers, and monitors


def test_pickle_bomb_from_the_scheduler_never_reaches_the_agent(marker: Path) -> None:
    ends = {m.Welcome, m.Refused, m.Goodbye, m.Drain, m.Shutdown}

    async def story(rig: worker_rig.Rig) -> None:
        for number, sampler in enumerate(samplers(marker, b"hostile.")):
            kinds = [kind for kind in m.NUMBERS if kind in m.MAY_ANSWER[Server.SCHEDULER][Role.WORKER] - ends]
            rig.hear(*(sampler.message(kind) for kind in kinds))
            identifier = rig.submit(pow, (2, number))[0]
            assert await rig.value(identifier) == 2**number
        rig.submit_payloads(payloads_of(marker)[0], [payloads_of(marker)[0]], [])
        # The processors did load it, so the agent has read the same bytes without loading them.
        await rig.poll(lambda: exploded(marker))

    worker_rig.play(story)
    assert os.getpid() not in exploded(marker)


# -- guarantees for all processes

WITHOUT_PICKLES = [
    "cli",
    "cluster",
    "config",
    "monitor",
    "net",
    "object_storage",
    "policy",
    "protocol",
    "scheduler",
    "security",
    "worker/agent",
    "worker_manager",
]
"""Packages of the processes that never unpickle."""
LOADERS = {"load", "load_value", "load_function", "load_serializer", "load_retry_on", "load_exception", "load_outcome"}
"""Functions of `scaler.serialization` that unpickle."""
MODULES_WITH_LOADERS = {"scaler.serialization.arguments"}
JOBS = {"scaler.offload.job", "scaler.worker.processor.main"}
"""The remote end of an offloaded task: effectively a processor, in a separate process."""
FAR_ENDS = {"worker_manager/aws_hpc/job.py", "worker_manager/symphony/service.py"}


@pytest.mark.parametrize("package", short_form([*WITHOUT_PICKLES]))
def test_packages_that_read_foreign_bytes_never_unpickle(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        if str(file.relative_to(ROOT)) in FAR_ENDS:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}", *(f"{node.module}.{each.name}" for each in node.names)]
                wrong = {each.name for each in node.names} & LOADERS
                assert not (wrong and f"{node.module}".startswith("scaler.serialization")), f"{file}: {wrong}"
            tops = {name.partition(".")[0] for name in names}
            assert not tops & {"pickle", "cloudpickle", "marshal", "dill", "shelve"}, f"{file} imports {names}"
            far = {name for name in names if name in MODULES_WITH_LOADERS or any(map(name.startswith, JOBS))}
            assert not far, f"{file} imports {far}"
