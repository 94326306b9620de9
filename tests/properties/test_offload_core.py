"""Whatever an executor, the scheduler and time do: every attempt has one end, and nothing is handed on twice at once.

Long random walks from a seed. The executor may take some of what it is given, report late, twice, or never.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.protocol.messages import Done, Outcome, Recall, Returned, Run, RunGroup, Spec, Welcome
from scaler.worker.attempts import Attempt
from scaler.worker.executor import FAILURES, CallKey
from scaler.worker_manager.offload.core import HandOn, OffloadCore, Settings, Withdraw

FUNCTION = b"f" * 16
STEPS = 200


class Walk:
    """A core, what an executor has of it, and what has become of every attempt."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.tasks = 0
        self.came: set[CallKey] = set()
        self.ended: Counter[CallKey] = Counter()
        self.outcomes: dict[CallKey, Outcome] = {}
        self.given: set[CallKey] = set()
        """What the executor has, or was given and has not answered for."""
        self.withdrawn: set[CallKey] = set()
        self.taken: set[CallKey] = set()
        self.arriving: list[Attempt] = []
        self.core = OffloadCore(Settings(self.random.randint(1, 4), 10, 0.0, 1e9), self.now)
        self.core.welcomed(Welcome(False, 1, 1e9, 2.0), self.now)
        self.turn()

    def turn(self) -> None:
        self.core.settle(self.now)
        self.core.check()
        for command in self.core.take_commands():
            key = command.item.id, command.item.attempt
            match command:
                case HandOn():
                    assert key not in self.given, "handed on while it was out"
                    assert not self.ended[key], "handed on after its end"
                    self.given.add(key)
                case Withdraw():
                    assert key in self.given
                    self.given.discard(key)
                    self.withdrawn.add(key)
        for message in self.core.outbox.take_messages():
            if isinstance(message, Done):
                for identifier, attempt, outcome in zip(message.ids, message.attempts, message.outcomes, strict=True):
                    self.ended[identifier, attempt] += 1
                    self.outcomes[identifier, attempt] = Outcome(outcome)
            elif isinstance(message, Returned):
                for identifier, attempt, started in zip(message.ids, message.attempts, message.started, strict=True):
                    if not started:
                        self.ended[identifier, attempt] += 1
                        assert (identifier, attempt) not in self.taken, "what may have begun was given back"
        assert all(count == 1 for count in self.ended.values()), "an attempt ended twice"

    def step(self) -> None:
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
            self.core.tick(self.now)
        self.turn()

    def pick(self, keys: set[CallKey]) -> CallKey | None:
        return self.random.choice(sorted(keys)) if keys else None

    def run(self) -> None:
        ids = [(self.tasks + n).to_bytes(16, "big") for n in range(self.random.randint(1, 8))]
        self.tasks += len(ids)
        self.came.update((identifier, 1) for identifier in ids)
        spec = Spec(FUNCTION, retries=self.random.choice([0, 3]), timeout_seconds=self.random.choice([0.0, 2.0]))
        self.core.run(Run([(FUNCTION, b"code")], [RunGroup(spec, ids, [1] * len(ids), [b"x"] * len(ids))]))

    def take(self) -> None:
        self.taken |= self.given
        self.core.taken()

    def refuse(self) -> None:
        left = self.given - self.taken
        some = {key for key in left if self.random.random() < 0.5}
        self.taken |= left - some
        self.given -= some
        if left:
            self.core.not_taken(sorted(some), "throttled", self.now, self.random.random())

    def start(self) -> None:
        key = self.pick(self.given & self.taken)
        if key is not None:
            self.core.started(key, self.now)

    def arrive(self) -> None:
        key = self.pick(self.given & self.taken)
        if key is None:
            return
        self.given.discard(key)
        item = self.core.arrived(key)
        assert item is not None
        self.arriving.append(item)

    def store(self) -> None:
        if self.arriving:
            self.core.done(self.arriving.pop(), Outcome.SUCCESS, b"value")

    def fail(self) -> None:
        key = self.pick(self.given & self.taken)
        if key is not None:
            self.given.discard(key)
            outcome = self.random.choice(sorted(FAILURES))
            self.core.failed(key, outcome, "lost", self.now, self.random.random())

    def late(self) -> None:
        """A report of something that was withdrawn, or has ended."""
        key = self.pick(self.withdrawn | set(self.ended))
        if key is not None and key not in self.given:
            assert self.core.arrived(key) is None
            self.core.started(key, self.now)
            self.core.failed(key, Outcome.PROCESSOR_DIED, "late", self.now, 0.5)

    def recall(self) -> None:
        chosen = self.random.sample(sorted(self.came), min(len(self.came), 4))
        message = Recall([key[0] for key in chosen], [key[1] for key in chosen], self.random.random() < 0.5)
        self.taken |= self.given
        self.core.recall(message)

    def finish(self) -> None:
        """Let all that is there end."""
        for _ in range(10_000):
            if set(self.ended) == self.came:
                return
            self.take()
            self.arrive()
            self.store()
            self.now += 1.0
            self.core.tick(self.now)
            self.turn()
        raise AssertionError(f"{len(self.came - set(self.ended))} attempts have no end")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_every_attempt_has_exactly_one_end(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    walk.finish()
    assert not walk.given
