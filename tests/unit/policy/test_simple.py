"""Valid values of `policy_content` for the policy `simple`."""

from __future__ import annotations

import pytest

from scaler.errors import UsageError
from scaler.needs import Needs, Offers
from scaler.policy.load import load_policy
from scaler.policy.simple import SimplePolicy
from scaler.policy.view import ClusterView, Demand, ManagerView


def test_scaling_no_starts_and_stops_nothing() -> None:
    view = ManagerView("m", "fake", Offers(), 3, max_slots=8, unit_slots=1, idle_seconds=(1000.0,) * 3)
    demand = (Demand(Needs(), "f", 100, 0, 60.0),)
    for tasks in ((), demand):
        assert SimplePolicy("scaling=no").plan(ClusterView(0, tasks, (view,)))["m"].units == 3


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("alocate=even_load", r"key 'alocate' is unknown; did you mean 'allocate'\?"),
        ("scaling=vanila", r"scaling 'vanila' is unknown; did you mean 'vanilla'\?"),
        ("allocate=even", r"allocate 'even' is unknown; did you mean 'even_load'"),
        ("scaling", r"'scaling': write key=value"),
        ("scaling=no; scaling=vanilla", r"'scaling' is given twice"),
    ],
)
def test_bad_content_error_lists_known_and_similar_names(content: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SimplePolicy(content)


def test_unknown_policy_error_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"policy_engine_type 'waterfall' is unknown; did you mean 'waterfall_v1'\?"):
        load_policy("waterfall", "")
