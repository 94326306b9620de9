"""For any actions of executor and scheduler at any time, each attempt ends once, and none starts twice at once.

Long random walks from a seed. The executor may accept only some calls, and may report late, twice, or never.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scaler.ids import content_id
from scaler.net.connection import Received, Welcomed
from scaler.offload.call import CallFailed, CallFinished, CallKey, CallStarted
from scaler.offload.calls import (
    CallCompleted,
    CallsAccepted,
    CallsRefused,
    CancelCall,
    DeliverResult,
    ServiceCalls,
    StartCall,
)
from scaler.protocol.messages import Done, Message, Outcome, Recall, Returned, Run, RunGroup, Spec, Welcome
from scaler.worker.agent.events import AgentInput, Command, TimeElapsed
from tests.unit.worker.worker_fakes import CoreRig, worker_config

FAILURES = [
    Outcome.PROCESSOR_DIED,
    Outcome.WORKER_LOST,
    Outcome.NOT_STARTED,
    Outcome.TIMED_OUT,
    Outcome.REJECTED,
    Outcome.OBJECT_LOST,
]
"""Ways in which a call may fail without a result."""
FUNCTION = content_id(b"code")
STEPS = 200


class Walk(CoreRig):
    """A core, its executor's view, and the outcome of every attempt."""

    executor = ServiceCalls

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tasks = 0
        self.came: set[CallKey] = set()
        self.ended: Counter[CallKey] = Counter()
        self.outcomes: dict[CallKey, Outcome] = {}
        self.given: set[CallKey] = set()
        """Calls that the executor has accepted or has not answered yet."""
        self.cancelled: set[CallKey] = set()
        self.taken: set[CallKey] = set()
        self.arriving: list[DeliverResult] = []
        super().__init__(worker_config(self.random.randint(1, 4), 10, death=1e9))
        self.turn(Welcomed(Welcome(False, 1, 1e9, 2.0)))

    def perform(self, command: Command) -> None:
        match command:
            case StartCall(_, call):
                assert call.key not in self.given, "started while it was in flight"
                assert not self.ended[call.key], "started after its end"
                self.given.add(call.key)
            case CancelCall(_, key):
                assert key in self.given
                self.given.discard(key)
                self.cancelled.add(key)
            case DeliverResult():
                self.arriving.append(command)

    def turn(self, *inputs: AgentInput) -> None:
        self.step(*inputs)
        for message in self.sent:
            if isinstance(message, Done):
                for identifier, attempt, outcome in zip(message.ids, message.attempts, message.outcomes, strict=True):
                    self.ended[identifier, attempt] += 1
                    self.outcomes[identifier, attempt] = Outcome(outcome)
            elif isinstance(message, Returned):
                for identifier, attempt, started in zip(message.ids, message.attempts, message.started, strict=True):
                    if not started:
                        self.ended[identifier, attempt] += 1
                        assert (identifier, attempt) not in self.taken, "a task that may have started was returned"
        self.sent.clear()
        assert all(count == 1 for count in self.ended.values()), "an attempt ended twice"

    def hears(self, message: Message) -> None:
        self.turn(Received(b"schedulr", message))

    def walk(self) -> None:
        steps = [
            self.run,
            self.take,
            self.refuse,
            self.start,
            self.arrive,
            self.store,
            self.fail,
            self.recall,
            self.late,
        ]
        self.random.choices(steps, weights=[20, 20, 8, 15, 30, 20, 10, 8, 5])[0]()
        self.now += self.random.choice([0.0, 0.01, 1.0])
        if self.now >= self.core.wake_at:
            self.turn(TimeElapsed({}))

    def pick(self, keys: set[CallKey]) -> CallKey | None:
        return self.random.choice(sorted(keys)) if keys else None

    def run(self) -> None:
        ids = [(self.tasks + n).to_bytes(16, "big") for n in range(self.random.randint(1, 8))]
        self.tasks += len(ids)
        self.came.update((identifier, 1) for identifier in ids)
        spec = Spec(FUNCTION, retries=self.random.choice([0, 3]), timeout_seconds=self.random.choice([0.0, 2.0]))
        self.hears(Run([(FUNCTION, b"code")], [RunGroup(spec, ids, [1] * len(ids), [b"x"] * len(ids))]))

    def take(self) -> None:
        self.taken |= self.given
        self.turn(CallsAccepted())

    def refuse(self) -> None:
        left = self.given - self.taken
        some = {key for key in left if self.random.random() < 0.5}
        self.taken |= left - some
        self.given -= some
        if left:
            self.turn(CallsRefused(sorted(some), "throttled"))

    def start(self) -> None:
        key = self.pick(self.given & self.taken)
        if key is not None:
            self.turn(CallStarted(*key))

    def arrive(self) -> None:
        key = self.pick(self.given & self.taken)
        if key is None:
            return
        self.given.discard(key)
        count = len(self.arriving)
        self.turn(CallFinished(*key, b"result"))
        assert len(self.arriving) == count + 1

    def store(self) -> None:
        if self.arriving:
            number, key, _, _ = self.arriving.pop()
            self.turn(CallCompleted(number, key, Outcome.SUCCESS, b"value"))

    def fail(self) -> None:
        key = self.pick(self.given & self.taken)
        if key is not None:
            self.given.discard(key)
            outcome = self.random.choice(FAILURES)
            self.turn(CallFailed(*key, outcome, "lost"))

    def late(self) -> None:
        """Report a cancelled or ended call."""
        key = self.pick(self.cancelled | set(self.ended))
        if key is not None and key not in self.given:
            count = len(self.arriving)
            late = CallFinished(*key, b"late"), CallStarted(*key), CallFailed(*key, Outcome.PROCESSOR_DIED, "late")
            self.turn(*late)
            assert len(self.arriving) == count

    def recall(self) -> None:
        chosen = self.random.sample(sorted(self.came), min(len(self.came), 4))
        message = Recall([key[0] for key in chosen], [key[1] for key in chosen], self.random.random() < 0.5)
        self.taken |= self.given
        self.hears(message)

    def finish(self) -> None:
        """Let all running calls end."""
        for _ in range(10_000):
            if set(self.ended) == self.came:
                return
            self.take()
            self.arrive()
            self.store()
            self.now += 1.0
            self.turn(TimeElapsed({}))
        raise AssertionError(f"{len(self.came - set(self.ended))} attempts have no end")


@given(st.integers(0, 2**32))
def test_every_attempt_has_exactly_one_end(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.walk()
    walk.finish()
    assert not walk.given
