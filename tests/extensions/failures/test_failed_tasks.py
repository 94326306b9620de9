"""Groups of failed tasks, and their retention."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.extensions.failures.monitor import FailedTasks
from scaler.monitor import model as model_module
from scaler.monitor.model import Model
from scaler.texts import pattern
from tests.unit.monitor.web_rig import events, task


def failed(number: int, text: str, function: str = "calibrate", **more: Any) -> list[Any]:
    return task(f"{number:032x}", "exception", text=text, function=function, ended_at=float(number), **more)


def groups(model: Model) -> list[tuple[int, str, str]]:
    return [(group.times, group.text, group.function) for group in model.part(FailedTasks).groups()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ValueError: smile 31 has no value at -1.5e-05", "ValueError: smile … has no value at …"),
        ("KeyError: 'bond_0421'", "KeyError: 'bond_…'"),
        ("OSError: <Curve object at 0x7f00AB> is gone", "OSError: <Curve object at …> is gone"),
        ("no trade 5f0a6d1c9e3b4f2788aa41d07c3e9b15", "no trade …"),
        ("no trade 0b5f8a52-6d1c-4f27-88aa-41d07c3e9b15 in 10:31:07.25", "no trade … in …"),
        ("a deadbeat facade, decade by decade", "a deadbeat facade, decade by decade"),
        ("first line 1\nsecond line", "first line …"),
    ],
)
def test_numbers_ids_and_addresses_do_not_distinguish_messages(text: str, expected: str) -> None:
    assert pattern(text) == expected


def test_failures_are_grouped_by_function_and_message_newest_first() -> None:
    model = Model()
    model.apply_events(events(9.0, *(failed(number, f"ValueError: smile {number}") for number in range(1, 32))))
    model.apply_events(events(9.0, failed(40, "ValueError: smile 7", "price"), failed(41, "OSError: no disk")))
    model.apply_events(events(9.0, failed(42, "OSError: no disk"), failed(43, "ValueError: smile 43")))
    assert groups(model) == [
        (32, "ValueError: smile …", "calibrate"),
        (2, "OSError: no disk", "calibrate"),
        (1, "ValueError: smile 7", "price"),
    ]
    newest = model.part(FailedTasks).groups()[0]
    assert (newest.first_at, newest.last_at, newest.task) == (1.0, 43.0, f"{43:032x}")
    assert [int(each.id, 16) for each in model.tasks(failure=newest.key, limit=3)] == [43, 31, 30]


def test_failures_are_kept_despite_later_successes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "MAX_TASKS", 20)
    model = Model()
    model.apply_events(events(9.0, failed(1, "ValueError: smile 1"), *(task(f"done{n}") for n in range(40))))
    assert groups(model) == [(1, "ValueError: smile 1", "calibrate")]
    assert [each.id for each in model.tasks(state="failed")] == [f"{1:032x}"]
    assert model.task(f"{1:032x}") is not None
    assert model.task_count == 21


def test_task_with_a_failed_input_does_not_count_as_a_failure() -> None:
    document = events(9.0, failed(1, "ValueError: smile 1"))
    document["tasks"]["columns"] = [*document["tasks"]["columns"], "failed_input"]
    document["tasks"]["rows"] = [[*failed(1, "no"), ""], [*failed(2, "did not run"), f"{1:032x}"]]
    model = Model()
    model.apply_events(document)
    assert groups(model) == [(1, "no", "calibrate")]
    assert len(model.tasks(state="failed")) == 2
