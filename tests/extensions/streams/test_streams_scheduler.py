"""The scheduler passes messages only between a stream's client and its task."""

from __future__ import annotations

from scaler.extensions.streams.core import Streams
from scaler.extensions.streams.messages import StreamTaken, StreamValue
from scaler.net.connection import Identity
from tests.unit.scheduler.driver import Cluster


class ClusterWithStreams(Cluster):
    parts = (Streams,)


def test_values_and_answers_reach_only_the_same_key() -> None:
    cluster = ClusterWithStreams()
    for name in ("alice", "bob"):
        cluster.client(name, identity=Identity(name))
    cluster.worker("w", slots=2)
    [task], [other] = cluster.submit("alice"), cluster.submit("bob")
    sender = cluster.peer(cluster.nested("sender", "w", task))
    value, foreign = (StreamValue(bytes(16), each, sender, 0, 0, False, b"value") for each in (task, other))
    taken = StreamTaken(task, 1, 0, sender)
    cluster.said.clear()
    cluster.relay("sender", "w", value, task)
    cluster.relay("sender", "w", foreign, task)
    cluster.say("bob", taken)
    cluster.say("bob", StreamTaken(other, 1, 0, sender))
    cluster.say("alice", taken)
    passed = [(name, message) for name, message in cluster.said if isinstance(message, StreamValue | StreamTaken)]
    assert passed == [("alice", value), ("sender", taken)]
