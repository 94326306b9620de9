"""Limits of the cluster: never exceeded, released with their tasks, explained, and no reason to scale up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from scaler.config.load import model_of
from scaler.errors import ConfigError
from scaler.extensions.explain.core import explain
from scaler.extensions.resources import LimitRow, LimitSettings
from scaler.extensions.resources.core import RESERVE_AFTER_SECONDS, Counted
from scaler.net.connection import Identity
from scaler.policy.simple import SimplePolicy
from scaler.policy.view import ClusterView, Wanted
from scaler.protocol.messages import Done, ManagerStatus, Notice, Outcome, Returned, Suspended
from scaler.scheduler.core.durability import RECOVERY_SECONDS
from tests.extensions.durability.test_recovery import Restarted
from tests.extensions.sharing.bed import Bed
from tests.unit.scheduler.driver import Cluster

GB = 1e9
Pairs = tuple[tuple[str, float], ...]
DB: Pairs = (("limit:db", 1.0),)
LIMITS = {"db": 2.0, "licence": 1.0}


class Limited(Cluster):
    extensions = tuple(each for each in Cluster.extensions if each != "resources")

    def __init__(self, policy: Any = None, *, limits: dict[str, float] | None = None, is_open: bool = True) -> None:
        self.counted = Counted(LimitSettings(limits=LIMITS if limits is None else limits))
        self.parts = (*Cluster.parts, lambda: self.counted)
        super().__init__(policy)
        if is_open:
            self.wait(RECOVERY_SECONDS + 0.5)

    def why(self, task: bytes) -> str:
        return explain(self.state, task, self.now)

    def table(self, client: str) -> list[LimitRow]:
        return [*self.counted.rows("limits", "", 100, self.state.clients[self.peer(client)], self.state)]


@pytest.fixture
def cluster() -> Limited:
    return Limited()


@pytest.fixture
def client(cluster: Limited) -> str:
    return cluster.client()


def running_on(cluster: Cluster, *workers: str) -> list[bytes]:
    return [task for worker in workers for task in cluster.on(worker)]


def test_no_more_tasks_than_the_limit_are_sent_to_all_workers_together(cluster: Limited, client: str) -> None:
    a, b, other = cluster.worker("a", slots=4), cluster.worker("b", slots=4), cluster.client("other")
    tasks = cluster.submit(client, 3, needs=DB) + cluster.submit(other, 3, needs=DB)
    first = running_on(cluster, a, b)
    assert len(first) == 2
    assert set(first) <= set(tasks)
    for task in first:
        cluster.finish(a if task in cluster.on(a) else b, task)
    assert len(running_on(cluster, a, b)) == 2
    assert not set(running_on(cluster, a, b)) & set(first)


def test_blocked_queue_blocks_no_other_task(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", slots=4)
    cluster.submit(client, 200, needs=DB, priority=9)
    others = cluster.submit(client, 2)
    assert set(others) <= set(cluster.on(worker))


def test_urgent_task_that_waits_for_a_limit_recalls_no_other_task(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", slots=3)
    cluster.submit(client, 2, needs=DB)
    plain = cluster.submit(client, 3)
    cluster.submit(client, needs=DB, priority=9)
    cluster.wait(0.25, alive=[client, worker])
    assert set(plain) <= set(cluster.on(worker))
    assert not cluster.recalls(worker, kill=False)


def test_task_with_a_limit_is_not_queued_behind_others(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", slots=2)
    plain = cluster.submit(client, 2)
    (limited,) = cluster.submit(client, needs=DB)
    assert cluster.on(worker) == plain
    more = cluster.submit(client, 1)
    cluster.finish(worker, plain[0])
    assert limited in cluster.on(worker), "the limited task gets the next slot"
    cluster.finish(worker, plain[1])
    assert set(cluster.on(worker)) == {limited, *more}


def test_amounts_and_several_limits_add_up() -> None:
    cluster = Limited(limits={"db": 1.0, "licence": 3.0})
    client, worker = cluster.client(), cluster.worker("w", slots=9)
    half = cluster.submit(client, 3, needs=(("limit:db", 0.5),))
    assert cluster.on(worker) == half[:2]
    (both,) = cluster.submit(client, needs=(("limit:db", 0.5), ("limit:licence", 3.0)))
    (licence,) = cluster.submit(client, needs=(("limit:licence", 1.0),))
    assert cluster.on(worker) == [*half[:2], licence]
    cluster.finish(worker, half[0], licence)
    assert len(cluster.on(worker)) == 2
    assert {both, half[2]} & set(cluster.on(worker))


@pytest.mark.parametrize("amount", [0.1, 1 / 3, 0.7, 0.29])
def test_fractions_of_a_limit_fill_it_up(amount: float) -> None:
    cluster = Limited(limits={"db": 1.0})
    client, worker = cluster.client(), cluster.worker("w", slots=20)
    cluster.submit(client, 20, needs=(("limit:db", amount),))
    assert len(cluster.on(worker)) == int(1 / amount + 1e-9)


# -- releases


def test_limit_is_released_when_its_worker_is_lost(cluster: Limited, client: str) -> None:
    a = cluster.worker("a", slots=2)
    first = cluster.submit(client, 2, needs=DB)
    assert cluster.on(a) == first
    cluster.leave(a)
    b = cluster.worker("b", slots=4)
    second = cluster.submit(client, 2, needs=DB)
    cluster.wait(5.0, alive=[client, b])
    assert len(cluster.on(b)) == 2
    cluster.finish(b, *cluster.on(b))
    cluster.wait(1.0, alive=[client, b])
    assert len(cluster.on(b)) == 2
    cluster.finish(b, *cluster.on(b))
    assert {cluster.outcome(client, task) for task in first + second} == {Outcome.SUCCESS}


@pytest.mark.parametrize("outcome", [Outcome.EXCEPTION, Outcome.TIMED_OUT, Outcome.PROCESSOR_DIED])
def test_limit_is_released_when_an_attempt_fails(outcome: Outcome, cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", slots=3)
    tasks = cluster.submit(client, 3, needs=DB, retries=1)
    cluster.finish(worker, tasks[0], outcome=outcome, payload=b"")
    assert cluster.on(worker)[:2] == tasks[1:]


def test_cancelled_task_keeps_its_limit_until_the_worker_has_stopped_it(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", slots=3)
    tasks = cluster.submit(client, 3, needs=DB)
    cluster.cancel(client, tasks[0])
    assert tasks[2] not in cluster.on(worker), "the cancelled task may still run"
    cluster.say(worker, Returned([tasks[0]], [1], [False]))
    assert cluster.on(worker) == tasks[1:]


def test_limit_is_released_when_a_client_leaves(cluster: Limited, client: str) -> None:
    worker, other = cluster.worker("w", slots=3), cluster.client("other")
    first = cluster.submit(other, 2, needs=DB)
    mine = cluster.submit(client, 2, needs=DB)
    cluster.leave(other)
    for task in first:
        cluster.say(worker, Returned([task], [1], [False]))
    assert cluster.on(worker) == mine


def test_silent_worker_keeps_the_limits_of_its_tasks_until_it_is_given_up(cluster: Limited, client: str) -> None:
    cluster.worker("a", slots=2)
    cluster.submit(client, 2, needs=DB)
    b = cluster.worker("b", slots=2)
    cluster.submit(client, 2, needs=DB)
    cluster.wait(30.0, alive=[client, b])
    assert not cluster.on(b)
    cluster.wait(40.0, alive=[client, b])
    assert len(cluster.on(b)) == 2


def test_task_that_waits_for_nested_tasks_keeps_its_limit(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", slots=4)
    tasks = cluster.submit(client, 3, needs=DB)
    cluster.say(worker, Suspended([tasks[0]], [1], [True]))
    assert tasks[2] not in cluster.on(worker)


# -- after a restart


def test_limits_are_closed_until_workers_have_reported(cluster: Limited) -> None:
    cluster = Limited(is_open=False)
    client, worker = cluster.client(), cluster.worker("w", slots=4)
    (task,) = cluster.submit(client, needs=DB)
    (other,) = cluster.submit(client)
    assert cluster.on(worker) == [other]
    assert "it waits until use of limit db is known, 1.5 s after the scheduler's start" in cluster.why(task)
    cluster.wait(RECOVERY_SECONDS + 0.5, alive=[client, worker])
    assert task in cluster.on(worker)


def test_tasks_that_workers_report_after_a_restart_use_their_limits_again() -> None:
    class Counting(Restarted):
        extensions = Limited.extensions
        counted = Counted(LimitSettings(limits=LIMITS))
        parts = (*Cluster.parts, lambda: Counting.counted)

    cluster = Counting()
    running = cluster.ids(2)
    cluster.again(*running, needs=DB)
    cluster.returning("a", (running[0], 1), slots=2)
    new = cluster.submit(cluster.client("new"), 2, needs=DB)
    other = cluster.worker("other", slots=4)
    assert not cluster.on(other)
    cluster.returning("b", (running[1], 1), slots=2)
    cluster.wait(RECOVERY_SECONDS + 0.5, alive=["client", "new", "a", "b", other])
    assert running_on(cluster, "a", "b", other) == running, "the limit is used up"
    cluster.finish("a", running[0])
    assert len(running_on(cluster, "a", "b", other)) == 2
    assert set(running_on(cluster, "a", "b", other)) < {running[1], *new}


# -- refusals


@pytest.mark.parametrize(
    ("needs", "text"),
    [
        ((("limit:dbx", 1.0),), "limits={'dbx': 1} is more than this cluster has: its limits are db=2, licence=1"),
        ((("limit:db", 2.5),), "limits={'db': 2.5} is more than this cluster has: its limits are db=2, licence=1"),
    ],
)
def test_unknown_limit_and_too_large_amount_are_refused_with_the_known_limits(
    needs: Pairs, text: str, cluster: Limited, client: str
) -> None:
    cluster.worker("w")
    (task,) = cluster.submit(client, needs=needs)
    outcome, payload = cluster.outcomes(client)[task]
    assert outcome is Outcome.REJECTED
    assert text in payload.decode()


def test_unknown_limit_error_says_that_the_cluster_has_no_limits() -> None:
    cluster = Limited(limits={})
    client = cluster.client()
    (task,) = cluster.submit(client, needs=DB)
    assert "its limits are none (setting limits of [scheduler])" in cluster.outcomes(client)[task][1].decode()


@pytest.mark.parametrize("text", ["db", "db=", "db=x", "db=-1", "=1", "db=1,db=2", "a b=1", "db=0", "db=inf"])
def test_wrong_settings_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="limits") as raised:
        model_of(LimitSettings, {"limits": text})
    assert "capability" not in str(raised.value)


def test_settings_name_each_limit_and_its_amount() -> None:
    for given in (" db = 10, licence=2.5 ", {"db": 10, "licence": 2.5}):
        assert model_of(LimitSettings, {"limits": given}).limits == {"db": 10.0, "licence": 2.5}


# -- explanations and the table


def test_explanation_names_the_limit_and_who_uses_it(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", slots=4)
    stranger = cluster.client("stranger", identity=Identity("bob"))
    cluster.submit(client, 1, needs=DB, name="load")
    cluster.submit(stranger, 1, needs=DB, name="secret")
    (task,) = cluster.submit(client, needs=DB)
    assert "it waits for limit db: 2 of 2 are used by 1 task of load" in cluster.why(task)
    assert "secret" not in cluster.why(task)
    assert len(cluster.on(worker)) == 2
    (row,) = [row for row in cluster.table(client) if row.limit == "db"]
    assert (row.used, row.total, row.ready) == (2.0, 2.0, 1)
    assert "1 task of load" in row.used_by
    assert cluster.table(client)[1] == LimitRow("licence", 0.0, 1.0, 0, "no task")


def test_nested_task_that_waits_for_its_parents_limit_is_reported(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", slots=4)
    (parent,) = cluster.submit(client, needs=(("limit:db", 2.0),), name="outer")
    cluster.nested("n", worker, parent)
    cluster.say(worker, Suspended([parent], [1], [True]))
    (child,) = cluster.submit("n", needs=DB, name="inner", parent=parent)
    reason = "it is nested in a task of outer"
    assert reason in cluster.why(child)
    cluster.wait(3.0, alive=[client, worker])
    notices = [message.text for name, message in cluster.said if name == client and isinstance(message, Notice)]
    assert len(notices) == 1
    assert "inner() waits: it is nested in a task of outer()" in notices[0]
    cluster.submit("n", needs=(("limit:licence", 1.0),), name="inner", parent=parent)
    assert len(cluster.on(worker)) == 2, "another limit is free"


# -- starvation


def test_small_amounts_do_not_starve_a_large_one() -> None:
    cluster = Limited(limits={"db": 4.0})
    client, worker = cluster.client(), cluster.worker("w", slots=8)
    cluster.submit(client, 8, needs=DB)
    (large,) = cluster.submit(client, needs=(("limit:db", 4.0),))
    for step in range(200):
        if large in cluster.on(worker):
            break
        cluster.submit(client, 1, needs=DB)
        cluster.finish(worker, cluster.on(worker)[step % len(cluster.on(worker))], seconds=0.1)
        cluster.wait(0.1, alive=[client, worker])
    assert large in cluster.on(worker)
    assert step * 0.1 < 2 * RESERVE_AFTER_SECONDS + 1.0


def test_reservation_of_a_limit_keeps_only_what_one_task_uses() -> None:
    cluster = Limited(limits={"db": 4.0})
    client, worker = cluster.client(), cluster.worker("w", slots=9)
    first = cluster.submit(client, 4, needs=DB)
    cluster.submit(client, 1, needs=(("limit:db", 2.0),))
    cluster.wait(2.0, alive=[client, worker])
    later = cluster.submit(client, 3, needs=DB)
    cluster.finish(worker, first[0])
    assert not set(later) & set(cluster.on(worker)), "the first free one is kept"
    assert "and freed amounts are reserved for tasks that need limit db=2" in cluster.why(later[0])


def test_queue_that_waits_for_a_limit_reserves_no_memory(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", {"memory": 8 * GB}, slots=9)
    first = cluster.submit(client, 2, needs=DB)
    (both,) = cluster.submit(client, needs=(("limit:db", 1.0), ("memory", 8 * GB)))
    cluster.wait(3.0, alive=[client, worker])
    assert cluster.counted.reservations
    memory = cluster.submit(client, 2, needs=(("memory", 4 * GB),))
    assert set(memory) <= set(cluster.on(worker))
    cluster.finish(worker, first[0])
    cluster.wait(1.0, alive=[client, worker])
    more = cluster.submit(client, 1, needs=(("memory", 4 * GB),))
    cluster.finish(worker, memory[0])
    assert more[0] not in cluster.on(worker), "now only memory is missing"
    cluster.finish(worker, memory[1])
    assert both in cluster.on(worker)


class LimitedBed(Bed):
    check_every = 5_000
    extensions = Limited.extensions

    def __init__(self, **limits: float) -> None:
        self.counted = Counted(LimitSettings(limits=limits))
        self.parts = (*Cluster.parts, lambda: self.counted)
        super().__init__(2, 2)
        self.run(RECOVERY_SECONDS + 0.5)


@pytest.mark.parametrize(("plain", "limited"), [(0.002, 0.05), (0.5, 0.05), (0.02, 1.0)])
def test_prefetched_tasks_of_others_do_not_keep_a_limit_idle(plain: float, limited: float) -> None:
    bed = LimitedBed(db=2.0)
    bed.flood("plain", plain)
    bed.flood("limited", limited, needs=DB)
    bed.run(3.0)
    shares = bed.shares(5.0)
    assert shares["limited"] > 0.9 * 2 * 5.0, "limited tasks use their whole limit"
    assert shares["plain"] > 0.9 * 2 * 5.0, "other tasks use the rest"


def test_tasks_of_one_client_do_not_keep_its_limit_idle() -> None:
    bed = LimitedBed(db=1.0)
    bed.flood("a", 0.01)
    bed.run(1.0)
    limited = [bed.task_id("a") for _ in range(40)]
    bed.seconds.update(dict.fromkeys(limited, 0.05))
    bed.submit("a", ids=limited, needs=DB)
    bed.run(6.0)
    assert bed.ended.issuperset(limited)


def test_long_prefetched_tasks_are_returned_for_a_limited_one(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", slots=1)
    first = cluster.submit(client, 3)
    (limited,) = cluster.submit(client, needs=DB)
    returned = cluster.recalls(worker, kill=False)
    assert set(returned) == {*cluster.on(worker)} - {first[0]}
    cluster.give_back(worker, *returned)
    cluster.finish(worker, first[0])
    assert cluster.on(worker) == [limited]


# -- demand


class Seen(SimplePolicy):
    view: ClusterView

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        self.view = view
        return super().plan(view)


def demanded(*groups: tuple[int, Pairs], workers: int = 0) -> int:
    policy = Seen("")
    cluster = Limited(policy, limits={"db": 3.0})
    client, manager = cluster.client(), cluster.manager("m")
    cluster.say(manager, ManagerStatus(cluster.now, []))
    names = [cluster.worker(f"w{number}") for number in range(workers)]
    for number, (count, needs) in enumerate(groups):
        cluster.submit(client, count, needs=needs, name=f"f{number}")
    cluster.wait(2.0, alive=[client, manager, *names])
    return sum(row.tasks for row in policy.view.demand)


def test_demand_never_exceeds_the_limits() -> None:
    assert demanded((100, ())) == 100
    assert demanded((100, DB)) == 3
    assert demanded((100, DB), (100, DB)) == 3, "two functions share the limit"
    assert demanded((100, DB), workers=2) == 3, "running tasks count"
    assert demanded((2, DB), workers=4) == 2
    assert demanded((100, (("limit:db", 2.0),))) == 1


def test_groups_that_cannot_run_leave_demand_to_others() -> None:
    assert demanded((100, (*(("gpu", 1.0),), *DB)), (100, DB)) == 4


# -- public reports about other systems


def test_tasks_whose_amounts_together_exceed_the_limit_run_one_after_another() -> None:
    """Airflow 9316: 12, 12, and 16 slots of a pool of 24."""
    cluster = Limited(limits={"db": 24.0})
    client, worker = cluster.client(), cluster.worker("w", slots=8)
    (a,) = cluster.submit(client, needs=(("limit:db", 12.0),))
    (b,) = cluster.submit(client, needs=(("limit:db", 12.0),))
    (c,) = cluster.submit(client, needs=(("limit:db", 16.0),))
    assert cluster.on(worker) == [a, b]
    cluster.finish(worker, a)
    assert cluster.on(worker) == [b]
    cluster.finish(worker, b)
    assert cluster.on(worker) == [c]


def test_late_result_of_a_lost_worker_does_not_release_a_limit_twice(cluster: Limited, client: str) -> None:
    """Solid Queue 761: an attempt that was given up ends after all."""
    cluster.worker("a", slots=4)
    cluster.submit(client, 2, needs=DB)
    cluster.wait(70.0, alive=[client])
    b = cluster.worker("b", slots=8)
    cluster.submit(client, 4, needs=DB)
    cluster.wait(5.0, alive=[client, b])
    assert len(cluster.on(b)) == 2
    first = cluster.on(b)[0]
    cluster.say("a", Done([first], [1], [Outcome.SUCCESS], [b""], [1000]))
    assert len(cluster.on(b)) == 2


def test_task_that_needs_a_free_resource_passes_one_that_needs_a_used_one(cluster: Limited, client: str) -> None:
    """Dask 6136: tasks with different resources waited in one line."""
    worker = cluster.worker("w", {"a": 1.0, "b": 1.0}, slots=4)
    first = cluster.submit(client, needs=(("counted:a", 1.0), ("counted:b", 1.0)))
    cluster.submit(client, 2, needs=(("counted:a", 1.0),))
    (b,) = cluster.submit(client, needs=(("counted:b", 1.0),))
    cluster.finish(worker, *first)
    assert b in cluster.on(worker)


def test_client_is_warned_about_a_resource_that_no_worker_offers(cluster: Limited, client: str) -> None:
    """Dask 9587: such a task waited without a word."""
    worker = cluster.worker("w", {"fpga": 1.0})
    cluster.submit(client, needs=(("counted:fpgas", 1.0),))
    cluster.wait(3.0, alive=[client, worker])
    (notice,) = [message.text for name, message in cluster.said if isinstance(message, Notice)]
    assert "there is no fpgas" in notice
    assert "Request less in resources=..., or start workers with --per-worker-capabilities fpgas=1" in notice


def test_new_worker_gets_tasks_that_wait_for_a_counted_resource(cluster: Limited, client: str) -> None:
    """Dask 3264: they were all assigned to the first worker."""
    cluster.worker("a", {"fpga": 1.0}, slots=4)
    cluster.submit(client, 3, needs=(("counted:fpga", 1.0),))
    b = cluster.worker("b", {"fpga": 1.0}, slots=4)
    assert len(cluster.on(b)) == 1


# -- counted capabilities


def test_counted_capability_limits_tasks_of_a_worker(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", {"fpga": 2.0, "cuda": 12.0}, slots=8)
    compared = cluster.submit(client, 3, needs=(("fpga", 1.0),))
    assert cluster.on(worker) == compared, "a capability is only compared"
    tasks = cluster.submit(client, 3, needs=(("counted:fpga", 1.0),))
    assert cluster.on(worker) == [*compared, *tasks[:2]]
    assert "it waits for 1 fpga; worker manager-1 (host, pid 1) has 0 fpgas free" in cluster.why(tasks[2])
    cluster.finish(worker, tasks[0])
    assert tasks[2] in cluster.on(worker)


def test_label_satisfies_any_number_of_counted_tasks(cluster: Limited, client: str) -> None:
    worker = cluster.worker("w", {"fpga": None}, slots=8)
    assert (
        cluster.on(worker) == cluster.submit(client, 5, needs=(("counted:fpga", 1.0),)) or len(cluster.on(worker)) == 5
    )


def test_workers_count_their_own_capabilities(cluster: Limited, client: str) -> None:
    names: Sequence[str] = [cluster.worker(f"w{number}", {"fpga": 1.0}, slots=4) for number in range(3)]
    cluster.submit(client, 5, needs=(("counted:fpga", 1.0),))
    assert [len(cluster.on(name)) for name in names] == [1, 1, 1]


def test_without_the_extension_limits_and_resources_are_refused() -> None:
    class Without(Cluster):
        extensions = tuple(each for each in Cluster.extensions if each != "resources")

    cluster = Without()
    client = cluster.client()
    for needs in (DB, (("counted:fpga", 1.0),)):
        (task,) = cluster.submit(client, needs=needs)
        assert "need the extension 'resources'" in cluster.outcomes(client)[task][1].decode()
