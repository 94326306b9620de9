"""The grammar of all sentences from the scheduler and the policies, for any counts and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.explain.core import explain, outlook, unservable, without_workers
from scaler.needs import Needs
from scaler.policy.load import load_policy
from scaler.policy.view import ClusterView, Demand, ManagerView, ScalingPolicy
from scaler.protocol.messages import Drain, ManagerStatus, Notice, Outcome, Suspended, UnitState, UnitStatus
from scaler.scheduler.core.changes import Incident, ScalingDecided, TaskRetried
from scaler.serialization.exceptions import dump_exception
from tests.properties.test_sizing_laws import CLUSTERS, POLICIES, SECONDS
from tests.unit.scheduler.driver import Cluster

NOUNS = "task|unit|slot|worker|function|manager|object|time|attempt|second|processor"
MISTAKES = {
    rf"(?<![\d.,=])1 (other )?({NOUNS})s\b": "1 before a plural",
    rf"(?<![\d.,=-])(0|[2-9]|\d+[\d,]*\d) (other )?({NOUNS})\b(?!s)": "a number before a singular",
    r"\b[aA] [aeio]\w": "a before a vowel",
    r"\b[aA]n [^aeiouhAEIOUH\W]": "an before a consonant",
    r"  ": "two spaces",
    r"[;,:.] ?[;,:]|\.\.": "two marks",
    r" [;,:.)]|\( ": "a space before a mark",
    r"''|\"\"": "empty quotes",
    r"'[^' ]*\"|\"[^\" ]*'|\\'": "quotes within quotes",
    r"\b(None|True|nan|inf)\b|<\w+ object at|\b(Wanted|Needs|Offers|Task|Worker|Outcome)\(": "a value of Python",
    r"[;,: ]$|^[;,:. ]": "a mark or space at an end",
    r"\b(\w+) \1\b": "a word twice",
    r"\b(is|was|are) (is|was|are)\b": "two verbs",
}
NAMES = st.sampled_from(["f", "price", "<lambda>", ""])
COUNTS = st.sampled_from([1, 2, 3, 12])
MANY = st.sampled_from([1, 2, 500])
REASONS = st.sampled_from(["", "no quota", "exit code 1; failed 3 times in a row, next attempt in 2 s"])
ASKED = st.sampled_from([(), (("gpu", 1.0),), (("gpu", 2.0), ("linux", 0.0))])
OFFERED: st.SearchStrategy[dict[str, float | None]] = st.sampled_from([{}, {"gpu": 1.0}, {"gpu": None, "linux": None}])


def mistakes(text: str) -> list[str]:
    without_dots = text.replace("...", "x")  # the dots represent a value
    return [f"{name}: {text!r}" for pattern, name in MISTAKES.items() if re.search(pattern, without_dots)]


def check(texts: Iterable[str]) -> None:
    wrong = [line for text in texts for line in mistakes(text)]
    assert not wrong, "\n".join(wrong)


@given(POLICIES, st.lists(st.tuples(SECONDS, CLUSTERS), min_size=1, max_size=3), SECONDS)
def test_policy_reasons_are_sentences(
    policy: ScalingPolicy, steps: list[tuple[float, tuple[tuple[Demand, ...], tuple[ManagerView, ...]]]], rate: float
) -> None:
    now = 0.0
    for seconds, (demand, managers) in steps:
        now += seconds
        passed = Demand(Needs(), "g", 0, 0, 0.001, rate / 1000, rate)
        for rows in (demand, (*demand, passed)):
            check(wanted.reason for wanted in policy.plan(ClusterView(now, rows, managers)).values())


@given(
    st.sampled_from([("simple", ""), ("simple", "scaling=no"), ("waterfall_v1", "1,m0,2"), ("target_v1", "")]),
    st.lists(st.tuples(st.sampled_from([-1, 1, 7]), OFFERED, REASONS, st.booleans(), COUNTS, REASONS), max_size=4),
    st.lists(st.tuples(NAMES, MANY, ASKED), max_size=3),
    st.lists(st.tuples(OFFERED, COUNTS, st.sampled_from(["well", "broken", "draining", "gone"])), max_size=3),
)
def test_explanations_of_tasks_and_managers_are_sentences(
    policy: tuple[str, str],
    managers: list[tuple[int, dict[str, float | None], str, bool, int, str]],
    tasks: list[tuple[str, int, tuple[tuple[str, float], ...]]],
    workers: list[tuple[dict[str, float | None], int, str]],
) -> None:
    cluster = Cluster(load_policy(*policy))
    client = cluster.client("alice")
    for number, (most, capabilities, trouble, fixed, pending, reason) in enumerate(managers):
        name = cluster.manager(f"m{number}", most, capabilities=capabilities, fixed=fixed)
        if number < 3:  # the last client has only connected
            units = [UnitStatus(f"u{each}", UnitState.PENDING, 1, 2.0 * each, reason) for each in range(pending - 1)]
            cluster.say(name, ManagerStatus(cluster.now, units, trouble))
    for number, (capabilities, slots, state) in enumerate(workers):
        worker = cluster.worker(f"w{number}", capabilities, slots, manager_id="m0")
        if state == "draining":
            cluster.say(worker, Drain("the machine stops"))
        elif state == "broken":
            cluster.break_connection(worker)
        elif state == "gone":
            cluster.leave(worker, "the worker ends")
    ids = [cluster.submit(client, count, name=name, needs=needs) for name, count, needs in tasks]
    for _ in range(2):
        check(said(cluster, [task for some in ids for task in (some[0], some[-1])]))
        cluster.wait(6.0, alive=[client, *(f"m{number}" for number in range(len(managers)))])


def said(cluster: Cluster, tasks: Iterable[bytes]) -> Iterator[str]:
    """Yield all current texts for users of a cluster."""
    state, now = cluster.state, cluster.now
    yield without_workers(state) or "none"
    for needs in [Needs(), *state.ready.queues]:
        yield outlook(state, needs)
        yield unservable(state, needs) or "none"
    for task in tasks:
        yield explain(state, task, now)
    for fact in cluster.take_facts():
        match fact:
            case ScalingDecided():
                yield fact.reason
            case Incident():
                yield f"{fact.subject}: {fact.text}" if fact.text else fact.subject
            case TaskRetried():
                yield fact.reason
            case _:
                pass
    yield from (message.text for _, message in cluster.said if isinstance(message, Notice))
    yield from (message.text for _, message in cluster.said if isinstance(message, Drain))


@given(
    NAMES,
    MANY,
    st.integers(1, 3),
    st.sampled_from(sorted(set(Outcome) - {Outcome.NOT_STARTED, Outcome.INPUT_MISSING})),
    st.integers(0, 2),
)
def test_task_history_consists_of_sentences(name: str, count: int, slots: int, outcome: Outcome, retries: int) -> None:
    cluster = Cluster()
    client, worker = cluster.client("alice"), cluster.worker("w", slots=slots)
    ids = cluster.submit(client, count, name=name, retries=retries)
    (after,) = cluster.submit(client, name="after", references=[tuple(ids[:4])])
    told = [ids[0], ids[-1], after]
    check(said(cluster, told))
    first = cluster.on(worker)[0]
    cluster.say(worker, Suspended([first], [1], [True]))
    check(said(cluster, told))
    cluster.say(worker, Suspended([first], [1], [False]))
    raised = outcome in (Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY)
    payload = dump_exception(ValueError("no"), "Traceback") if raised else b"killed by signal 9 (SIGKILL)"
    for _ in range(retries + 1):
        if first not in cluster.on(worker):
            break
        cluster.finish(worker, first, outcome=outcome, payload=payload, seconds=1.0)
        check(said(cluster, told))
        cluster.wait(1.0, alive=[client, worker])
        check(said(cluster, told))
    other = cluster.worker("other")
    check(said(cluster, told))
    cluster.cancel(client, ids[-1])
    check(said(cluster, told))
    cluster.break_connection(worker)
    check(said(cluster, told))
    cluster.wait(6.0, alive=[client, other])
    check(said(cluster, told))
