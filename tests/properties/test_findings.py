"""On synthetic runs with known causes, every finding is right and founded, and none contradicts another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from scaler.monitor.cluster_rows import FindingRow
from scaler.monitor.findings import MAX_FINDINGS, findings
from tests.unit.monitor.synthetic_run import Load, Manager, Run

ROOT = Path(__file__).parents[2]
shares = st.sampled_from([0.0, 0.04, 0.3, 0.6, 1.0])


@st.composite
def loads(draw: st.DrawFn, name: str) -> Load:
    return Load(
        name,
        per_second=draw(st.sampled_from([0, 1, 30, 1_500, 20_000])),
        seconds=draw(st.sampled_from([0.0001, 0.0019, 0.008, 0.5, 30.0])),
        failed_share=draw(shares),
        messages=draw(st.integers(1, 3)),
        inputs_share=draw(shares),
        ready=draw(st.sampled_from([0, 3, 100_000])),
        needs=draw(st.sampled_from(["", "gpu=1"])),
        age_seconds=draw(st.sampled_from([1.0, 61.0, 500.0])),
        running=draw(st.integers(0, 4)),
        ran=draw(st.booleans()),
    )


managers = st.builds(
    Manager,
    name=st.sampled_from(["a", "b"]),
    units=st.sampled_from([4, 4, 1, 0]),
    max_slots=st.sampled_from([8, 8, -1, 0, 2, 64]),
    pending=st.sampled_from([0, 0, 1]),
    trouble=st.sampled_from(["", "", "no quota"]),
)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    workers = draw(st.integers(0, 4))
    found = [draw(loads(f"f{number}")) for number in range(draw(st.integers(0, 3)))]
    are_taken = draw(st.booleans())
    if found and are_taken:  # tasks of the first function occupy all slots
        pairs = [(0, 30.0), (2, 4.0), (1_500, 0.002), (5_000, 0.0005), (20_000, 0.0001)]
        per_second, seconds = draw(st.sampled_from(pairs))
        taken = replace(
            found[0], running=2 * workers, per_second=per_second, seconds=seconds, needs="", ready=1_000_000
        )
        found = [
            replace(taken, failed_share=draw(st.sampled_from([0.0, 0.0, 0.6]))),
            *(replace(load, running=0, per_second=0) for load in found[1:]),
        ]
    return Run(
        found,
        draw(st.lists(st.just(Manager(max_slots=8)) | managers, max_size=2, unique_by=lambda manager: manager.name)),
        workers=workers,
        scheduler_percent=draw(st.sampled_from([3.0, 79.0, 81.0, 100.0])),
        stored_share=draw(st.sampled_from([0.0, 0.5, 0.95])),
        spilled_bytes=draw(st.sampled_from([0, 10])),
        spend_limit=draw(st.sampled_from(["", "", "spend_limit: 5.00 of 5.00 per hour has been spent"])),
        bad_worker=draw(st.sampled_from([None] * 5 + list(range(workers)))),
        cancelled_per_second=draw(st.sampled_from([0, 0, 0, 2_000])),
        suspended=draw(st.sampled_from([0, 0, 1])),
        states=draw(st.sampled_from([31, 31, 31, 21, 20, 9, 1])),
    )


def truth(run: Run, row: FindingRow) -> bool:
    """Return whether the advice would help, based on the run and not on a monitor's view."""
    by_name: Mapping[str, Load] = {load.name: load for load in run.loads}
    work = sum(load.per_second * load.seconds for load in run.loads)
    ended = sum(load.per_second for load in run.loads)
    load = by_name.get(row.subject, Load())
    others = [each for each in run.loads if each is not load]
    match row.kind:
        case "short_tasks":  # slots lose time between tasks that map would batch
            is_alone = not any(each.running or each.per_second > load.per_second / 50 for each in others)
            return is_alone and load.seconds <= 0.002 and work < 0.71 * run.slots and load.running >= 0.9 * run.slots
        case "busy_scheduler":
            return run.scheduler_percent >= 80 and ended >= 900 and work / ended <= 0.0125
        case "managers_full":  # more slots would help, and no manager may start any
            can_grow = any(each.pending or each.max_slots < 0 or each.trouble for each in run.managers) or any(
                each.units * 2 + 2 <= each.max_slots for each in run.managers
            )
            plain = sum(each.ready for each in run.loads if not each.needs)
            return not can_grow and plain > 0 and run.running >= 0.9 * run.slots and not run.spend_limit
        case "slow_inputs":
            return load.inputs_share >= 0.5 and load.seconds * load.inputs_share >= 0.01 and load.ran
        case "lacking_capabilities":
            return bool(load.needs) and load.ready > 0 and run.slots > run.running and not run.spend_limit
        case "failing_worker":
            healthy = any(each.failed_share <= 0.5 for each in run.loads)
            return row.subject == f"grid-{run.bad_worker}" and healthy
        case "failing_function":  # the function itself fails, and not one worker
            is_only = run.workers == 1  # then either may be the cause
            return load.ran and (load.failed_share >= 0.5 or is_only) and (load.messages == 1 or is_only)
        case "full_storage":
            return run.stored_share >= 0.9 and not run.spilled_bytes
    return False


@example(Run([Load("f0", 20, 0.5, running=4, ready=100_000, age_seconds=90, failed_share=1.0)], [Manager(max_slots=8)]))
@example(Run([Load("f0", 20_000, 0.0001, running=8)], scheduler_percent=100, stored_share=0.95))
@given(runs())
def test_advice_is_never_wrong_unfounded_or_contradictory(run: Run) -> None:
    found = findings(run.model())
    kinds = {row.kind for row in found}
    for row in found:
        assert truth(run, row), row
        assert re.search(r"\d", row.text), row
        assert row.text.strip() == row.text, row
        assert row.advice.endswith("."), row
        assert 0 <= row.slots_lost <= run.slots, row
    assert len(found) <= MAX_FINDINGS
    assert [row.slots_lost for row in found] == sorted((row.slots_lost for row in found), reverse=True)
    assert len({(row.kind, row.subject) for row in found}) == len(found)
    # The limit is exactly one of overhead, the number of slots, and the capabilities of slots.
    assert len(kinds & {"short_tasks", "busy_scheduler", "managers_full", "lacking_capabilities"}) <= 1
    assert not found or run.states >= 21


def test_every_finding_links_to_a_documentation_section() -> None:
    pages = re.findall(r'"docs/([\w-]+\.md)(?:#([\w-]+))?"', (ROOT / "scaler/monitor/findings.py").read_text())
    assert len(pages) >= 6
    for page, anchor in pages:
        headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, f"docs/{page} has no part #{anchor}"


def test_longer_tasks_and_fewer_failures_clear_the_advice() -> None:
    run = Run([Load("f0", 20_000, 0.0001, running=8)])
    assert findings(run.model())
    assert not findings(replace(run, loads=[Load("f0", 80, 0.1, running=8)]).model())
