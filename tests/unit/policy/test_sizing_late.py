"""What a manager whose tasks begin late says when it gets none."""

from __future__ import annotations

import pytest

from scaler.needs import Needs, Offers
from scaler.policy.sizing import Sizing
from scaler.policy.view import ClusterView, Demand, ManagerView


@pytest.mark.parametrize(("tasks", "gets_some"), [(60, False), (400, True)])
def test_a_late_manager_says_when_its_tasks_begin_and_whether_others_end_the_work_sooner(
    tasks: int, gets_some: bool
) -> None:
    laptop = ManagerView("laptop", "test", Offers(), 2, 1, 2, idle_seconds=(0.0, 0.0))
    jobs = ManagerView("cloud", "test", Offers(), 100, 100, 1, idle_seconds=(0.0,), dispatch_seconds=45.0)
    work = Demand(Needs(), "f", queued=tasks, running=0, task_seconds=1.0)
    answer = Sizing().plan(ClusterView(0.0, (work,), (laptop, jobs)), {"laptop": 2, "cloud": 1})
    reason = answer["cloud"].reason
    assert "its tasks begin after about 45 s" in reason
    assert ("and other slots end 60 s of work in 60 tasks of f() about as soon" in reason) is not gets_some
    assert ("of them here" in reason) is gets_some
