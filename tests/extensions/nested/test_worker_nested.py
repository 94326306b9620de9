"""Tasks that communicate with the scheduler and wait for nested tasks."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from scaler.protocol.messages import Relay, RelayClosed, Suspended
from scaler.worker import frames
from scaler.worker.processor import context
from tests.integration.worker_rig import Rig, played
from tests.waiting import wait_for_file

PEER = b"nested--"


def converse(text: bytes) -> bytes | None:
    """Send a message through a channel, and return the answer."""
    here = context.current()
    assert here is not None
    channel = here.open_channel(PEER)
    with channel:
        frames.send(channel, text)
        with here.blocked():
            return frames.receive(channel)[0] or None


@played()
async def test_nested_client_connects_through_its_agent_and_is_reported_gone(rig: Rig) -> None:
    (identifier,) = rig.submit(lambda text: len(converse(text) or b""), (b"hello" * 100_000,))
    await rig.until(lambda: rig.messages(Relay))
    (relay,) = rig.messages(Relay)
    assert (relay.client, relay.body) == (PEER, b"hello" * 100_000)
    rig.hear(Relay(PEER, b"answer" * 100_000))
    assert await rig.value(identifier) == 600_000
    await rig.until(lambda: rig.messages(RelayClosed))
    assert [message.suspended for message in rig.messages(Suspended)] == [[True], [False]]


@played()
async def test_slot_of_a_waiting_task_runs_others(rig: Rig) -> None:
    (waiting,) = rig.submit(converse, (b"x",))
    await rig.until(lambda: rig.messages(Suspended))
    others = rig.submit(abs, *((-n,) for n in range(50)))
    assert [await rig.value(each) for each in others] == list(range(50))
    assert waiting not in rig.outcomes()
    rig.hear(Relay(PEER, b"done"))
    assert await rig.value(waiting) == b"done"


@played()
async def test_waiting_task_resumes_only_with_a_free_slot(rig: Rig, tmp_path: Path) -> None:
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
async def test_reports_clients_of_a_dead_processor_as_gone(rig: Rig) -> None:
    (identifier,) = rig.submit(converse, (b"x",))
    await rig.until(lambda: rig.messages(Suspended))
    rig.recall(identifier, kill=True)
    await rig.until(lambda: rig.messages(RelayClosed))
    assert rig.messages(RelayClosed)[0].client == PEER
    await rig.outcome(identifier)


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
