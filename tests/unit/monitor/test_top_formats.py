"""Figures and names in a terminal."""

from __future__ import annotations

import pytest

from scaler.monitor.cluster_rows import ProcessorRow, WorkerRow
from scaler.monitor.top import formats


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0"),
        (-5, "0"),
        (1023, "1023"),
        (1024, "1.0k"),
        (130.1 * 1024**2, "130.1m"),
        (1024**2 - 1, "1.0m"),
        (1.5 * 1024**3, "1.5g"),
        (7 * 1024**5, "7.0p"),
        (2**70, "1048576.0p"),
    ],
)
def test_sizes_use_powers_of_1024(size_bytes: float, shown: str) -> None:
    assert formats.size(size_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0ms"),
        (-1.0, "0ms"),
        (0.0007, "0.7ms"),
        (0.001, "1ms"),
        (0.01234, "12ms"),
        (0.0996, "100ms"),
        (0.9996, "1.0s"),
        (3.44, "3.4s"),
        (59.96, "1m00s"),
        (125.0, "2m05s"),
        (3599.6, "1h00m"),
        (11040.0, "3h04m"),
        (2 * 86400 + 3 * 3600.0, "2d03h"),
    ],
)
def test_times_use_a_suitable_unit(seconds: float, shown: str) -> None:
    assert formats.duration(seconds) == shown


def test_terminal_control_sequences_are_escaped() -> None:
    assert formats.safe("a\x1b[2Jb\nc\x9b\u202e") == r"a\x1b[2Jb\nc\x9b\u202e"
    assert formats.safe("über das 作業 [bold]") == "über das 作業 [bold]"
    assert formats.safe("\ud800") == r"\ud800"


def test_names_are_truncated_with_a_plus_by_terminal_columns() -> None:
    assert formats.cut("2732890|sd-1e7d-dfba", 10) == "2732890|s+"
    assert formats.cut("exactly", 7) == "exactly"
    assert formats.cut("作業者", 5) == "作業+"
    assert formats.cut("作業者", 4) == "作 +"
    assert formats.cut("anything", 0) == ""
    assert formats.left("作", 4) == "作  "
    assert formats.right("12", 5) == "   12"


def processor(*, running: str = "", suspended: bool = False, initialized: bool = True, **more: float) -> ProcessorRow:
    return ProcessorRow(
        1,
        initialized=initialized,
        suspended=suspended,
        running=running,
        running_seconds=more.get("seconds", 0.0),
        function=f"f{running}" if running else "",
    )


@pytest.mark.parametrize(
    ("processors", "flags"),
    [
        ((), "000"),
        ((processor(),), "100"),
        ((processor(initialized=False),), "000"),
        ((processor(running="a"),), "111"),
        ((processor(running="a", suspended=True),), "110"),
        ((processor(running="a", suspended=True), processor(running="b")), "111"),
        ((processor(running="a"), processor(initialized=False)), "011"),
    ],
)
def test_flags_show_whether_processors_are_initialized_busy_and_hold_slots(
    processors: tuple[ProcessorRow, ...], flags: str
) -> None:
    assert WorkerRow(processors=processors).itl == flags


def function_of(worker: WorkerRow) -> tuple[str, float]:
    return worker.function, worker.function_seconds


def test_worker_shows_its_longest_task_and_a_count_of_the_rest() -> None:
    short, long = processor(running="a", seconds=1.0), processor(running="b", seconds=9.0)
    assert function_of(WorkerRow(processors=(processor(), short))) == ("fa", 1.0)
    assert function_of(WorkerRow(processors=(short, processor(), long))) == ("fb +1", 9.0)
    assert function_of(WorkerRow()) == ("", 0.0)
    nameless = ProcessorRow(1, running="0123456789abcdef", running_seconds=2.0)
    assert function_of(WorkerRow(processors=(nameless,))) == ("task 01234567", 2.0)


def test_worker_problem_is_one_word() -> None:
    assert WorkerRow().state == ""
    assert WorkerRow(draining=True).state == "ends"
    assert WorkerRow(quarantined=True, draining=True).state == "held"
    assert WorkerRow(connected=False, quarantined=True).state == "away"
