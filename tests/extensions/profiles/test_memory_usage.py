"""Memory of functions as reported by real processors."""

from __future__ import annotations

from pathlib import Path

from scaler.protocol.messages import FunctionUse, WorkerHeartbeat
from tests.integration.worker_rig import Rig, played
from tests.waiting import wait_for_file

MIB = 1024**2


def uses(rig: Rig) -> dict[str, FunctionUse]:
    """Return the last report of each function."""
    return {use.function: use for beat in rig.messages(WorkerHeartbeat) for use in beat.functions}


def samples(rig: Rig, function: str) -> int:
    used = (use for beat in rig.messages(WorkerHeartbeat) for use in beat.functions)
    return sum(use.samples for use in used if use.function == function)


def hold(size_bytes: int) -> int:
    return len(b"\1" * size_bytes)


def hold_until(path: Path, size_bytes: int) -> int:
    held = b"\1" * size_bytes
    wait_for_file(path)
    return len(held)


@played(heartbeat_interval_seconds=0.1)
async def test_peak_of_a_function_is_known_although_its_memory_is_already_free(rig: Rig, tmp_path: Path) -> None:
    rig.submit(hold_until, (tmp_path / "go", 60 * MIB), name="held")
    held = await rig.until(lambda: samples(rig, "held") >= 2 and uses(rig)["held"])
    (tmp_path / "go").touch()
    sizes = iter(range(200, 1000, 100))  # a peak counts only if no other function has run since the last sample
    while not ((large := uses(rig).get("large")) and large.peak_bytes):
        beats = len(rig.messages(WorkerHeartbeat))
        await rig.value(rig.submit(hold, (next(sizes) * MIB,), name="large")[0])
        await rig.until(lambda: len(rig.messages(WorkerHeartbeat)) > beats)  # noqa: B023
    # Processors start with the memory of this test process.
    assert large.peak_bytes > held.peak_bytes + 100 * MIB
    assert 0 < (beat := rig.messages(WorkerHeartbeat)[-1]).rss_mean_bytes <= beat.rss_peak_bytes
