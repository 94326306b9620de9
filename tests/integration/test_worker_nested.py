"""Tasks that talk to the scheduler themselves, and wait for tasks of their own."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil
import pytest

from scaler import Client
from scaler.net.connection import Welcomed
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Done, Finished, Outcome, Recall, Relay, RelayClosed, Submit, Suspended, Welcome
from scaler.serialization import dump_value, to_payload
from scaler.worker import frames
from scaler.worker.agent import relays
from scaler.worker.processor import context
from tests.integration.worker_rig import Rig, played
from tests.waiting import wait_for_file

PEER = b"nested--"


def converse(text: bytes) -> bytes | None:
    """Say something through a channel, and return what comes back."""
    here = context.current()
    assert here is not None
    channel = here.open_channel(PEER)
    with channel:
        frames.send(channel, text)
        with here.blocked():
            return frames.receive(channel)[0] or None


@played()
async def test_a_nested_client_speaks_through_its_agent_and_is_reported_gone(rig: Rig) -> None:
    (identifier,) = rig.submit(lambda text: len(converse(text) or b""), (b"hello" * 100_000,))
    await rig.until(lambda: rig.messages(Relay))
    (relay,) = rig.messages(Relay)
    assert (relay.client, relay.body) == (PEER, b"hello" * 100_000)
    rig.hear(Relay(PEER, b"answer" * 100_000))
    assert await rig.value(identifier) == 600_000
    await rig.until(lambda: rig.messages(RelayClosed))
    assert [message.suspended for message in rig.messages(Suspended)] == [[True], [False]]


@played()
async def test_while_a_task_waits_its_slot_runs_others(rig: Rig) -> None:
    (waiting,) = rig.submit(converse, (b"x",))
    await rig.until(lambda: rig.messages(Suspended))
    others = rig.submit(abs, *((-n,) for n in range(50)))
    assert [await rig.value(each) for each in others] == list(range(50))
    assert waiting not in rig.outcomes()
    rig.hear(Relay(PEER, b"done"))
    assert await rig.value(waiting) == b"done"


@played()
async def test_a_task_that_waited_goes_on_only_when_there_is_a_slot(rig: Rig, tmp_path: Path) -> None:
    began = tmp_path / "began"
    gate = tmp_path / "gate"

    def hold() -> float:
        began.touch()
        wait_for_file(gate)
        return time.monotonic()

    def converse_then_look() -> float:
        converse(b"x")
        return time.monotonic()

    (waiting,) = rig.submit(converse_then_look, ())
    await rig.until(lambda: rig.messages(Suspended))
    (holding,) = rig.submit(hold, ())
    await rig.poll(began.exists)
    rig.hear(Relay(PEER, b"done"))
    gate.touch()
    assert await rig.value(waiting) > await rig.value(holding)


@played()
async def test_a_client_whose_processor_dies_is_reported_gone(rig: Rig) -> None:
    (identifier,) = rig.submit(converse, (b"x",))
    await rig.until(lambda: rig.messages(Suspended))
    rig.recall(identifier, kill=True)
    await rig.until(lambda: rig.messages(RelayClosed))
    assert rig.messages(RelayClosed)[0].client == PEER
    await rig.outcome(identifier)


@played()
async def test_a_message_for_a_client_that_is_not_here_is_answered(rig: Rig) -> None:
    rig.hear(Relay(b"whatever", b"?"))
    assert rig.messages(RelayClosed)[0].client == b"whatever"


@played()
async def test_threads_of_a_task_count_as_one_wait(rig: Rig) -> None:
    def wait_in_threads() -> int:
        here = context.current()
        assert here is not None
        first, second = threading.Event(), threading.Event()

        def wait(event: threading.Event) -> None:
            with here.blocked():
                event.wait()

        threads = [threading.Thread(target=wait, args=(event,)) for event in (first, second)]
        for thread in threads:
            thread.start()
        first.set()
        threads[0].join()
        second.set()
        threads[1].join()
        return 1

    (identifier,) = rig.submit(wait_in_threads, ())
    assert await rig.value(identifier) == 1
    states = [state for message in rig.messages(Suspended) for state in message.suspended]
    assert states[0] is True
    assert states[-1] is False


@played()
async def test_a_thread_that_a_task_left_waiting_does_not_cost_a_slot(rig: Rig) -> None:
    def leave_a_thread() -> None:
        here = context.current()
        assert here is not None
        waits = threading.Event()

        def wait() -> None:
            with here.blocked():
                waits.set()
                threading.Event().wait()

        threading.Thread(target=wait, daemon=True).start()
        waits.wait()

    ids = rig.submit(leave_a_thread, (), (), ())
    for identifier in ids:
        assert await rig.value(identifier) is None
    (after,) = rig.submit(abs, (-3,))
    assert await rig.value(after) == 3


@played(storage="tcp://storage:1")
async def test_the_context_names_the_running_task_and_the_storage(rig: Rig) -> None:
    def look() -> tuple[bytes, str]:
        here = context.current()
        assert here is not None
        return here.task_id, here.object_storage_address

    assert context.current() is None
    (identifier,) = rig.submit(look, ())
    assert await rig.value(identifier) == (identifier, "tcp://storage:1")


@played(hard_processor_suspend=True)
async def test_with_hard_suspend_a_waiting_processor_is_stopped_and_goes_on(rig: Rig) -> None:
    (identifier,) = rig.submit(converse, (b"x",))
    await rig.until(lambda: rig.messages(Suspended))
    await rig.poll(lambda: [each for each in rig.processors() if each.status() == psutil.STATUS_STOPPED])
    rig.hear(Relay(PEER, b"go on"))
    assert await rig.value(identifier) == b"go on"
    assert len(rig.messages(Done)) == 1


@played()
async def test_after_the_scheduler_has_forgotten_a_worker_its_tasks_have_clients_that_work(rig: Rig) -> None:
    def ask() -> tuple[int, object]:
        with Client() as client:
            return os.getpid(), client.submit(abs, -7).result()

    pids = set()
    for _ in range(2):
        rig.scheduler.said.clear()
        rig.forget_functions()
        (identifier,) = rig.submit(ask, ())
        (relay,) = await rig.until(lambda: rig.messages(Relay))
        submit = decode(relay.body)
        assert isinstance(submit, Submit)
        finished = Finished(1, submit.groups[0].ids, [Outcome.SUCCESS], [to_payload(dump_value(7, None))], [1])
        rig.hear(Relay(relay.client, encode(finished)))
        pid, value = await rig.value(identifier)
        assert value == 7
        pids.add(pid)
        rig.scheduler.on_events([Welcomed(Welcome(False, 1, 60.0, 2.0))])
        rig.hear(Recall([], [], False))  # the answer to the worker's report
    assert len(pids) == 2, "a client cannot open its channel again, and the code of tasks may keep it"


@played()
async def test_a_channel_that_passes_a_limit_costs_its_processor_and_not_its_task(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(size: int) -> bytes | None:
        return converse(bytes(size))

    monkeypatch.setattr(relays, "MAX_BATCH_BYTES", 1_000_000)
    (large,) = rig.submit(say, (1_000_001,))
    outcome, text = await rig.outcome(large)
    assert outcome is Outcome.PROCESSOR_DIED
    assert b"sent a message of 1000001 bytes, more than 1000000" in text
    monkeypatch.setattr(relays, "MAX_UNREAD_BYTES", 1_000_000)
    (silent,) = rig.submit(hold_a_channel, ())
    await rig.until(lambda: rig.messages(Relay))
    for _ in range(100):  # more than the socket takes
        rig.hear(Relay(PEER, bytes(frames.DATAGRAM_BYTES)))
    outcome, text = await rig.outcome(silent)
    assert outcome is Outcome.PROCESSOR_DIED
    assert b"does not read, and more than 1000000 bytes wait" in text


def hold_a_channel() -> None:
    here = context.current()
    assert here is not None
    with here.open_channel(PEER) as channel:
        frames.send(channel, b"x")
        threading.Event().wait()
