"""Measures the no-ops per second of one worker, connected over loopback to a scripted scheduler.

    python benchmarks/worker.py [tasks] [slots]

The scheduler keeps some hundred tasks in flight, and does not limit the size of messages. Also prints the CPU time per
task of the agent and its processors.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import psutil

from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.ids import IdFactory, content_id
from scaler.net.connection import Identity, ListenerEvent, Opened, Received
from scaler.net.listener import SocketListener
from scaler.protocol.messages import Done, Hello, Refused, Run, RunGroup, Shutdown, Spec, Welcome
from scaler.serialization import dump_function, to_payload
from scaler.serialization.arguments import dump_arguments

IN_FLIGHT = 512


def no_op(_: int) -> None:
    return None


class ScriptedScheduler:
    def __init__(self, tasks: int) -> None:
        self.left = tasks
        self.back = 0
        self.total = tasks
        self.began = 0.0
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        function = to_payload(dump_function(no_op))
        self.definition = (content_id(function), function)
        self.spec = Spec(self.definition[0])
        self.payload = to_payload(dump_arguments((1,), {})[0])
        self.ids = IdFactory(b"bench-01")
        self.peer = b""
        self.opened = asyncio.Event()
        self.listener = SocketListener(
            ["tcp://127.0.0.1:0"], server_kind="scheduler", admit=self.admit, on_events=self.on_events
        )

    def admit(self, _peer: bytes, _hello: Hello, _identity: Identity) -> Welcome | Refused:
        return Welcome(False, 1, 60.0, 2.0)

    def on_events(self, events: list[ListenerEvent]) -> None:
        for event in events:
            if isinstance(event, Opened):
                self.peer = event.peer
                self.opened.set()
            elif isinstance(event, Received) and isinstance(event.message, Done):
                self.back += len(event.message.ids)
                assert not any(event.message.outcomes)
                self.send(len(event.message.ids), [])
        if self.back == self.total and not self.done.done():
            self.done.set_result(time.perf_counter() - self.began)

    def send(self, count: int, definitions: list[tuple[bytes, bytes]]) -> None:
        count = min(count, self.left)
        self.left -= count
        if count:
            ids = [self.ids.task() for _ in range(count)]
            group = RunGroup(self.spec, ids, [1] * count, [self.payload] * count)
            self.listener.send(self.peer, Run(definitions, [group]))


async def measure(tasks: int, slots: int) -> None:
    scheduler = ScriptedScheduler(tasks)
    config = WorkerConfig(
        insecure_no_auth=True,
        scheduler_address=scheduler.listener.addresses[0],
        worker_manager_id="bench",
        unit_id="bench",
        slots=slots,
        logging_level="WARNING",
    )
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scaler.worker", env={**os.environ, WORKER_CONFIG_VARIABLE: config.to_json()}
    )
    await scheduler.opened.wait()
    await asyncio.sleep(1.0)  # until the processors are ready
    agent = psutil.Process(worker.pid)
    processors = [child for fork_server in agent.children() for child in fork_server.children()]
    before = agent.cpu_times(), [each.cpu_times() for each in processors]
    scheduler.began = time.perf_counter()
    scheduler.send(IN_FLIGHT * slots, [scheduler.definition])
    seconds = await scheduler.done
    after = agent.cpu_times(), [each.cpu_times() for each in processors]
    used = after[0].user + after[0].system - before[0].user - before[0].system
    theirs = sum(b.user + b.system - a.user - a.system for a, b in zip(before[1], after[1], strict=True))
    print(f"{tasks} no-ops, {slots} slots: {tasks / seconds:,.0f} tasks/s")
    print(f"agent {used / tasks * 1e6:.1f} us, processors {theirs / tasks * 1e6:.1f} us of CPU per task")
    scheduler.listener.send(scheduler.peer, Shutdown("done"))
    await worker.wait()
    scheduler.listener.close()


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:3]]
    asyncio.run(measure(*(arguments + [100_000, 1][len(arguments) :])))
