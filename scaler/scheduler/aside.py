"""Asks a user's scaling policy in a thread of its own: while it thinks for ten seconds, heartbeats go on.

A policy that answers within `WAIT_SECONDS` is asked as if it was called; what a slower one answers is taken at the next
plan after it has answered. It is never asked twice at a time. The thread is a daemon, so that a policy that never
answers does not keep the scheduler from ending.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait

from scaler.policy.guard import SlowPolicyError
from scaler.policy.view import ClusterView, ScalingPolicy, Wanted

WAIT_SECONDS = 0.05


class PolicyAside:
    """Wraps a policy, and is one. `plan` raises what the policy raises, and SlowPolicyError."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self.__wrapped__ = policy
        self.allocation = policy.allocation
        self._asked: tuple[Future[dict[str, Wanted]], float] | None = None

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        if self._asked is None:
            asked: Future[dict[str, Wanted]] = Future()
            threading.Thread(target=self._answer, args=(asked, view), name="policy", daemon=True).start()
            self._asked = (asked, view.now)  # not before: without a thread there is no answer to wait for
            wait([asked], WAIT_SECONDS)
        answer, asked_at = self._asked
        if not answer.done():
            raise SlowPolicyError(view.now - asked_at)
        self._asked = None
        return answer.result()

    def _answer(self, answer: Future[dict[str, Wanted]], view: ClusterView) -> None:
        try:
            answer.set_result(self.__wrapped__.plan(view))
        except BaseException as error:  # noqa: BLE001 (it is raised again by `plan`)
            answer.set_exception(error)
