"""Queries the scaling policy: a built-in policy or a user's policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread

from scaler.config.servers import SchedulerConfig
from scaler.policy.load import GuardedPolicy, load_policy
from scaler.policy.view import ClusterView
from scaler.scheduler.core.commands import Input, PolicyAnswered


class PolicyCalls:
    """Queries a policy. A user's policy runs in a daemon thread, because it may take seconds or never return."""

    def __init__(self, config: SchedulerConfig, step: Callable[[Sequence[Input]], None]) -> None:
        """step: passes inputs to the core. Raises UsageError if the policy is unknown or its content is invalid."""
        policy = load_policy(config.policy_engine_type, config.policy_content)
        self.allocation = policy.allocation
        self._policy = GuardedPolicy(policy)
        self._is_quick = type(policy).__module__.startswith("scaler.policy.")
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def ask(self, view: ClusterView) -> None:
        if self._is_quick:
            self._loop.call_soon(self._answered, PolicyAnswered(*self._policy.plan(view)))
            return
        try:
            Thread(target=self._ask_in_thread, args=(view,), name="policy", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._loop.call_soon(self._answered, PolicyAnswered(*self._policy.failed(error, view)))

    def close(self) -> None:
        self._is_closed = True

    def _ask_in_thread(self, view: ClusterView) -> None:
        answer = PolicyAnswered(*self._policy.plan(view))
        with suppress(RuntimeError):  # the scheduler has ended, and the loop is closed
            self._loop.call_soon_threadsafe(self._answered, answer)

    def _answered(self, answer: PolicyAnswered) -> None:
        if not self._is_closed:
            self._step([answer])
