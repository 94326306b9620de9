"""Memory limits in the agent's core: measurements in, processors to kill out."""

from __future__ import annotations

from dataclasses import replace

from scaler.extensions.resources.limits import MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS, ContainerMemory, MemoryLimits
from scaler.protocol.messages import Done, Outcome
from scaler.worker.agent.events import MemoryExceeded
from tests.unit.worker.story import Story
from tests.unit.worker.worker_fakes import worker_config

GIB = 1024**3


class Limited(Story):
    def __init__(self, slots: int = 1, *, processor: int = 0, worker: int = 0) -> None:
        limits = {"processor_memory_limit_bytes": processor, "memory_limit_bytes": worker}
        super().__init__(config=replace(worker_config(slots), **limits))  # type: ignore[arg-type]

    def measured(self, **usage: int) -> None:
        """Measure processors: p1=..., p2=... bytes. Processors to kill exit."""
        self.exceeded({int(name[1:]): used for name, used in usage.items()})
        for number, each in list(self.hands.processors.items()):
            if each.killed and not each.released:
                self.die(number)

    def exceeded(self, usage: dict[int, int], container: ContainerMemory | None = None) -> None:
        alive = {number: used for number, used in usage.items() if number in self.pool.processors}
        self.happened(MemoryExceeded(MemoryLimits.of(self.pool.config).excesses(alive, container)))

    def texts(self) -> dict[int, str]:
        done = [message for message in self.sent if isinstance(message, Done)]
        rows = [row for message in done for row in zip(message.ids, message.payloads, strict=True)]
        return {int.from_bytes(identifier, "big"): payload.decode() for identifier, payload in rows}


def begun(slots: int, count: int, **limits: int) -> Limited:
    """Return a scenario in which each of `slots` processors runs a task, numbered alike, of `count` in all."""
    story = Limited(slots, **limits)
    story.run(*range(1, count + 1))
    for number in range(1, slots + 1):
        story.hands[number].begin(story.now)
    return story


def test_task_above_the_processor_limit_fails_and_later_tasks_run() -> None:
    story = begun(1, 3, processor=GIB)
    story.measured(p1=GIB + 5)
    assert story.done() == {1: Outcome.MEMORY_LIMIT}
    assert story.texts()[1] == (
        "the task was killed because its processor had 1073741829 bytes, more than processor_memory_limit_bytes = "
        "1073741824"
    )
    (done,) = [message for message in story.sent if isinstance(message, Done)]
    assert done.peak_bytes == [GIB + 5]
    assert sorted(story.fed(2)) == [2, 3]
    assert story.pool.memory_kills == 1


def test_largest_processors_are_killed_until_the_rest_fits_the_worker() -> None:
    story = begun(4, 4, worker=10 * GIB)
    story.measured(p1=2 * GIB, p2=5 * GIB, p3=3 * GIB, p4=4 * GIB)
    assert story.done() == {2: Outcome.OUT_OF_MEMORY}
    assert "memory_limit_bytes = 10737418240" in story.texts()[2]
    story.measured(p1=6 * GIB, p3=6 * GIB, p4=6 * GIB)
    assert len(story.done()) == 3


def test_task_alone_above_the_workers_limit_is_not_retried() -> None:
    story = begun(2, 2, worker=GIB)
    story.measured(p1=GIB + 1, p2=5)
    assert story.done() == {1: Outcome.MEMORY_LIMIT}


def test_largest_processors_are_killed_first_near_a_containers_limit() -> None:
    story = begun(3, 3)
    usage = {1: GIB, 2: GIB // 2, 3: 10}
    story.exceeded(usage, ContainerMemory(2 * GIB, others_bytes=GIB // 4 - 10))
    assert not story.pool.memory_kills, "a reserve of 256 MiB is left"
    story.exceeded(usage, ContainerMemory(2 * GIB, others_bytes=GIB // 4))
    story.die(1)
    assert story.done() == {1: Outcome.OUT_OF_MEMORY}
    assert story.texts()[1] == (
        "the task was killed because the processes of its container had 1879048202 bytes, more than the limit of "
        "2147483648 less a reserve of 268435456 (memory_limit_bytes is not set), and its processor was the largest, "
        "with 1073741824 bytes"
    )


def test_small_processors_survive_memory_use_by_others_in_a_container() -> None:
    story = begun(2, 2)
    story.exceeded({1: 100, 2: 200}, ContainerMemory(2 * GIB, others_bytes=2 * GIB))
    assert not story.pool.memory_kills


def test_processor_retaining_memory_is_replaced_without_charging_a_task() -> None:
    story = begun(1, 2, processor=GIB)
    story.work_on(1)
    story.measured(p1=2 * GIB)
    assert story.done() == {1: Outcome.SUCCESS}
    assert story.fed(2) == [2]


def test_next_measurement_is_sooner_near_a_limit() -> None:
    limits = MemoryLimits(2 * GIB, 0)
    assert limits.pause_seconds({}) == MAX_PAUSE_SECONDS
    assert limits.pause_seconds({1: GIB, 2: 0}) == MAX_PAUSE_SECONDS
    assert MIN_PAUSE_SECONDS < limits.pause_seconds({1: GIB, 2: 2 * GIB - GIB // 8}) < MAX_PAUSE_SECONDS / 4
    assert limits.pause_seconds({1: 3 * GIB}) == MIN_PAUSE_SECONDS
    assert MemoryLimits(0, GIB).pause_seconds({1: GIB // 2, 2: GIB // 2}) == MIN_PAUSE_SECONDS
    assert MemoryLimits(0, 0).pause_seconds({}, -1) == MIN_PAUSE_SECONDS
