"""A restarted scheduler without the extension durability."""

from __future__ import annotations

import pytest

from scaler.ids import result_id
from scaler.net.connection import LOCAL, Received
from scaler.net.versions import own_hello
from scaler.protocol.messages import (
    ClientDetails,
    Done,
    ForgetObjects,
    Outcome,
    Recall,
    Redeliver,
    Refused,
    Role,
    stored_reference,
)
from scaler.scheduler.core.changes import Incident
from scaler.scheduler.core.commands import SendToStorage
from tests.extensions.durability.test_recovery import Restarted


class Forgetful(Restarted):
    extensions = "explain", "resources", "scaling", "data_plane"


@pytest.fixture
def cluster() -> Forgetful:
    return Forgetful()


@pytest.mark.parametrize("client_first", [True, False])
def test_reported_attempt_is_recalled_and_the_task_runs_again(cluster: Forgetful, client_first: bool) -> None:
    (task,) = cluster.ids(1)
    if client_first:
        cluster.again(task)
    cluster.returning("w", (task, 3))
    if not client_first:
        cluster.again(task)
    assert cluster.sent("w", Recall)[-1] == Recall([task], [3], True)
    assert cluster.on("w") == [task]
    cluster.finish("w", task)
    assert cluster.outcome("client", task) is Outcome.SUCCESS


def test_result_of_an_earlier_attempt_is_dropped(cluster: Forgetful) -> None:
    (task,) = cluster.ids(1)
    cluster.again(task)
    cluster.returning("w")
    late = stored_reference(result_id(task, 1), 1000)
    commands = cluster.step(Received(cluster.peer("w"), Done([task], [1], [Outcome.SUCCESS], [late], [1000])))
    forgotten = [each.message for each in commands if isinstance(each, SendToStorage)]
    assert ForgetObjects([result_id(task, 1)]) in forgotten
    assert cluster.outcome("client", task) is None


def test_resubmitted_start_once_task_ends_as_lost_and_its_error_names_the_setting(cluster: Forgetful) -> None:
    once, dependent, new = cluster.ids(3)
    cluster.worker("w")
    cluster.again(once, retries=0)
    cluster.again(dependent, references=((once,),))
    cluster.again(new, retries=0, again=0)
    outcome, text = cluster.outcomes("client")[once]
    assert outcome is Outcome.WORKER_LOST
    assert b"may have run; set [scheduler] state_directory" in text
    assert cluster.outcome("client", dependent) is Outcome.WORKER_LOST
    assert cluster.on("w") == [new]


def test_durable_session_is_refused_with_an_error_that_names_the_extension(cluster: Forgetful) -> None:
    hello = own_hello(Role.CLIENT, ClientDetails("", "night"))
    refused = cluster.core.refusal(b"session.", hello, LOCAL, cluster.now)
    assert isinstance(refused, Refused)
    assert "no durable sessions: its extension durability is disabled" in refused.text


def test_request_for_results_of_a_session_is_a_protocol_error(cluster: Forgetful) -> None:
    (task,) = cluster.ids(1)
    cluster.say("client", Redeliver([task]))
    assert [each.kind for each in cluster.facts if isinstance(each, Incident)] == ["joined", "protocol_error"]
