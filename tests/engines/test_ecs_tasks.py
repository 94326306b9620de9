"""The life of an emulated ECS task, from its start to its end."""

from __future__ import annotations

import pytest

from scaler.testing.aws.ecs.task import KillTask, StartTask, TerminateTask
from tests.engines.ecs_rig import EcsWorld


@pytest.fixture
def world() -> EcsWorld:
    return EcsWorld()


def test_a_task_takes_its_time_from_provisioning_to_running(world: EcsWorld) -> None:
    [arn] = world.run()
    world.pass_time(9)
    assert world.status(arn) == "PROVISIONING"
    assert world.core.due() == 1010
    assert world.pass_time(1) == []
    assert world.status(arn) == "PENDING"
    assert world.pass_time(20) == [StartTask(arn)]
    [task] = world.describe(arn)
    assert (task["lastStatus"], task["desiredStatus"], task["startedAt"]) == ("RUNNING", "RUNNING", 1030)
    assert task["containers"][0]["lastStatus"] == "RUNNING"
    assert world.core.due() is None


def test_a_stopped_task_gets_sigterm_and_after_its_stop_timeout_sigkill(world: EcsWorld) -> None:
    [arn] = world.run_until_running()
    world.call("StopTask", cluster="c", task=arn, reason="scaled down")
    assert world.describe(arn)[0]["desiredStatus"] == "STOPPED"
    assert world.status(arn) == "DEACTIVATING"
    assert world.pass_time(5) == [TerminateTask(arn)]
    assert world.status(arn) == "STOPPING"
    assert world.pass_time(59) == []
    assert world.pass_time(1) == [KillTask(arn)]
    world.core.exited(arn, 137, "", world.now)
    world.pass_time(0)
    assert world.status(arn) == "DEPROVISIONING"
    world.pass_time(10)
    [task] = world.describe(arn)
    assert (task["lastStatus"], task["stopCode"], task["stoppedReason"]) == ("STOPPED", "UserInitiated", "scaled down")
    assert task["containers"][0]["exitCode"] == 137
    assert task["stoppedAt"] == world.now
    assert world.core.alive == {}


def test_a_task_that_heeds_sigterm_ends_without_waiting_for_its_stop_timeout(world: EcsWorld) -> None:
    [arn] = world.run_until_running()
    world.call("StopTask", cluster="c", task=arn)
    world.pass_time(5)
    world.core.exited(arn, 0, "", world.now)
    assert world.pass_time(0) == []
    assert world.status(arn) == "DEPROVISIONING"


def test_a_task_that_is_stopped_before_it_runs_never_starts(world: EcsWorld) -> None:
    [arn] = world.run()
    world.pass_time(10)
    world.call("StopTask", cluster="c", task=arn)
    assert world.pass_time(100) == []
    [task] = world.describe(arn)
    assert (task["lastStatus"], task["stopCode"]) == ("STOPPED", "UserInitiated")
    assert "exitCode" not in task["containers"][0]
    assert "startedAt" not in task


def test_a_task_that_is_stopped_while_its_container_starts_is_terminated(world: EcsWorld) -> None:
    [arn] = world.run()
    world.now += 30
    world.core.step(world.now - 20)
    assert world.core.step(world.now) == [StartTask(arn)]
    world.call("StopTask", cluster="c", task=arn)
    world.core.started(arn, world.now)
    assert world.pass_time(5) == [TerminateTask(arn)]


def test_a_container_that_ends_stops_its_task_with_exit_code_and_reason(world: EcsWorld) -> None:
    [arn] = world.run_until_running()
    world.core.exited(arn, 137, "OutOfMemoryError: Container killed due to memory usage", world.now)
    world.pass_time(5)
    world.pass_time(10)
    [task] = world.describe(arn)
    assert (task["lastStatus"], task["stopCode"]) == ("STOPPED", "EssentialContainerExited")
    assert task["stoppedReason"] == "Essential container in task exited"
    assert task["containers"][0]["exitCode"] == 137
    assert task["containers"][0]["reason"].startswith("OutOfMemoryError")


def test_a_start_that_fails_by_script_stops_the_task_with_its_reason(world: EcsWorld) -> None:
    world.core.fail_starts(1, "CannotPullContainerError: not found")
    bad, good = world.run_until_running(2)
    world.pass_time(10)
    [task] = world.describe(bad)
    assert (task["lastStatus"], task["stopCode"]) == ("STOPPED", "TaskFailedToStart")
    assert task["stoppedReason"] == task["containers"][0]["reason"] == "CannotPullContainerError: not found"
    assert world.status(good) == "RUNNING"


def test_a_spot_notice_terminates_at_once_and_kills_after_the_notice(world: EcsWorld) -> None:
    [arn] = world.run_until_running(capacityProviderStrategy=[{"capacityProvider": "FARGATE_SPOT", "weight": 1}])
    world.core.spot_notice(arn, world.now)
    assert world.core.due() is not None
    assert world.pass_time(0) == [TerminateTask(arn)]
    assert world.describe(arn)[0]["desiredStatus"] == "STOPPED"
    world.pass_time(5)
    assert world.pass_time(114) == []
    assert world.pass_time(1) == [KillTask(arn)]
    world.core.exited(arn, 137, "", world.now)
    world.pass_time(10)
    [task] = world.describe(arn)
    assert (task["stopCode"], task["stoppedReason"]) == ("SpotInterruption", "Your Spot Task was interrupted.")


def test_a_spot_notice_to_a_task_that_is_not_on_spot_is_refused(world: EcsWorld) -> None:
    [arn] = world.run()
    with pytest.raises(ValueError, match="FARGATE_SPOT"):
        world.core.spot_notice(arn, world.now)


def test_the_first_reason_of_a_stop_stays(world: EcsWorld) -> None:
    [arn] = world.run_until_running()
    world.call("StopTask", cluster="c", task=arn, reason="first")
    world.call("StopTask", cluster="c", task=arn, reason="second")
    world.core.exited(arn, 0, "", world.now)
    assert world.describe(arn)[0]["stoppedReason"] == "first"


def test_a_new_task_is_hidden_for_a_while(world: EcsWorld) -> None:
    [arn] = world.run()
    assert world.call("ListTasks", cluster="c")["taskArns"] == []
    described = world.call("DescribeTasks", cluster="c", tasks=[arn])
    assert described == {"tasks": [], "failures": [{"arn": arn, "reason": "MISSING"}]}
    world.pass_time(3)
    assert world.call("ListTasks", cluster="c")["taskArns"] == [arn]


def test_a_stopped_task_is_shown_for_an_hour(world: EcsWorld) -> None:
    [arn] = world.run_until_running()
    world.core.exited(arn, 0, "", world.now)
    world.pass_time(5)
    world.pass_time(10)
    world.pass_time(3599)
    assert world.call("ListTasks", cluster="c", desiredStatus="STOPPED")["taskArns"] == [arn]
    world.pass_time(1)
    assert world.call("ListTasks", cluster="c", desiredStatus="STOPPED")["taskArns"] == []
    assert world.call("DescribeTasks", cluster="c", tasks=[arn])["failures"][0]["reason"] == "MISSING"
