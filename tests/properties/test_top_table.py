"""The worker table of scaler_top and the parts around it."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich import cells as rich_cells

from scaler.monitor.cluster_rows import ProcessorRow, TaskRow, WorkerRow
from scaler.monitor.model import Model
from scaler.monitor.rows import decode_status
from scaler.monitor.top import panels
from scaler.monitor.top.formats import cell_len
from scaler.monitor.top.panels import task_lines
from scaler.monitor.top.table import BY_KEY, COLUMNS, Sorting, matching, sort, table


def worker(name: str, *, cpu: float = 0.0, function: str = "", **more: Any) -> WorkerRow:
    running: Any = {"running": "ab" * 16, "running_seconds": 2.5, "function": function} if function else {}
    processor = ProcessorRow(7, cpu_percent=cpu, rss_bytes=1024**2, initialized=True, **running)
    return WorkerRow(id=f"id-{name}", name=name, processors=(processor,), **more)


def names(rows: list[WorkerRow]) -> list[str]:
    return [row.name for row in rows]


ROWS = [worker("b", cpu=5.0), worker("a", cpu=50.0), worker("c", cpu=5.0)]


def test_figures_sort_descending_and_names_ascending() -> None:
    assert names(sort(ROWS, Sorting(BY_KEY["c"]))) == ["a", "b", "c"]
    assert names(sort(ROWS, Sorting(BY_KEY["n"]))) == ["a", "b", "c"]


def test_repeating_a_key_reverses_the_order_unlike_another_key() -> None:
    by_cpu = Sorting(BY_KEY["c"])
    turned = by_cpu.by(BY_KEY["c"])
    assert names(sort(ROWS, turned)) == ["b", "c", "a"]
    assert turned.by(BY_KEY["c"]) == by_cpu
    assert turned.by(BY_KEY["n"]) == Sorting(BY_KEY["n"])
    assert names(sort(ROWS, Sorting(BY_KEY["n"]).by(BY_KEY["n"]))) == ["c", "b", "a"]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.title)
def test_sorted_column_is_marked_and_shown_even_in_narrow_windows(column: object) -> None:
    sorting = Sorting(next(each for each in COLUMNS if each is column))
    for width in (40, 80, 200, None):
        assert f"[{sorting.column.title}]" in table(ROWS, sorting, width)[0]


def test_less_important_columns_are_hidden_at_80_columns_and_none_at_200() -> None:
    narrow, wide = (table(ROWS, Sorting(), width)[0].split() for width in (80, 200))
    assert narrow == [
        "worker", "[cpu]", "rss", "free", "sent", "queued", "lag", "ITL", "function", "seconds"
    ]  # fmt: skip
    titles = [each.title for each in COLUMNS if each.title != "state"]
    assert wide == [f"[{title}]" if title == "cpu" else title for title in titles]


def test_filter_matches_all_names_case_insensitively() -> None:
    rows = [
        worker("alpha", manager="Fleet"),
        worker("beta", capabilities="gpu=2", function="Reprice"),
        worker("gamma", draining=True),
    ]
    for wanted, found in (("FLEET", ["alpha"]), ("gpu", ["beta"]), ("reprice ", ["beta"]), ("ends", ["gamma"])):
        assert names(matching(rows, wanted)) == found
    assert names(matching(rows, "")) == ["alpha", "beta", "gamma"]
    assert matching(rows, "nowhere") == []


@pytest.mark.parametrize("text", ["plain", "naïve", "e\u0301", "工作", "ᄒ\u1161\u11ab", "👍🏻", "🇩🇪", "हिन्दी"])
def test_texts_have_their_display_width(text: str) -> None:
    assert cell_len(text) == rich_cells.cell_len(text)


TEXTS = st.text(max_size=40)


def worker_row(values: dict[str, Any]) -> WorkerRow:
    return WorkerRow(**values)


KINDS: dict[str, st.SearchStrategy[Any]] = {"sent": st.integers(0, 2**70)}
KINDS |= dict.fromkeys(("id", "name", "manager", "capabilities", "fault"), TEXTS)
KINDS |= dict.fromkeys(("agent_cpu_percent", "latency_seconds"), st.floats(-1e30, 1e30))


@given(
    st.lists(st.fixed_dictionaries(KINDS).map(worker_row), max_size=5), st.sampled_from(COLUMNS), st.integers(1, 250)
)
def test_every_line_has_the_exact_width_and_no_terminal_controls(
    rows: list[WorkerRow], column: object, width: int
) -> None:
    sorting = Sorting(next(each for each in COLUMNS if each is column))
    head, *lines = table(sort(rows, sorting), sorting, width)
    assert len(lines) == len(rows)
    for line in lines:
        assert all(each.isprintable() or unicodedata.category(each) == "Zs" for each in line)
        assert cell_len(line) == cell_len(head)
        assert cell_len(line) <= width or len(head.split()) <= 2


def model_of(**parts: object) -> Model:
    model = Model()
    model.apply_status({"version": 1, "at": 100.0, "incarnation": 1, **parts})
    return model


def test_four_panels_fit_in_80_columns_and_mark_truncation() -> None:
    model = model_of(
        scheduler={"cpu_percent": 0.5, "rss_bytes": 136_419_737},
        tasks={"ready": 3, "running": 2, "ended": {"done": 53_704, "exception": 14, "cancelled": 48}},
        messages={"sent": {f"AMessageKindWithALongName{n}": 10**n for n in range(9)}, "received": {"Submit": 53_764}},
    )
    lines = panels.beside(panels.panels(model.status, 12.0), 80, 7)
    assert len(lines) == 7
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    for part in ("scheduler", "cpu   0.5%", "rss 130.1m", "53,704", "AMessage", "+", "4 more", "Submit"):
        assert part in text
    rows = dict(panels.panels(model.status, 12.0)[1].pairs)
    assert (rows["failed"], rows["cancelled"], rows["exception"], rows["per second"]) == ("14", "48", "14", "12")


def test_scheduler_without_authentication_warns_first() -> None:
    model = model_of(scheduler={"insecure_no_auth": True}, totals={"workers": 2, "slots": 4})
    assert panels.totals(model.status, 2, 2, "") == (
        "NO AUTHENTICATION: any process can run code here; Total 2 workers, 4 slots"
    )
    assert "NO AUTHENTICATION" in panels.as_text(model, 80)


def test_full_disk_has_its_own_line() -> None:
    full = "state_directory: cannot write to /x: No space left on device"
    model = model_of(
        scheduler={"disk_failure": full, "journal_bytes": 1 << 26},
        storage={"address": "tcp://h:1", "spilled_bytes": 3 << 20, "state_bytes": 5 << 20},
        totals={"workers": 2, "slots": 4},
    )
    lines = panels.as_text(model, 120).splitlines()
    assert lines[lines.index(f"DISK: {full}") + 1].startswith("Total 2 workers")
    (scheduler, *_) = panels.panels(model.status)
    assert dict(scheduler.pairs).items() >= {"spill": "3.0m", "state": "5.0m", "journal": "64.0m"}.items()
    assert panels.disk_failures(model_of().status) == []


EVIL = "w\x1b]0;owned\x07\nnew line\r"


def test_json_report_has_the_rows_and_sums_of_the_table() -> None:
    row = {"id": "1", "name": EVIL, "processors": [{"pid": 9, "cpu_percent": 4.0, "initialized": True}] * 2}
    model = model_of(workers=[row], messages={"sent": {"Run": 5}})
    document = json.loads(panels.as_json(model, "tcp://h:1"))
    assert (document["version"], document["address"], document["messages"]["sent"]) == (1, "tcp://h:1", {"Run": 5})
    only = document["workers"][0]
    assert (only["name"], only["cpu_percent"], only["itl"], only["function"]) == (EVIL, 8.0, "100", "")


def test_worker_lists_running_tasks_first_then_recent_ones() -> None:
    status = decode_status(
        {"workers": [{"name": "w", "processors": [
            {"pid": 1, "running": "aa", "running_seconds": 1.0, "function": "quick"},
            {"pid": 2},
            {"pid": 3, "running": "bb", "running_seconds": 5.0, "function": "slow", "suspended": True},
        ]}]}
    )  # fmt: skip
    recent = [TaskRow("bb", "running"), TaskRow("cc", "exception", "odd", ended_at=1.0, text="ValueError: \x1b[2J")]
    listed = task_lines(status.workers[0], recent)
    assert list(listed) == ["bb", "aa", "cc"]
    assert "suspended" in listed["bb"]
    assert listed["cc"].endswith(r"odd ValueError: \x1b[2J")
