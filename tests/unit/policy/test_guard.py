"""A custom policy that raises or gives invalid answers, through the scheduler's core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scaler.extensions.scaling.elastic import SLOW_POLICY_SECONDS
from scaler.policy.load import SAY_AGAIN_SECONDS
from scaler.policy.view import Allocation, ClusterView, Wanted
from scaler.protocol.messages import Desired, Drain, ManagerStatus
from scaler.scheduler.core.changes import Incident
from scaler.scheduler.core.commands import AskPolicy, PolicyAnswered
from tests.unit.scheduler.driver import Cluster


class Scripted:
    """A policy with scripted answers."""

    allocation = Allocation()

    def __init__(self) -> None:
        self.answer: Callable[[], Any] = lambda: {"m": Wanted(3, "good")}
        self.asked = 0
        self.named_managers: frozenset[str] = frozenset()

    def plan(self, view: ClusterView) -> Any:
        answer = self.answer
        self.asked += 1
        return answer()


class Story:
    """A core that asks a scripted policy, and a manager that receives the targets."""

    def __init__(self, *, fixed: bool = False) -> None:
        self.policy = Scripted()
        self.cluster = Cluster(self.policy, worker_timeout_seconds=1e6)
        self.cluster.manager("m", fixed=fixed)
        self.cluster.say("m", ManagerStatus(0.0, [], ""))

    def pass_plans(self, count: int = 2) -> list[str]:
        """Ask the policy this many times; return the complaints about it."""
        self.cluster.take_facts()
        said: list[str] = []
        until = self.policy.asked + count
        while self.policy.asked < until:
            said += self.pass_time(0.25)
        return said

    def pass_time(self, seconds: float) -> list[str]:
        """Let this time pass in the cluster; return the complaints about the policy."""
        for _ in range(int(seconds / 0.25)):
            self.cluster.wait(0.25, alive=["m", "w"])
        return [fact.text for fact in self.cluster.take_facts() if isinstance(fact, Incident) and fact.kind == "policy"]

    def told(self) -> list[int]:
        return [message.units for name, message in self.cluster.said if isinstance(message, Desired)]


def raise_something() -> None:
    raise ZeroDivisionError("the user's own mistake")


def test_named_managers_that_never_join_are_reported_once() -> None:
    story = Story()
    story.policy.named_managers = frozenset({"m", "clod"})
    assert story.pass_time(9.0) == []
    text = "the scaling policy Scripted names 'clod', but no such worker manager has joined (joined: m)"
    assert story.pass_time(2.0) == [f"{text}: correct the name or start it"]
    assert story.pass_time(2 * SAY_AGAIN_SECONDS) == []


def test_failing_policy_shows_its_traceback_and_keeps_its_last_answer() -> None:
    story = Story()
    assert story.pass_plans() == []
    story.policy.answer = raise_something
    (text,) = story.pass_plans(10)
    assert text.startswith(
        "the scaling policy Scripted raised in plan(); its last valid answer remains in effect:\nTraceback"
    )
    assert "in raise_something" in text
    assert "scaler/policy" not in text
    assert text.endswith("ZeroDivisionError: the user's own mistake")
    assert story.told() == [3]
    story.policy.answer = lambda: {"m": Wanted(4, "good again")}
    assert story.pass_plans() == []
    assert story.told() == [3, 4]


def test_repeated_policy_error_is_logged_every_minute_and_a_new_one_at_once() -> None:
    story = Story()
    story.policy.answer = raise_something
    assert len(story.pass_plans()) == 1
    assert len(story.pass_plans(int(SAY_AGAIN_SECONDS / 0.5) + 1)) == 1
    story.policy.answer = lambda: None
    assert len(story.pass_plans()) == 1


def odd(units: Any, reason: Any) -> Wanted:
    return Wanted(units, reason)


class Hostile(dict[str, Wanted]):
    def items(self) -> Any:
        raise RuntimeError("no items")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "answered None, which is not a dict from manager ids to Wanted"),
        ([Wanted(1, "")], "not a dict from manager ids to Wanted"),
        ({"m": 5}, "answered 5 for the worker manager 'm': not a Wanted object"),
        ({"m": Wanted(-1, "less")}, "units is not between 0 and 1000000"),
        ({"m": Wanted(10**12, "more")}, "units is not between 0 and 1000000"),
        ({"m": odd(2.5, "half")}, "units is not a whole number"),
        ({"m": Wanted(True, "yes")}, "units is not a whole number"),
        ({"m": odd(2, None)}, "reason is not a string"),
        ({"m": Wanted(3, "good"), "n": Wanted(2, "")}, "for the worker manager 'n', which has not joined (joined: m)"),
        ({"m": Wanted(3, "good"), 7: Wanted(2, "")}, "for the worker manager 7, which has not joined (joined: m)"),
        (Hostile(), "RuntimeError: no items"),
    ],
)
def test_invalid_answers_are_reported_and_the_last_valid_one_kept(answer: Any, text: str) -> None:
    story = Story()
    story.pass_plans()
    story.policy.answer = lambda: answer
    (said,) = story.pass_plans(5)
    assert text in said
    story.cluster.manager("m")  # a new session receives it again
    story.cluster.say("m", ManagerStatus(0.0, [], ""))
    assert story.told() == [3, 3]


def test_no_policy_scales_a_fixed_manager() -> None:
    story = Story(fixed=True)
    story.cluster.worker("w", manager_id="m")
    story.policy.answer = lambda: {"m": Wanted(0, "none")}
    (said,) = story.pass_plans(int(SAY_AGAIN_SECONDS / 0.5) + 1)
    assert "'m', which runs a fixed number of units" in said
    desired = [message for _, message in story.cluster.said if isinstance(message, Desired)]
    assert desired == [Desired(1, [], "workers that accept no tasks are replaced", ["unit-w"])]
    assert not any(isinstance(message, Drain) for _, message in story.cluster.said)


def test_slow_policy_is_reported_and_applied_without_a_stall() -> None:
    story = Story()
    story.pass_plans()
    assert story.told() == [3]
    story.cluster.policy = None
    story.cluster.commands.clear()
    said = story.pass_time(SLOW_POLICY_SECONDS + 10)
    assert sum(isinstance(command, AskPolicy) for command in story.cluster.commands) == 1, "one request at a time"
    assert said == ["the scaling policy has not answered for 1.0 s; its last valid answer remains in effect"]
    assert story.told() == [3]
    story.cluster.step(PolicyAnswered({"m": Wanted(5, "thought over")}, ""))
    assert story.told() == [3, 5]


def test_last_answer_is_applied_while_the_policy_is_busy() -> None:
    story = Story()
    story.policy.answer = lambda: {"m": Wanted(0, "no work")}
    task = story.cluster.submit(story.cluster.client())[0]
    story.cluster.worker("w", manager_id="m")
    story.pass_plans()
    story.cluster.policy = None
    story.cluster.finish("w", task)
    story.pass_time(2.0)
    assert [message.drained for _, message in story.cluster.said if isinstance(message, Desired)][-1] == ["unit-w"]
