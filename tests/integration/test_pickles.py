"""Only processors and clients unpickle: a pickle that runs code when it is loaded does nothing anywhere else.

The pickle writes the pid of the process that loads it into a file. It is put into every field of bytes and every text
of every message, in each form that payloads have, and sent to everything that reads messages.
"""

from __future__ import annotations

import ast
import asyncio
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import scaler
from scaler import Client, SchedulerClusterCombo
from scaler.errors import LimitError
from scaler.ids import new_peer_id
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.web.server import WebApp
from scaler.net.access import LOCAL_ACCESS
from scaler.net.connection import ListenerEvent, Opened, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.identity import Identity
from scaler.net.listener import SocketListener
from scaler.net.versions import own_hello
from scaler.protocol import messages as m
from scaler.protocol.messages import PayloadTag, Role, Server
from scaler.serialization import to_payload
from scaler.serialization.exceptions import pack_exception
from tests.fuzz.live import LivePeer
from tests.fuzz.samples import Sampler
from tests.fuzz.test_live import spoken
from tests.integration import test_runner, worker_rig
from tests.unit.monitor.web_rig import web_config
from tests.waiting import soon

ROOT = Path(scaler.__file__).parent


class Bomb:
    def __init__(self, marker: Path) -> None:
        self._code = f"import os\nwith open({str(marker)!r}, 'a') as file: file.write(f'{{os.getpid()}}\\n')"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (self._code,)


def payloads_of(marker: Path) -> list[bytes]:
    """Return the bomb in each form that a payload has."""
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
        hello.details.capabilities = {}  # whose names a greeting must not have
    if isinstance(hello.details, m.ClientDetails):
        hello.details.session = ""  # of which there is one of each name
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


def test_the_bomb_goes_off_when_it_is_loaded(marker: Path) -> None:
    first, *_, last = payloads_of(marker)
    pickle.loads(first)
    assert exploded(marker) == {os.getpid()}
    pickle.loads(last)
    assert len(marker.read_text().split()) == 2


# -- what scheduler, storage and monitors' address read


@pytest.mark.parametrize("role", [Role.CLIENT, Role.WORKER, Role.MANAGER])
def test_a_bomb_in_any_message_to_the_servers_does_nothing(
    role: Role, cluster: SchedulerClusterCombo, marker: Path
) -> None:
    doors = [(cluster.get_address(), Server.SCHEDULER), (cluster.get_object_storage_address(), Server.OBJECT_STORAGE)]
    ends = {m.Hello, m.Goodbye, m.ShutdownCluster, m.EndSession}
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


def test_a_bomb_in_any_message_of_a_monitor_does_nothing(cluster: SchedulerClusterCombo, marker: Path) -> None:
    async def test() -> None:
        address = cluster.get_monitor_address()
        answered = asyncio.Event()

        def on_events(events: Sequence[object]) -> None:
            if any(isinstance(each, Received) and isinstance(each.message, m.TasksFound) for each in events):
                answered.set()

        connector = SocketConnector(
            address,
            peer=new_peer_id(),
            hello=own_hello(Role.MONITOR),
            on_events=on_events,
            keys=LOCAL_ACCESS.to(Server.SCHEDULER, address),
        )
        for sampler in samplers(marker, new_peer_id()):
            for kind in m.MAY_SEND[Server.SCHEDULER][Role.MONITOR] - {m.Hello, m.Goodbye}:
                connector.send(sampler.message(kind))
        async with asyncio.timeout(20):
            await answered.wait()
        connector.close()

    asyncio.run(test())
    assert exploded(marker) == set()


# -- what agents, managers and monitors read


