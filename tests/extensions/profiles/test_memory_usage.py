"""What real processors tell of the memory of functions."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from scaler.extensions.profiles import memory_samples as memory
from scaler.protocol.messages import FunctionUse, WorkerHeartbeat
from tests.integration.worker_rig import Rig, played
from tests.waiting import wait_for_file

MIB = 1024**2
LEFT = MIB
LONG_SECONDS = 120.0


def uses(rig: Rig) -> dict[str, FunctionUse]:
    """Return the last report of each function."""
    return {use.function: use for beat in rig.messages(WorkerHeartbeat) for use in beat.functions}


def hold(size_bytes: int) -> int:
    return len(b"\1" * size_bytes)


def hold_until(path: Path, size_bytes: int) -> int:
    held = b"\1" * size_bytes
    wait_for_file(path)
    return len(held)


def leave_something() -> None:
    vars(sys).setdefault("kept_by_a_test", []).append(b"\1" * LEFT)
    leave_nothing()


def leave_nothing() -> None:
    time.sleep(0.02)  # a task that ends sooner is not measured


@played(heartbeat_interval_seconds=0.1)
async def test_the_peak_of_a_function_is_known_although_its_memory_is_free_before_anything_looks(
    rig: Rig, tmp_path: Path
) -> None:
    rig.submit(hold_until, (tmp_path / "go", 60 * MIB), name="held")
    held = await rig.until(lambda: (use := uses(rig).get("held")) and use.samples >= 2 and use)
    (tmp_path / "go").touch()
    sizes = iter(range(200, 1000, 100))  # a peak counts only if no other function ran since the last sample
    while not ((large := uses(rig).get("large")) and large.peak_bytes):
        beats = len(rig.messages(WorkerHeartbeat))
        await rig.value(rig.submit(hold, (next(sizes) * MIB,), name="large")[0])
        await rig.until(lambda: len(rig.messages(WorkerHeartbeat)) > beats)  # noqa: B023
    # Processors begin with what the process of this test has.
    assert large.peak_bytes > held.peak_bytes + 100 * MIB
    assert 0 < (beat := rig.messages(WorkerHeartbeat)[-1]).rss_mean_bytes <= beat.rss_peak_bytes


@pytest.mark.timeout(2 * LONG_SECONDS)
@played(heartbeat_interval_seconds=0.1, gc=0.2)
async def test_a_function_that_leaves_memory_behind_is_told_from_one_that_runs_beside_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SAMPLE_SECONDS", 0.05)

    began = time.monotonic()
    while not (uses(rig).get("leaves") or FunctionUse("", 0, 0, 0)).growing:
        assert time.monotonic() - began < LONG_SECONDS
        ids = [*rig.submit(leave_something, (), (), name="leaves"), *rig.submit(leave_nothing, (), name="frees")]
        for each in ids:
            await rig.value(each)
    found = uses(rig)
    assert found["leaves"].growth_bytes == pytest.approx(LEFT, rel=0.2)
    assert found["frees"].growing == 0
