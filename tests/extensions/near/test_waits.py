"""How long a task waits for a worker with its name."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from scaler.extensions.near.core import Name, Names
from scaler.protocol.messages import Outcome


class Fake(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def worker(busy: int, slots: int = 1, load: float = 0.0, at: float = 0.0) -> Any:
    return Fake(
        busy=busy, slots=slots, load=load, by_function={}, progress=SimpleNamespace(at=at), is_willing=True, offers=None
    )


def task(*, fits: bool = True) -> Any:
    needs = SimpleNamespace(fits=lambda _offers: fits, near="near:x")
    return SimpleNamespace(group=SimpleNamespace(timing=Fake(seconds=0.1)), needs=needs)


def test_gain_is_unknown_until_a_later_task_is_measured() -> None:
    assert Name(first=1.0).gain == 0.0
    assert Name(first=1.0, later=0.25).gain == 0.75
    assert Name(first=0.25, later=1.0).gain == 0.0


@pytest.mark.parametrize(("busy", "slots", "seconds"), [(1, 2, 0.0), (1, 1, 0.3), (3, 1, 0.3), (3, 2, 0.1)])
def test_task_waits_for_those_before_it_on_a_slot(busy: int, slots: int, seconds: float) -> None:
    assert Name().wait(worker(busy, slots, load=0.3), task(), 0.0) == pytest.approx(seconds)


def test_task_behind_an_overdue_one_waits_as_long_as_that_has_run() -> None:
    assert Name().wait(worker(1, load=0.3), task(), 0.2) == pytest.approx(0.1)
    assert Name().wait(worker(1, load=0.3), task(), 2.0) == pytest.approx(2.0)
    assert Name(later=0.2).wait(worker(1, load=0.3, at=1.0), task(), 0.0) == pytest.approx(0.3)


def test_only_workers_that_fit_will_start_a_task() -> None:
    name = Name({worker(0): None}, later=0.1)
    assert name.startable(task(), 0.35, 0.0) == 4
    assert name.startable(task(fits=False), 0.35, 0.0) == name.startable(task(), 0.0, 0.0) == 0
    assert Name({worker(0): None}, later=0.01).startable(task(), 0.35, 0.0) == 36


def test_worker_with_several_slots_starts_more_tasks_in_the_same_time() -> None:
    assert Name({worker(0, slots=2): None}, later=0.1).startable(task(), 0.36, 0.0) == 8


def test_queued_task_moves_to_an_idle_worker_that_has_its_name_too() -> None:
    names, busy, idle = Names(), worker(2, load=0.3), worker(0)
    names.names["near:x"] = Name({busy: None}, first=1.0, later=0.1)
    assert not names.may_move(task(), busy, idle, 0.0)
    assert names.may_move(task(), worker(2, load=0.3), idle, 0.0), "its worker has not run the name"
    busy.load = 0.9  # a wait of exactly the gain
    assert not names.may_move(task(), busy, idle, 0.0)
    names.names["near:x"].workers[idle] = None
    assert names.may_move(task(), busy, idle, 0.0)


class Ended(Fake):
    def __len__(self) -> int:
        return len(self.outcomes)


def test_means_of_first_and_later_tasks_cover_known_successful_tasks() -> None:
    names = Names()
    name = names.names["near:x"] = Name()
    names.lanes["w"] = OrderedDict({"near:x": set()})

    def end(lane: int | None, *seconds: float, near: str = "near:x", outcome: Outcome = Outcome.SUCCESS) -> None:
        ran = None if lane is None else (Fake(lanes=[lane]), 0)
        group = SimpleNamespace(needs=SimpleNamespace(near=near))
        ended: Any = Ended(
            run_groups=[group],
            run_starts=[0],
            outcomes=[outcome] * len(seconds),
            duration_us=[each * 1e6 for each in seconds],
            run_of=lambda _index: ("", "w"),
            ran=lambda _index: ran,
        )
        names.on_changes([ended], SimpleNamespace())  # type: ignore[arg-type]

    end(1, 1.0)
    end(2, 2.0)
    end(1, 0.1, 0.5)
    end(3, 9.0, outcome=Outcome.EXCEPTION)
    end(None, 9.0)
    end(3, 9.0, near="near:forgotten")
    assert (name.first, name.later) == pytest.approx((1.25, 0.2))


def test_explanation_omits_an_unknown_gain_and_an_unknown_name() -> None:
    names, each = Names(), worker(1)
    assert names.why_waits(task()) == ""
    each.name = "w"
    names.names["near:x"] = Name({each: None})
    assert names.why_waits(task()) == "it prefers workers with 'x': w"
