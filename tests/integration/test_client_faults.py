"""Behaviour of a client at limits, scheduler restarts, late values, and program exit."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

from scaler import Client
from scaler.client import results, transfers
from scaler.client.results import MAX_RUNS_AGAIN
from scaler.errors import (
    ClientClosedError,
    LimitError,
    ObjectLostError,
    RefusedError,
    SchedulerLostError,
    WorkerLostError,
)
from scaler.ids import is_task, result_id
from scaler.object_storage.client import StorageClient
from scaler.object_storage.server import EmbeddedStorage
from scaler.protocol.messages import (
    Cancel,
    Clear,
    ObjectsMissing,
    ObjectsRestored,
    Outcome,
    Pin,
    RefusalReason,
    Refused,
    Release,
    ShutdownCluster,
    ShutdownReply,
    Submit,
    is_stored,
    stored_reference,
)
from scaler.serialization import dump_value
from tests.integration.client_rig import RigScheduler
from tests.short_forms import short_form


@pytest.fixture
def scheduler() -> Iterator[RigScheduler]:
    with RigScheduler() as made:
        yield made


@pytest.fixture
def storage() -> Iterator[EmbeddedStorage]:
    made = EmbeddedStorage("tcp://127.0.0.1:0")
    yield made
    made.close()


def first(tasks: dict[bytes, Any]) -> bytes:
    return next(iter(tasks))


# -- connecting


def test_refusal_is_raised_with_its_text() -> None:
    refused = Refused(RefusalReason.VERSION, "you run Python 3.9, I run 3.11")
    with RigScheduler(refuse=refused) as scheduler, pytest.raises(RefusedError, match=r"Python 3\.9"):
        Client(scheduler.address, timeout_seconds=10)


# -- results


def test_each_outcome_maps_to_its_own_error(scheduler: RigScheduler) -> None:
    with Client(scheduler.address) as client:
        future = client.submit(abs, -1)
        scheduler.finish({first(scheduler.next_tasks(1)): b"lost three of them"}, Outcome.WORKER_LOST)
        with pytest.raises(WorkerLostError, match="lost three"):
            future.result(20)
        future = client.submit(abs, -1)
        scheduler.finish({first(scheduler.next_tasks(1)): b"cancelled"}, Outcome.CANCELLED)
        with pytest.raises(CancelledError):
            future.result(20)


def test_dependents_of_a_local_value_include_it(scheduler: RigScheduler) -> None:
    with Client(scheduler.address) as client:
        one = client.submit(abs, -1)
        early = client.submit(abs, one)
        tasks = scheduler.next_tasks(2)
        assert tasks[early.task_id].references[-1] == (one.task_id,)
        scheduler.finish({one.task_id: 1})
        one.result(20)
        late = client.submit(abs, one)
        assert scheduler.next_tasks(1)[late.task_id].references == []


def test_stored_result_is_loaded_kept_with_its_future_and_released(storage: EmbeddedStorage) -> None:
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        kept = client.send_object(np.arange(10_000.0))  # replaces a worker's stored value
        (identifier,) = scheduler.next(Pin).ids
        future = client.submit(abs, 1)
        scheduler.finish({first(scheduler.next_tasks(1)): kept._upload.payload})  # noqa: SLF001 (as a worker names it)
        assert (future.result(20) == np.arange(10_000.0)).all()
        dependent = client.submit(abs, future)
        assert scheduler.next_tasks(1)[dependent.task_id].references == [(identifier,)]
        scheduler.finish({dependent.task_id: 0})
        dependent.result(20)
        del future
        gc.collect()
        assert identifier in scheduler.next(Release).ids


def test_lost_stored_result_ends_the_future(storage: EmbeddedStorage) -> None:
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        future = client.submit_verbose(abs, (1,), retries=0)
        identifier = first(scheduler.next_tasks(1))
        scheduler.finish({identifier: stored_reference(result_id(identifier, 1), 100_000)})
        with pytest.raises(
            ObjectLostError,
            match=r"is lost: .* is not in the object storage: .*; abs .* has retries=0 and does not run",
        ):
            future.result(20)


def test_lost_stored_result_is_recomputed_by_a_new_task(storage: EmbeddedStorage) -> None:
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        one, two = client.submit(abs, 1), client.submit(abs, 2)
        needs = client.submit(pow, one, two)
        scheduler.next_tasks(3)
        scheduler.finish({one.task_id: -1})  # the value arrived in time, and the scheduler may have dropped it
        lost = result_id(needs.task_id, 1)
        scheduler.finish({needs.task_id: stored_reference(lost, 100_000)})
        again, group = scheduler.next_tasks(1).popitem()
        (references,) = group.references
        assert references[1] == two.task_id
        scheduler.say(ObjectsMissing([references[0], lost]))
        answers = [scheduler.next(ObjectsRestored), scheduler.next(ObjectsRestored)]
        assert [identifier for answer in answers for identifier in answer.ids] == [references[0]]
        assert [identifier for answer in answers for identifier in answer.lost] == [lost]  # no waiting task names it
        scheduler.finish({again: 5})
        assert needs.result(20) == 5


def test_lost_objects_are_restored_once_a_full_disk_has_room(
    storage: EmbeddedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, refusals = StorageClient.put, 0

    def put_late(client: StorageClient, identifier: bytes, parts: Any) -> Any:
        nonlocal refusals
        refusals += 1
        if refusals > 2:
            return put(client, identifier, parts)
        error = LimitError("the disk is full")
        error.may_pass = True
        raise error

    monkeypatch.setattr(transfers, "DISK_PAUSE_SECONDS", 0.0)
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        one = client.submit(abs, 1)
        needs = client.submit(abs, one)
        scheduler.next_tasks(2)
        scheduler.finish({one.task_id: -1})
        assert one.result(20) == -1
        monkeypatch.setattr(StorageClient, "put", put_late)
        scheduler.finish({needs.task_id: stored_reference(result_id(needs.task_id, 1), 100_000)})
        again, group = scheduler.next_tasks(1).popitem()
        assert not is_task(group.references[0][0]), "the new task names the first task's uploaded value"
        assert refusals == 3
        scheduler.finish({again: 5})
        assert needs.result(20) == 5


def test_repeated_loss_of_a_result_ends_the_future(storage: EmbeddedStorage) -> None:
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        future = client.submit(abs, 1)
        for _ in range(1 + MAX_RUNS_AGAIN):
            identifier = first(scheduler.next_tasks(1))
            scheduler.finish({identifier: stored_reference(result_id(identifier, 1), 100_000)})
        with pytest.raises(ObjectLostError, match="was lost repeatedly: 4 times"):
            future.result(20)


def test_lost_result_is_restored_from_its_future(storage: EmbeddedStorage) -> None:
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        kept = client.send_object(np.arange(10_000.0))
        future = client.submit(abs, 1)
        scheduler.finish({first(scheduler.next_tasks(1)): kept._upload.payload})  # noqa: SLF001 (as a worker names it)
        future.result(20)
        needs = client.submit(abs, future)
        scheduler.next_tasks(1)
        lost = result_id(future.task_id, 1)
        scheduler.say(ObjectsMissing([lost]))
        assert scheduler.next(ObjectsRestored).ids == [lost]
        assert not needs.done()
        assert sum(map(len, client._loop.transfers.fetch(lost))) > 80_000  # noqa: SLF001 (no call gets an object by its id)


def test_rerun_ends_when_the_lost_result_has_been_found(
    storage: EmbeddedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "GET_AGAIN_SECONDS", ())
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        future = client.submit(abs, 1)
        user = client.submit(abs, future)
        scheduler.next_tasks(2)
        lost = result_id(future.task_id, 1)
        scheduler.finish({future.task_id: stored_reference(lost, 100_000)})
        scheduler.say(ObjectsMissing([lost]))
        again = first(scheduler.next_tasks(1))
        found = client._loop.transfers.put_again(lost, dump_value(5, None))  # noqa: SLF001 (as its host does)
        client._futures.run(found, client._loop._loop)  # noqa: SLF001
        scheduler.say(ObjectsMissing([lost]))  # like a scheduler that has lost its state
        assert scheduler.next(ObjectsRestored).ids == [lost]
        assert scheduler.next(Cancel).ids == [again]
        assert not user.done()


may_load = threading.Event()


def wait_to_load() -> str:
    may_load.wait(20)
    return "loaded"


class LoadsSlowly:
    def __reduce__(self) -> tuple[Any, ...]:
        return wait_to_load, ()


@pytest.mark.parametrize("is_stored_value", short_form([False, True]))
def test_slow_loading_value_delays_only_its_readers(storage: EmbeddedStorage, is_stored_value: bool) -> None:
    may_load.clear()
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        slow, quick = client.submit(abs, 1), client.submit(abs, 2)
        scheduler.next_tasks(2)
        value: Any = LoadsSlowly()
        if is_stored_value:
            value = client.send_object(value)._upload.payload  # noqa: SLF001 (as a worker names it)
        scheduler.finish({slow.task_id: value})
        scheduler.finish({quick.task_id: 2})
        assert quick.result(5) == 2
        with ThreadPoolExecutor(2) as readers:
            reads = [readers.submit(slow.result, 20), readers.submit(slow.exception, 20)]
            may_load.set()
            assert [read.result(20) for read in reads] == ["loaded", None]


# -- large arguments


def test_large_argument_is_stored_once_and_released_after_its_tasks(storage: EmbeddedStorage) -> None:
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        text = "x" * 100_000
        futures = [client.submit(len, text) for _ in range(3)]
        tasks = scheduler.next_tasks(3)
        groups = [tasks[future.task_id] for future in futures]  # one, or several if the client sends early
        (payload,) = {payload for group in groups for payload in group.payloads}
        assert is_stored(payload)
        assert {references for group in groups for references in group.references} == {(payload[1:17],)}
        scheduler.finish({future.task_id: 100_000 for future in futures})
        wait(futures, timeout=5)
        assert payload[1:17] in scheduler.next(Release).ids


# -- limits


def test_submit_waits_for_room_and_names_the_limit() -> None:
    with RigScheduler(max_pending_tasks=2) as scheduler, Client(scheduler.address, timeout_seconds=0.5) as client:
        client.submit(abs, 1)
        client.submit(abs, 2)
        with pytest.raises(LimitError, match=r"max_number_of_tasks_waiting=2 .* timeout_seconds=0\.5"):
            client.submit(abs, 3)
        tasks = scheduler.next_tasks(2)
        with ThreadPoolExecutor(1) as pool:
            third = pool.submit(client.submit, abs, 3)
            scheduler.finish({first(tasks): 1})
            assert third.result(20).task_id in scheduler.next_tasks(1)


# -- schedulers come and go


def test_futures_end_ten_leases_after_the_scheduler_is_lost() -> None:
    with RigScheduler(lease_seconds=0.1) as scheduler:
        client = Client(scheduler.address)
        future = client.submit(abs, 1)
        scheduler.next_tasks(1)
        scheduler.close()
        with pytest.raises(SchedulerLostError, match="unreachable for more than 1 s"):
            future.result(10)
        client.disconnect()


def test_restarted_scheduler_receives_all_unfinished_tasks(storage: EmbeddedStorage) -> None:
    with RigScheduler(storage=storage) as scheduler, Client(scheduler.address) as client:
        done, waiting = client.submit(abs, -1), client.submit(abs, -2)
        needs_done, needs_waiting = client.submit(abs, done), client.submit(abs, waiting)
        reference = client.send_object([1, 2])
        scheduler.next_tasks(4)
        scheduler.finish({done.task_id: 1})
        assert done.result(20) == 1
        scheduler.close()
        with RigScheduler(scheduler.address, storage=storage) as again:
            assert again.next(Pin).ids == [reference._reference_id]  # noqa: SLF001 (as the scheduler names it)
            tasks: dict[bytes, tuple[bytes, ...]] = {}
            definitions: dict[bytes, bytes] = {}
            while len(tasks) < 3:
                submit = again.next(Submit)
                definitions.update(submit.functions)
                for group in submit.groups:
                    columns = group.references or [()] * len(group.ids)
                    tasks.update(dict(zip(group.ids, columns, strict=True)))
            assert set(tasks) == {waiting.task_id, needs_done.task_id, needs_waiting.task_id}
            assert len(definitions) == 1
            assert tasks[needs_waiting.task_id] == (waiting.task_id,)
            ((stand_in,)) = tasks[needs_done.task_id]
            assert not is_task(stand_in)
            again.finish(dict.fromkeys(tasks, 5))
            assert [future.result(20) for future in (waiting, needs_done, needs_waiting)] == [5, 5, 5]


# -- the end


def test_clear_and_shutdown_are_sent(scheduler: RigScheduler) -> None:
    client = Client(scheduler.address)
    client.clear()
    scheduler.next(Clear)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(client.shutdown)
        scheduler.say(ShutdownReply(True, "so be it", number=scheduler.next(ShutdownCluster).number))
        ending.result(20)
    with pytest.raises(ClientClosedError):
        client.submit(abs, 1)


def test_importing_scaler_is_fast_and_light() -> None:
    program = "import sys, scaler; print([m for m in ('zmq', 'capnp', 'asyncio', 'cloudpickle') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
