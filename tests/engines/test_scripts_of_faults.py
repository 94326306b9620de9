"""The script of faults: which request meets which."""

from __future__ import annotations

import pytest

from scaler.errors import UsageError
from scaler.testing.aws import Error, Partial, Slow, Throttle
from scaler.testing.aws.faults import Faults


def test_the_first_rule_that_matches_decides_until_it_is_used_up() -> None:
    faults = Faults()
    throttle = faults.add("RunTask", Throttle(), times=2)
    faults.add("RunTask", Slow(1.0))
    assert [faults.take("ecs", "RunTask") for _ in range(4)] == [Throttle(), Throttle(), Slow(1.0), None]
    assert (throttle.used, throttle.left) == (2, 0)


@pytest.mark.parametrize("operation", ["TagResource", "ecs:TagResource", "ecs:*", "*"])
def test_a_rule_names_an_operation_a_service_or_all(operation: str) -> None:
    faults = Faults()
    faults.add(operation, Error("ServerException"), times=None)
    assert faults.take("ecs", "TagResource") == Error("ServerException")


def test_a_rule_of_one_service_spares_the_others() -> None:
    faults = Faults()
    faults.add("ecs:TagResource", Throttle(), times=None)
    assert faults.take("batch", "TagResource") is None
    faults.clear()
    assert faults.take("ecs", "TagResource") is None


def test_all_requests_are_counted() -> None:
    faults = Faults()
    faults.add("PutObject", Throttle())
    for _ in range(3):
        faults.take("s3", "PutObject")
    assert faults.calls()["PutObject"] == 3


def test_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="Partial"):
        Faults().add("ListTasks", Partial(1))
    with pytest.raises(UsageError, match="times"):
        Faults().add("ListTasks", Throttle(), times=0)