def test_a_bomb_from_a_scheduler_goes_off_in_processors_and_never_in_their_agent(marker: Path) -> None:
    ends = {m.Welcome, m.Refused, m.Goodbye, m.Drain, m.Shutdown}

    async def story(rig: worker_rig.Rig) -> None:
        for number, sampler in enumerate(samplers(marker, b"hostile.")):
            kinds = [kind for kind in m.NUMBERS if kind in m.MAY_ANSWER[Server.SCHEDULER][Role.WORKER] - ends]
            rig.hear(*(sampler.message(kind) for kind in kinds))
            identifier = rig.submit(pow, (2, number))[0]
            assert await rig.value(identifier) == 2**number
        rig.submit_payloads(payloads_of(marker)[0], [payloads_of(marker)[0]], [])
        # The processors did load it: so the agent has read the same bytes, and has not.
        await rig.poll(lambda: exploded(marker))

    worker_rig.play(story)
    assert os.getpid() not in exploded(marker)


def test_a_bomb_from_a_scheduler_does_nothing_in_a_manager(marker: Path) -> None:
    async def story(stage: test_runner.Stage) -> None:
        stage.scheduler.say(Welcomed(test_runner.WELCOME))
        for sampler in samplers(marker, b"hostile."):
            kinds = m.MAY_ANSWER[Server.SCHEDULER][Role.MANAGER] - {m.Shutdown, m.Welcome, m.Refused, m.Goodbye}
            stage.scheduler.say(*(sampler.message(kind) for kind in kinds))
            await stage.scheduler.next_status()
        stage.scheduler.say(m.Desired(0, [], "none is needed"))
        await stage.scheduler.next_status()
        stage.scheduler.say(m.Shutdown(next(samplers(marker, b"")).text))
        await stage.task

    with suppress(LimitError):
        test_runner.play(story)
    assert exploded(marker) == set()


def test_a_bomb_from_a_scheduler_does_nothing_in_monitors_and_their_web_page(marker: Path) -> None:
    async def test() -> None:
        def on_events(events: list[ListenerEvent]) -> None:
            for event in events:
                if isinstance(event, Opened):
                    for sampler in samplers(marker, b"hostile."):
                        kinds = m.MAY_ANSWER[Server.SCHEDULER][Role.MONITOR]
                        for kind in kinds - {m.Hello, m.Welcome, m.Refused, m.Goodbye}:
                            listener.send(event.peer, sampler.message(kind))
                    listener.send(event.peer, m.MonitorStatus(b'{"at": 1.0, "clients": [{"name": "the last"}]}'))

        def admit(_peer: bytes, _hello: m.Hello, _identity: Identity) -> m.Welcome:
            return m.Welcome(False, 1, 60.0, 2.0)

        listener = SocketListener(
            ["tcp://127.0.0.1:0"],
            server_kind=Server.SCHEDULER,
            admit=admit,
            on_events=on_events,
            has_local_listener=True,
        )
        monitor = MonitorConnection(listener.addresses[0], timeout_seconds=0.2)
        app = WebApp(monitor, web_config(), "the token")
        try:
            await soon(lambda: monitor.model.status.at, 20)
            text = next(samplers(marker, b"")).text
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app, client=("127.0.0.1", 1)), base_url="http://127.0.0.1"
            ) as browser:
                for path in ("/api/status", "/api/tasks", "/api/failures", "/metrics"):
                    answer = await browser.get(
                        path,
                        params={"search": text},
                        headers={"cookie": f"a={text.encode()!r}", "authorization": "Bearer the token"},
                    )
                    assert answer.status_code in {200, 400, 503}
        finally:
            app.close()
            monitor.close()
            listener.close()

    asyncio.run(test())
    assert exploded(marker) == set()


# -- what no process does

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
"""Packages of the processes that unpickle nothing."""
LOADERS = {"load", "load_value", "load_function", "load_serializer", "load_retry_on", "load_exception", "load_outcome"}
"""Functions of `scaler.serialization` that unpickle."""
MODULES_WITH_LOADERS = {"scaler.serialization.arguments"}
JOBS = {"scaler.worker.job", "scaler.worker.processor.main"}
"""The far end of an offloaded task: a processor in all but name, in a process of its own."""
FAR_ENDS = {"worker_manager/aws_hpc/job.py", "worker_manager/symphony/service.py"}


@pytest.mark.parametrize("package", WITHOUT_PICKLES)
def test_a_package_that_reads_bytes_of_others_names_nothing_that_unpickles(package: str) -> None:
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
