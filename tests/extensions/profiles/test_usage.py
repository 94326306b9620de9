"""Attribution of a processor's memory to functions."""

from __future__ import annotations

from scaler.extensions.profiles.agent import take_functions
from scaler.extensions.profiles.usage import MAX_FUNCTIONS, MAX_REPORTED, MemoryUsage, ProcessorSample
from scaler.protocol.messages import FunctionUse
from tests.unit.worker.story import Story, task_id


def sampled(*samples: ProcessorSample) -> dict[str, FunctionUse]:
    """Return the reports after these samples of one processor, by function."""
    usage = MemoryUsage()
    for sample in samples:
        usage.take({1: sample})
    return {use.function: use for use in usage.report()}


def test_running_task_counts_with_its_processors_memory() -> None:
    (use,) = sampled(ProcessorSample(10, 10, "f", []), ProcessorSample(30, 30, "f", ["f"])).values()
    assert (use.samples, use.mean_bytes, use.peak_bytes) == (2, 20, 30)


def test_peak_between_two_samples_counts_for_the_only_function_that_ran() -> None:
    found = sampled(
        ProcessorSample(10, 10, "f", []),
        ProcessorSample(10, 500, "f", ["f"]),  # f had 500
        ProcessorSample(10, 900, "f", ["f", "g"]),  # either may have had 900
        ProcessorSample(10, 900, "g", ["f"]),
    )
    assert (found["f"].peak_bytes, found["g"].peak_bytes) == (500, 0)


def test_leftovers_of_a_task_do_not_count_as_memory_of_the_next_function() -> None:
    found = sampled(
        ProcessorSample(20, 20, "small", []),
        ProcessorSample(217, 217, "reduce", ["small"]),  # either may have had it
        ProcessorSample(217, 217, "small", []),
        ProcessorSample(217, 217, "small", ["small"]),
    )
    assert (found["small"].peak_bytes, found["small"].mean_bytes) == (20, 20)
    assert found["reduce"].peak_bytes == 0


def test_keeps_recently_used_functions_and_a_small_report() -> None:
    usage = MemoryUsage()
    for number in range(MAX_FUNCTIONS + 10):
        usage.take({1: ProcessorSample(1, 1, f"f{number}", [])})
    reports = [usage.report() for _ in range(MAX_FUNCTIONS // MAX_REPORTED)]
    assert all(len(report) == MAX_REPORTED for report in reports)
    assert usage.report() == []
    assert {use.function for report in reports for use in report} == {f"f{n}" for n in range(10, MAX_FUNCTIONS + 10)}


def test_early_memory_peak_is_attributed_to_the_right_task() -> None:
    found = sampled(
        ProcessorSample(10, 10, "", ()), ProcessorSample(90, 90, "", ()), ProcessorSample(20, 90, "", ("large",))
    )
    assert found["large"].peak_bytes == 90


def test_processors_task_is_known_between_its_result_reports() -> None:
    story = Story()

    def seen() -> tuple[bytes, tuple[str, set[str]]]:
        snapshots = story.snapshots()
        return story.pool.statuses(snapshots, story.now)[1][2], take_functions(story.pool.processors[1], snapshots[1])

    story.run(1, 2, 3, name="f")
    story.work()
    assert seen() == (b"", ("", {"f"}))
    story.hands[1].begin(story.now)
    assert seen() == (task_id(2), ("f", set()))
    story.hands[1].finish()
    story.hands[1].begin(story.now)
    assert seen() == (task_id(3), ("f", {"f"}))
