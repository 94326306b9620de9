"""A real worker runs tasks of a scripted scheduler: results, failures, deaths, limits."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler.errors import RemoteError, SerializationError
from scaler.protocol.messages import Done, Outcome, Output, Printed, Returned
from scaler.worker.agent.processor.processor import Processor
from tests.integration.worker_rig import Rig, played, read


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("never")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def explode(kind: str) -> Any:
    """Fail in one of the ways of user code."""
    if kind == "unpicklable":
        raise UnpicklableError("inside")
    if kind == "unprintable":
        raise UnprintableError
    if kind == "exit":
        sys.exit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "recursion":
        return explode(kind)
    if kind == "huge":
        raise ValueError("x" * 5_000_000)
    if kind == "result":
        return (n for n in range(3))
    return "fine"


HARMLESS_ERRORS: dict[str, type[BaseException]] = {
    "unpicklable": UnpicklableError,
    "unprintable": BaseException,
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "recursion": RecursionError,
    "huge": RemoteError,
    "result": SerializationError,
}


@played()
async def test_exceptions_of_any_kind_do_not_harm_the_processor(rig: Rig) -> None:
    (pid,) = [process.pid for process in await rig.poll(rig.processors)]
    for kind, error in HARMLESS_ERRORS.items():
        bad, good = rig.submit(explode, (kind,), ("",))
        outcome, _ = await rig.outcome(bad)
        assert outcome is Outcome.EXCEPTION, kind
        with pytest.raises(error):
            await rig.value(bad)
        assert await rig.value(good) == "fine"
    assert [process.pid for process in rig.processors()] == [pid]


def die(how: str) -> None:
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


@played()
async def test_dead_processor_loses_only_its_running_task(rig: Rig) -> None:
    for how, evidence in (("exit", "exit code 7"), ("kill", "signal 9"), ("fault", "in die")):
        (bad,) = rig.submit(die, (how,))
        good = rig.submit(lambda x: x, *((n,) for n in range(20)))
        outcome, payload = await rig.outcome(bad)
        assert outcome is Outcome.PROCESSOR_DIED
        assert evidence in payload.decode()
        assert [await rig.value(each) for each in good] == list(range(20))


@played()
async def test_killed_processor_takes_its_tasks_children_along(rig: Rig, tmp_path: Path) -> None:
    place = tmp_path / "pid"

    def start_child() -> None:
        child = subprocess.Popen(["sleep", "60"])
        place.write_text(str(child.pid))
        child.wait()

    (identifier,) = rig.submit(start_child, ())
    pid = int(await rig.poll(lambda: read(place)))
    rig.recall(identifier, kill=True)
    assert (await rig.outcome(identifier))[0] is Outcome.CANCELLED
    await rig.poll(lambda: not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@played()
async def test_task_is_killed_at_its_time_limit_and_the_next_one_runs(rig: Rig) -> None:
    bad, good = rig.submit(time.sleep, (30.0,), (0.0,), timeout_seconds=0.2)
    outcome, payload = await rig.outcome(bad)
    assert outcome is Outcome.TIMED_OUT
    assert b"0.2 s" in payload
    assert await rig.value(good) is None


@played()
async def test_profiling_fills_wall_time_cpu_time_and_peak_memory(rig: Rig) -> None:
    def burn() -> int:
        data = bytearray(80_000_000)
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
        return len(data)

    (identifier,) = rig.submit(burn, (), profiling=True)
    await rig.value(identifier)
    (small,) = rig.submit(time.sleep, (0.02,), profiling=True)
    await rig.value(small)
    (plain,) = rig.submit(time.sleep, (0.02,))
    await rig.value(plain)
    first, second, third = rig.messages(Done)
    assert first.duration_us[0] >= 50_000
    assert first.cpu_us[0] >= 50_000
    assert first.peak_bytes[0] >= 80_000_000
    assert second.duration_us[0] >= 20_000
    assert second.cpu_us[0] < 15_000
    assert second.peak_bytes[0] < first.peak_bytes[0] - 60_000_000
    assert third.duration_us[0] >= 20_000
    assert third.cpu_us == []


@played()
async def test_task_output_is_sent_before_the_result_even_if_not_requested(rig: Rig) -> None:
    def talk() -> None:
        print("out", end=" ")
        print("loud")
        sys.stderr.write("no end")
        os.write(2, b"from below\n")

    (identifier,) = rig.submit(talk, ())
    await rig.value(identifier)
    (quiet,) = rig.submit(int, ())
    await rig.value(quiet)
    (printed,) = rig.messages(Printed)
    assert printed == Printed([identifier] * 2, [False, True], [0, 0], [b"out loud\n", b"no end"])
    assert not rig.messages(Output)
    kinds = [type(message) for message in rig.scheduler.said]
    assert kinds.index(Done) > kinds.index(Printed)


@played()
async def test_libraries_can_detect_whether_they_run_inside_a_task(rig: Rig) -> None:
    def ask() -> bool:
        return Processor.get_current_processor() is not None

    assert Processor.get_current_processor() is None
    (identifier,) = rig.submit(ask, ())
    assert await rig.value(identifier)


@played()
async def test_recalls_among_very_short_tasks_lose_and_repeat_nothing(rig: Rig) -> None:
    (process,) = await rig.poll(rig.processors)
    ids: list[bytes] = []
    for _ in range(60):
        some = rig.submit(abs, *((-n,) for n in range(50)))
        ids += some
        await rig.outcome(some[0])
        rig.recall(some[len(ids) % 49 + 1], kill=False)

    def done() -> list[bytes]:
        return [each for message in rig.messages(Done) for each in message.ids]

    def back() -> list[bytes]:
        return [
            identifier
            for message in rig.messages(Returned)
            for identifier, started in zip(message.ids, message.started, strict=True)
            if not started
        ]

    await rig.until(lambda: len(done()) + len(back()) == len(ids))
    assert sorted(done() + back()) == sorted(ids)
    assert rig.processors() == [process]
