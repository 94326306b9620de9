"""Findings: each has its evidence, and is absent just below its limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler.monitor.cluster_rows import FindingRow
from scaler.monitor.findings import findings
from scaler.monitor.top import panels
from tests.unit.monitor.synthetic_run import Load, Manager, Run
from tests.unit.monitor.web_rig import PreparedMonitor, ask


def kinds(run: Run) -> list[str]:
    return [row.kind for row in findings(run.model())]


def only(run: Run) -> FindingRow:
    (row,) = findings(run.model())
    return row


TINY = Load("tiny", per_second=20_000, seconds=0.0002, running=8, ready=500)
"""At 8 slots: half of their time is between tasks."""
SHORT = Run([TINY])
SCHEDULER = Run([Load("quick", 1_200, 0.004, running=5)], scheduler_percent=85)
QUEUE = Load("long", per_second=2, seconds=4.0, running=8, ready=600, age_seconds=90)
FULL = Run([QUEUE], [Manager(max_slots=8)])
INPUTS = Run([Load("read", 20, 0.2, running=4, inputs_share=0.6)])
NEEDS = Run([Load("train", needs="gpu=1", ready=4, age_seconds=61), Load("other", 2, 1.0, running=2)])
BAD_WORKER = Run([Load("work", 20, 0.2, running=4)], bad_worker=2)
BAD_FUNCTION = Run([Load("buggy", 20, 0.2, running=4, failed_share=0.6)])
STORED = Run(stored_share=0.92)


def test_healthy_or_idle_cluster_needs_no_change() -> None:
    assert kinds(Run()) == []
    assert kinds(Run([Load("f", 80, 0.1, running=8, ready=100)])) == []
    assert kinds(Run([], [], workers=0)) == []


def test_tasks_shorter_than_their_overhead_should_use_map() -> None:
    row = only(SHORT)
    assert (row.kind, row.subject) == ("short_tasks", "tiny")
    assert row.text == (
        "600,000 tasks of tiny() ended in the last 30 s and took 0.2 ms on average: 50 % of the time of 8 slots "
        "was spent between tasks."
    )
    assert "client.map" in row.advice
    assert row.slots_lost == pytest.approx(4)


@pytest.mark.parametrize(
    "changed",
    [
        Run([replace(TINY, seconds=0.0003)]),  # 25 % between tasks
        Run([replace(TINY, per_second=1_200, seconds=0.0021)]),
        Run([replace(TINY, per_second=33)]),
        Run([replace(TINY, running=7)]),  # a slot had no task
        Run([replace(TINY, running=7), Load("slow", running=1)]),  # whose time is not known before its end
        replace(SHORT, suspended=1),
        Run([replace(TINY, per_second=100)], cancelled_per_second=20_000),  # which took no time
        replace(SHORT, states=10, interval=2.0),
        replace(SHORT, states=9, interval=4.0),
    ],
)
def test_short_tasks_are_a_finding_only_with_proven_costs(changed: Run) -> None:
    assert "short_tasks" not in kinds(changed)


def test_more_slots_are_not_advised_while_overhead_dominates() -> None:
    waiting = replace(TINY, ready=10_000_000, age_seconds=300)
    assert kinds(Run([waiting], [Manager(max_slots=8)])) == ["short_tasks"]
    quick = Load("quick", 1_200, 0.004, running=8, ready=1_000_000, age_seconds=300)
    assert kinds(Run([quick], [Manager(max_slots=8)])) == ["managers_full"]
    assert kinds(Run([quick], [Manager(max_slots=8)], scheduler_percent=85)) == ["busy_scheduler"]
    needing = Load("train", needs="gpu=1", ready=4, age_seconds=61)
    assert kinds(Run([replace(quick, running=5), needing], scheduler_percent=85)) == ["busy_scheduler"]


def test_scheduler_busy_with_short_tasks_should_get_fewer() -> None:
    row = only(SCHEDULER)
    assert row.kind == "busy_scheduler"
    assert "at least 85 % of a CPU" in row.text
    assert "1,200 tasks per second that took 4 ms" in row.text
    assert kinds(replace(SCHEDULER, scheduler_percent=79)) == []
    assert kinds(replace(SCHEDULER, loads=[Load("quick", 999, 0.004, running=5)])) == []
    assert kinds(replace(SCHEDULER, loads=[Load("quick", 1_200, 0.011, running=5)])) == []  # map would send each alone
    assert kinds(replace(SCHEDULER, odd_state={"scheduler": {"cpu_percent": 20.0}})) == []


def test_work_waiting_for_managers_at_their_limit_names_the_limit() -> None:
    row = only(FULL)
    assert row.kind == "managers_full"
    assert row.text == (
        "600 tasks wait for a slot, enough for 5 min at the current rate. Slot limits of worker managers are reached: "
        "grid 8 of 8."
    )
    assert "max_task_concurrency" in row.advice
    stuck = replace(QUEUE, per_second=0)
    assert "none ended in the last 30 s" in only(replace(FULL, loads=[stuck])).text
    two = [Manager("a", 2, max_slots=4), Manager("b", 2, max_slots=5)]
    assert (
        "Slot limits of worker managers are reached: a 4 of 4 and b 4 of 5." in only(replace(FULL, managers=two)).text
    )


@pytest.mark.parametrize(
    "changed",
    [
        replace(FULL, loads=[replace(QUEUE, ready=239)]),  # 119.5 s
        replace(FULL, loads=[replace(QUEUE, age_seconds=59)]),
        replace(FULL, loads=[replace(QUEUE, running=7)]),
        replace(FULL, loads=[replace(QUEUE, needs="gpu=1")]),  # more slots of this manager may not offer that
        replace(FULL, managers=[Manager(max_slots=10)]),
        replace(FULL, managers=[Manager(max_slots=-1)]),
        replace(FULL, managers=[Manager(max_slots=8, pending=1)]),
        replace(FULL, managers=[Manager(max_slots=8, trouble="no quota")]),
        replace(FULL, managers=[Manager(max_slots=8), Manager("cloud", 0)]),
        replace(FULL, managers=[]),
        replace(FULL, spend_limit="spend_limit: 5 of 5 per hour"),
        replace(FULL, odd_state={"tasks": {"running": 8, "ready": 0}}),
    ],
)
def test_limit_is_not_a_finding_if_another_cause_delays_work(changed: Run) -> None:
    assert kinds(changed) == []


def test_tasks_that_mostly_wait_for_their_inputs_are_a_finding() -> None:
    row = only(INPUTS)
    assert (row.kind, row.subject) == ("slow_inputs", "read")
    assert row.text == (
        "240 of the last 240 listed tasks of read() waited for stored inputs (10 MiB on average), for 60 % of their "
        "total duration."
    )
    assert row.slots_lost == pytest.approx(0.6 * 4)
    assert kinds(Run([Load("read", 20, 0.2, running=4, inputs_share=0.49)])) == []
    assert kinds(Run([Load("read", 20, 0.016, running=4, inputs_share=0.6)])) == []  # 9.6 ms


def test_idle_slots_are_a_finding_while_tasks_need_unoffered_capabilities() -> None:
    row = only(NEEDS)
    assert (row.kind, row.subject) == ("lacking_capabilities", "train")
    assert "4 tasks of train() that need gpu=1 wait, the oldest for 61 s" in row.text
    assert "at least 6 of 8 slots had no task in the last 30 s: no worker offers gpu=1." in row.text
    train, other = NEEDS.loads
    assert kinds(replace(NEEDS, loads=[replace(train, age_seconds=59), other])) == []
    assert kinds(replace(NEEDS, loads=[train, replace(other, running=7)])) == []
    assert kinds(replace(NEEDS, loads=[replace(train, needs=""), other])) == []
    assert kinds(replace(NEEDS, managers=[Manager(pending=1)])) == []
    assert kinds(replace(NEEDS, odd_state={"tasks": {"running": 8}})) == []


def test_worker_failing_where_others_succeed_is_blamed_not_the_function() -> None:
    row = only(BAD_WORKER)
    assert (row.kind, row.subject) == ("failing_worker", "grid-2")
    assert row.text == "Worker grid-2: 100% of its tasks of work() fail."
    assert kinds(replace(BAD_WORKER, workers=2, bad_worker=1)) == []  # either one may be the bad one
    assert "failing_worker" not in kinds(Run([Load("work", 20, 0.2, running=4, failed_share=0.6)], bad_worker=2))


def test_function_that_keeps_failing_with_one_message_is_a_finding() -> None:
    row = only(BAD_FUNCTION)
    assert (row.kind, row.subject) == ("failing_function", "buggy")
    assert "360 of 600 tasks of buggy() that ended in the last 30 s failed" in row.text
    assert row.text.endswith("have the message: ValueError: bad a")
    load = BAD_FUNCTION.loads[0]
    assert f'client.replay("{0:016x}' in row.advice
    assert kinds(Run([replace(load, failed_share=0.45)])) == []
    assert kinds(Run([replace(load, messages=2)])) == []
    assert kinds(Run([replace(load, ran=False)])) == []  # their inputs must be corrected


def test_object_storage_near_its_limit_is_a_finding() -> None:
    row = only(STORED)
    assert row.kind == "full_storage"
    assert "942 MiB of 1.0 GiB, and was at least 92 % full" in row.text
    assert kinds(Run(stored_share=0.89)) == []
    assert kinds(replace(STORED, spilled_bytes=1)) == []
    assert kinds(replace(STORED, odd_state={"storage": {"bytes": 1, "limit_bytes": 2}})) == []


def test_at_most_three_findings_are_shown_costliest_first() -> None:
    bad = Load("buggy", 20, 0.1, failed_share=0.6, inputs_share=0.6, running=2)
    run = Run([bad, NEEDS.loads[0]], stored_share=0.95)
    found = findings(run.model())
    assert [row.kind for row in found] == ["full_storage", "lacking_capabilities", "failing_function"]
    assert [row.slots_lost for row in found] == sorted((row.slots_lost for row in found), reverse=True)


def test_monitors_show_findings_with_advice_in_a_terminal() -> None:
    model = replace(BAD_WORKER, stored_share=0.95).model()
    answer = ask("/api/findings", PreparedMonitor(model)).json()["findings"]
    assert [row["kind"] for row in answer] == ["full_storage", "failing_worker"]
    line = panels.first_finding(model)
    assert line.startswith("Release futures")
    assert "973 MiB of 1.0 GiB" in line
    assert panels.first_finding(Run().model()) == ""
