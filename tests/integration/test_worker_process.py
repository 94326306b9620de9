"""`python -m scaler.worker` as a process: start, exit, and kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.host import usable_memory
from scaler.ids import IdFactory, content_id
from scaler.net.connection import Closed, Identity, ListenerEvent, Opened, Received
from scaler.net.listener import SocketListener
from scaler.protocol.messages import (
    Done,
    Hello,
    Message,
    Outcome,
    RefusalReason,
    Refused,
    Returned,
    Run,
    RunGroup,
    Shutdown,
    Spec,
    Welcome,
    WorkerDetails,
)
from scaler.serialization import dump_function, load_value, parts_of, to_payload
from scaler.serialization.arguments import dump_arguments
from scaler.worker_manager.baremetal_native import COMMAND
from tests.waiting import soon, until, wait_for_file


class Scheduler:
    """Listens like a scheduler, and records messages from workers."""

    def __init__(self, lease: float = 60.0, refusal: str = "") -> None:
        self._welcome = Welcome(False, 1, lease, 2.0)
        self._refusal = refusal
        self.peer = b""
        self.details: Any = None
        self.said: list[Message] = []
        self.reason: str | None = None
        self.ids = IdFactory(b"client--")
        self.listener = SocketListener(
            ["tcp://127.0.0.1:0"],
            server_kind="scheduler",
            admit=self._admit,
            on_events=self._on_events,
            has_local_listener=True,
        )

    def _admit(self, peer: bytes, hello: Hello, _identity: Identity) -> Welcome | Refused:
        return Refused(RefusalReason.DUPLICATE, self._refusal) if self._refusal else self._welcome

    def _on_events(self, events: list[ListenerEvent]) -> None:
        for event in events:
            if isinstance(event, Opened):
                self.peer = event.peer
                self.details = event.hello.details
            elif isinstance(event, Closed):
                self.reason = event.text
            elif isinstance(event, Received):
                self.said.append(event.message)

    def submit(self, function: Callable[..., Any], *argument_lists: tuple[Any, ...]) -> list[bytes]:
        payload = to_payload(dump_function(function))
        ids = [self.ids.task() for _ in argument_lists]
        payloads = [to_payload(dump_arguments(each, {})[0]) for each in argument_lists]
        group = RunGroup(Spec(content_id(payload)), ids, [1] * len(ids), payloads)
        self.listener.send(self.peer, Run([(content_id(payload), payload)], [group]))
        return ids

    def outcomes(self) -> dict[bytes, tuple[int, bytes]]:
        return {
            identifier: (outcome, payload)
            for message in self.said
            if isinstance(message, Done)
            for identifier, outcome, payload in zip(message.ids, message.outcomes, message.payloads, strict=True)
        }


class Worker:
    def __init__(self, address: str, cwd: Path | None = None, **config: Any) -> None:
        made = WorkerConfig(
            scheduler_address=address,
            worker_manager_id="manager",
            unit_id="unit",
            logging_paths=("/dev/stderr",),
            insecure_no_auth=True,
            **config,
        )
        self.process = subprocess.Popen(
            COMMAND,
            cwd=cwd,
            env={**os.environ, WORKER_CONFIG_VARIABLE: made.to_json()},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seen: set[int] = set()

    def family(self) -> list[psutil.Process]:
        """The agent's descendants: the fork server, then its processors."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self.seen.update(each.pid for each in found)
        return found

    def close(self) -> None:
        self.family()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        until(lambda: not any(map(_lives, self.seen)), 5)  # no process of the worker is left


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def play(story: Callable[[Scheduler, Worker], Any], *, lease: float = 60.0, refusal: str = "", **config: Any) -> None:
    async def run() -> None:
        scheduler = Scheduler(lease, refusal)
        worker = Worker(scheduler.listener.addresses[0], **config)
        try:
            await story(scheduler, worker)
        finally:
            scheduler.listener.close()
            worker.close()

    asyncio.run(run())


def test_worker_identifies_itself_and_runs_tasks() -> None:
    async def story(scheduler: Scheduler, worker: Worker) -> None:
        await soon(lambda: scheduler.peer)
        assert scheduler.details == WorkerDetails(
            "manager", "unit", 2, 1000, {"gpu": 2.0, "linux": None}, *usable_memory(), 300.0
        )
        ids = scheduler.submit(lambda x: x + 1, (1,), (2,))
        await soon(lambda: len(scheduler.outcomes()) == 2)
        assert [load_value(parts_of(scheduler.outcomes()[each][1])) for each in ids] == [2, 3]

    play(story, slots=2, per_worker_capabilities={"gpu": 2.0, "linux": None})


def test_worker_ignores_modules_in_the_working_directory_unlike_its_tasks(tmp_path: Path) -> None:
    (tmp_path / "scaler.py").write_text("raise SystemExit('imported from the working directory')")
    (tmp_path / "beside.py").write_text("NAME = 'beside the worker'")

    def name() -> str:
        import beside  # type: ignore[import-not-found]  # noqa: PLC0415 (only the worker has it)

        import scaler.worker  # noqa: PLC0415

        return f"{beside.NAME}, {scaler.worker.__name__}"

    async def story(scheduler: Scheduler, _: Worker) -> None:
        await soon(lambda: scheduler.peer)
        [task] = scheduler.submit(name, ())
        await soon(scheduler.outcomes)
        assert load_value(parts_of(scheduler.outcomes()[task][1])) == "beside the worker, scaler.worker"

    play(story, cwd=tmp_path)


def test_worker_exits_immediately_with_success_on_shutdown() -> None:
    async def story(scheduler: Scheduler, worker: Worker) -> None:
        await soon(lambda: scheduler.peer)
        scheduler.submit(time.sleep, (60,))
        await soon(lambda: len(worker.family()) == 2)
        scheduler.listener.send(scheduler.peer, Shutdown("over"))
        assert await soon(lambda: worker.process.poll() is not None)
        assert worker.process.returncode == 0

    play(story)


def test_terminated_worker_finishes_its_task_and_says_goodbye(tmp_path: Path) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"

    def slow() -> int:
        began.touch()
        wait_for_file(gate)
        return 1

    async def story(scheduler: Scheduler, worker: Worker) -> None:
        await soon(lambda: scheduler.peer)
        first, second = scheduler.submit(slow, (), ())
        await soon(began.exists)
        worker.family()
        worker.process.send_signal(signal.SIGTERM)
        await soon(lambda: any(isinstance(message, Returned) for message in scheduler.said))
        gate.touch()
        await soon(lambda: worker.process.poll() is not None)
        assert worker.process.returncode == 0
        await soon(lambda: scheduler.reason is not None)
        assert scheduler.outcomes()[first][0] == Outcome.SUCCESS
        # The empty one completes the worker's account of its tasks.
        assert [message.ids for message in scheduler.said if isinstance(message, Returned)] == [[second], []]

    play(story)
