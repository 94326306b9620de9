"""Runs the real scheduler core in simulated time, with ordered actions and batched inputs."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from scaler.config.servers import SchedulerConfig
from scaler.plugins import extensions
from scaler.policy.view import Allocation
from scaler.protocol.messages import PROTOCOL_VERSION, Details, Hello, Role
from scaler.scheduler.core.commands import Command, Input
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.rooms import make_scaling, part
from scaler.testing.invariants import check


def built_in(*names: str) -> list[Any]:
    """Return new scheduler parts of these built-in extensions, except ones that tests/rooms has deleted."""
    return [part(each.scheduler)() for each in extensions() if each.name in names]


class SteppedCore:
    """A clock and a core that receives all inputs of the same `step_seconds` as one batch."""

    def __init__(
        self,
        config: SchedulerConfig,
        allocation: Allocation,
        *,
        step_seconds: float,
        check_every: int,
        rooms: Rooms | None = None,
    ) -> None:
        """rooms: extensions of the core.

        check_every: interval in steps at which all invariants of the core are checked, 0 for never.
        """
        self.now = 0.0
        rooms = rooms or Rooms(built_in("durability", "resources", "sharing"))
        self.core = SchedulerCore(config, self.now, make_scaling(allocation), rooms)
        self._step_seconds = step_seconds
        self._check_every = check_every
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._inbox: list[Input] = []
        self._step_at = math.inf
        self._steps = 0
        self._core_seconds = self._worst_step_seconds = 0.0

    def later(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._actions, (at, next(self._order), action))

    def _advance(self) -> None:
        self.now, _, action = heapq.heappop(self._actions)
        action()

    def _arrive(self, item: Input) -> None:
        self._inbox.append(item)
        self._wake_core(self.now + self._step_seconds)

    def _wake_core(self, at: float) -> None:
        if at < self._step_at:
            self._step_at = at
            self.later(at, self._step)

    def _step(self) -> None:
        if self.now < self._step_at:
            return  # an earlier wake-up has run the step
        self._step_at = math.inf
        inputs, self._inbox = self._inbox, []
        before = time.perf_counter()
        commands = self.core.step(inputs, self.now)
        took = time.perf_counter() - before
        self._core_seconds += took
        self._worst_step_seconds = max(self._worst_step_seconds, took)
        self._steps += 1
        if self._check_every and self._steps % self._check_every == 0:
            check(self.core.state)
        self._stepped(inputs, commands)
        self._wake_core(max(self.core.next_step_at(self.now), self.now + self._step_seconds))

    def _stepped(self, inputs: Sequence[Input], commands: list[Command]) -> None:
        del inputs
        self._perform(commands)

    def _perform(self, commands: Sequence[Command]) -> None:
        raise NotImplementedError


def hello(role: Role, details: Details) -> Hello:
    return Hello(role, False, PROTOCOL_VERSION, "", "", "", "simulated", 1, details)
