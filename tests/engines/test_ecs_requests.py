"""What the emulated ECS accepts, refuses and answers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from scaler.testing.aws.ecs import EcsRates
from scaler.testing.aws.faults import Partial
from tests.engines.ecs_rig import DEFINITION, NETWORK, EcsWorld

SPOT = [{"capacityProvider": "FARGATE_SPOT", "weight": 1}]


@pytest.fixture
def world() -> EcsWorld:
    return EcsWorld()


def override(**fields: Any) -> dict[str, Any]:
    return {"containerOverrides": [{"name": "main", **fields}]}


@pytest.mark.parametrize(
    ("wrong", "code", "text"),
    [
        ({"count": 11}, "InvalidParameterException", "between 1 and 10"),
        ({"count": 0}, "InvalidParameterException", "between 1 and 10"),
        ({"cluster": "none"}, "ClusterNotFoundException", "Cluster not found"),
        ({"taskDefinition": "none"}, "ClientException", "TaskDefinition not found"),
        ({"networkConfiguration": None}, "InvalidParameterException", "awsvpc"),
        ({"networkConfiguration": {"awsvpcConfiguration": {"subnets": []}}}, "InvalidParameterException", "subnets"),
        ({"launchType": "FARGATE", "capacityProviderStrategy": SPOT}, "InvalidParameterException", "both"),
        ({"launchType": "EC2"}, "InvalidParameterException", "No Container Instances"),
        ({"launchType": None}, "InvalidParameterException", "No Container Instances"),
        ({"startedBy": "x" * 129}, "InvalidParameterException", "startedBy"),
        ({"startedBy": "a:b"}, "InvalidParameterException", "startedBy"),
        ({"clientToken": "x" * 65}, "InvalidParameterException", "clientToken"),
        ({"tags": [{"key": str(n), "value": ""} for n in range(51)]}, "InvalidParameterException", "50"),
        ({"overrides": {"containerOverrides": [{"name": "other"}]}}, "InvalidParameterException", "named other"),
        (
            {"overrides": override(environment=[{"name": "A", "value": "x" * 8192}])},
            "InvalidParameterException",
            "at most 8192",
        ),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(world: EcsWorld, wrong: dict[str, Any], code: str, text: str) -> None:
    refusal = world.refused_run(**wrong)
    assert refusal.code == code
    assert text in refusal.message
    assert world.core.alive == {}


def test_overrides_of_exactly_the_limit_are_accepted(world: EcsWorld) -> None:
    frame = len('{"containerOverrides":[{"name":"main","environment":[{"name":"A","value":""}]}]}')
    assert world.run(overrides=override(environment=[{"name": "A", "value": "x" * (8192 - frame)}]))


def test_a_provider_that_is_not_attached_to_the_cluster_is_refused(world: EcsWorld) -> None:
    world.call("PutClusterCapacityProviders", cluster="c", capacityProviders=["FARGATE"],
               defaultCapacityProviderStrategy=[])  # fmt: skip
    assert "not associated" in world.refused_run(capacityProviderStrategy=SPOT).message


def test_a_strategy_fills_its_base_and_follows_its_weights(world: EcsWorld) -> None:
    strategy = [
        {"capacityProvider": "FARGATE", "base": 1, "weight": 1},
        {"capacityProvider": "FARGATE_SPOT", "weight": 2},
    ]
    tasks = world.answer_to_run(10, capacityProviderStrategy=strategy)["tasks"]
    assert sorted(task["capacityProviderName"] for task in tasks) == ["FARGATE"] * 4 + ["FARGATE_SPOT"] * 6


def test_the_same_client_token_starts_nothing_twice(world: EcsWorld) -> None:
    arns = world.run(3, clientToken="token")
    world.pass_time(10)
    assert world.run(3, clientToken="token") == arns
    assert len(world.core.alive) == 3


def test_a_client_token_with_other_parameters_is_a_conflict(world: EcsWorld) -> None:
    world.run(3, clientToken="token")
    assert world.refused_run(count=2, clientToken="token").code == "ConflictException"


def test_a_refused_run_does_not_use_its_client_token_up(world: EcsWorld) -> None:
    world.refused_run(count=11, clientToken="token")
    assert len(world.run(2, clientToken="token")) == 2


def test_a_partial_start_says_what_failed_also_when_it_is_asked_again(world: EcsWorld) -> None:
    first = world.answer_to_run(5, Partial(2, "RESOURCE:CPU"), clientToken="token")
    assert (len(first["tasks"]), first["failures"]) == (2, [{"reason": "RESOURCE:CPU"}] * 3)
    again = world.answer_to_run(5, clientToken="token")
    assert [task["taskArn"] for task in again["tasks"]] == [task["taskArn"] for task in first["tasks"]]
    assert again["failures"] == first["failures"]


def test_launches_beyond_the_burst_are_throttled_until_time_has_passed() -> None:
    world = EcsWorld(rates=EcsRates(run_calls_at_once=1000))
    for _ in range(10):
        world.run(10)
    assert world.refused_run(count=1).code == "ThrottlingException"
    world.pass_time(0.5)
    assert len(world.run(10)) == 10
    assert world.refused_run(count=1).code == "ThrottlingException"


def test_calls_of_run_task_are_throttled_beyond_twenty_at_once(world: EcsWorld) -> None:
    for _ in range(20):
        world.run(1)
    assert world.refused_run().code == "ThrottlingException"
    world.pass_time(0.0625)
    assert world.run(1)


def test_tasks_are_listed_by_who_started_them_and_by_desired_status(world: EcsWorld) -> None:
    mine, stopped = world.run(2, startedBy="scaler/a")
    [other] = world.run(1, startedBy="scaler/b")
    world.pass_time(3)
    world.call("StopTask", cluster="c", task=stopped)
    assert world.call("ListTasks", cluster="c", startedBy="scaler/a")["taskArns"] == [mine]
    assert world.call("ListTasks", cluster="c", startedBy="scaler/a", desiredStatus="STOPPED")["taskArns"] == [stopped]
    assert world.call("ListTasks", cluster="c", family="worker")["taskArns"] == [mine, other]


def test_started_by_is_the_only_filter(world: EcsWorld) -> None:
    assert "only filter" in world.refused("ListTasks", cluster="c", startedBy="a", family="worker").message


def test_a_list_comes_in_pages(world: EcsWorld) -> None:
    arns = world.run(10)
    world.pass_time(3)
    first = world.call("ListTasks", cluster="c", maxResults=6)
    second = world.call("ListTasks", cluster="c", maxResults=6, nextToken=first["nextToken"])
    assert first["taskArns"] + second["taskArns"] == arns
    assert "nextToken" not in second
    assert "maxResults" in world.refused("ListTasks", cluster="c", maxResults=101).message
    assert "token" in world.refused("ListTasks", cluster="c", nextToken="x").message


def test_at_most_a_hundred_tasks_are_described_by_arn_or_id(world: EcsWorld) -> None:
    [arn] = world.run(tags=[{"key": "a", "value": "b"}])
    world.pass_time(3)
    assert world.describe(arn.rpartition("/")[2])[0]["taskArn"] == arn
    assert world.describe(arn)[0]["tags"] == []
    tagged = world.call("DescribeTasks", cluster="c", tasks=[arn], include=["TAGS"])["tasks"]
    assert tagged[0]["tags"] == [{"key": "a", "value": "b"}]
    assert "1 to 100" in world.refused("DescribeTasks", cluster="c", tasks=[arn] * 101).message
    assert "1 to 100" in world.refused("DescribeTasks", cluster="c", tasks=[]).message


def test_a_task_of_another_cluster_is_missing(world: EcsWorld) -> None:
    world.call("CreateCluster", clusterName="d")
    [arn] = world.run()
    world.pass_time(3)
    assert world.call("DescribeTasks", cluster="d", tasks=[arn])["failures"] == [{"arn": arn, "reason": "MISSING"}]
    assert world.refused("StopTask", cluster="d", task=arn).message == "The referenced task was not found."


def test_a_family_means_its_newest_active_revision(world: EcsWorld) -> None:
    world.call("RegisterTaskDefinition", **DEFINITION)
    assert world.call("DescribeTaskDefinition", taskDefinition="worker")["taskDefinition"]["revision"] == 2
    world.call("DeregisterTaskDefinition", taskDefinition="worker:2")
    assert world.call("DescribeTaskDefinition", taskDefinition="worker")["taskDefinition"]["revision"] == 1
    assert world.call("DescribeTaskDefinition", taskDefinition="worker:2")["taskDefinition"]["status"] == "INACTIVE"
    assert "inactive" in world.refused_run(taskDefinition="worker:2").message
    listed = world.call("ListTaskDefinitions", familyPrefix="worker")["taskDefinitionArns"]
    assert [arn.rpartition("/")[2] for arn in listed] == ["worker:1"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"memory": "9000"}, "No Fargate configuration"),
        ({"cpu": "1000"}, "No Fargate configuration"),
        ({"networkMode": "bridge"}, "awsvpc"),
        ({"family": "a b"}, "Family"),
        ({"containerDefinitions": []}, "one container"),
        ({"requiresCompatibilities": ["EC2"]}, "FARGATE"),
    ],
)
def test_a_task_definition_that_fargate_does_not_run_is_refused(
    world: EcsWorld, wrong: dict[str, Any], text: str
) -> None:
    refusal = world.refused("RegisterTaskDefinition", **{**DEFINITION, **wrong})
    assert refusal.code == "ClientException"
    assert text in refusal.message


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"stopTimeout": 121}, "stopTimeout"),
        ({"image": ""}, "image"),
        ({"logConfiguration": {"logDriver": "awslogs"}}, "execution role"),
    ],
)
def test_a_container_that_fargate_does_not_run_is_refused(world: EcsWorld, wrong: dict[str, Any], text: str) -> None:
    definition = copy.deepcopy(DEFINITION)
    definition["containerDefinitions"][0].update(wrong)
    assert text in world.refused("RegisterTaskDefinition", **definition).message


def test_a_cluster_with_tasks_cannot_be_deleted(world: EcsWorld) -> None:
    [arn] = world.run_until_running()
    assert world.call("DescribeClusters", clusters=["c"])["clusters"][0]["runningTasksCount"] == 1
    assert world.refused("DeleteCluster", cluster="c").code == "ClusterContainsTasksException"
    world.core.exited(arn, 0, "", world.now)
    world.pass_time(5)
    world.pass_time(10)
    assert world.call("DeleteCluster", cluster="c")["cluster"]["status"] == "INACTIVE"
    assert world.refused_run().code == "ClusterNotFoundException"
    assert world.call("DescribeClusters", clusters=["x"])["failures"][0]["reason"] == "MISSING"


def test_a_cluster_that_is_created_again_is_the_same(world: EcsWorld) -> None:
    world.call(
        "TagResource", resourceArn="arn:aws:ecs:us-east-1:123456789012:cluster/c", tags=[{"key": "a", "value": "1"}]
    )
    again = world.call("CreateCluster", clusterName="c")["cluster"]
    assert again["tags"] == [{"key": "a", "value": "1"}]
    assert again["capacityProviders"] == ["FARGATE", "FARGATE_SPOT"]


def test_an_unknown_capacity_provider_is_refused(world: EcsWorld) -> None:
    assert "mine" in world.refused("CreateCluster", clusterName="d", capacityProviders=["mine"]).message


def test_tags_of_tasks_and_definitions_are_kept(world: EcsWorld) -> None:
    [arn] = world.run()
    world.call("TagResource", resourceArn=arn, tags=[{"key": "a", "value": "1"}])
    assert world.call("ListTagsForResource", resourceArn=arn)["tags"] == [{"key": "a", "value": "1"}]
    definition = world.call("DescribeTaskDefinition", taskDefinition="worker")["taskDefinition"]["taskDefinitionArn"]
    world.call("TagResource", resourceArn=definition, tags=[{"key": "b", "value": "2"}])
    shown = world.call("DescribeTaskDefinition", taskDefinition="worker", include=["TAGS"])
    assert shown["tags"] == [{"key": "b", "value": "2"}]
    assert "not found" in world.refused("ListTagsForResource", resourceArn="arn:aws:ecs:x:y:task/c/none").message


def test_an_operation_that_is_not_emulated_is_said(world: EcsWorld) -> None:
    assert "CreateService" in world.refused("CreateService").message


def test_the_command_and_environment_of_overrides_win(world: EcsWorld) -> None:
    from scaler.testing.aws.ecs.run import container_command, container_environment  # noqa: PLC0415

    [arn] = world.run(overrides=override(command=["echo"], environment=[{"name": "A", "value": "2"}]))
    order = world.core.find(arn).order
    assert container_command(order) == ["echo"]
    assert container_environment(order) == {"A": "2"}
    [plain] = world.run(networkConfiguration=NETWORK)
    assert container_command(world.core.find(plain).order) == ["python", "-m", "scaler.worker"]
